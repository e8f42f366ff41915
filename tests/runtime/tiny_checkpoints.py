"""Checkpoint folders with the exact layout of the published ones: keys, ids, names; tiny widths."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from test_llada_model import PUBLISHED as LLADA
from test_llada_model import write_checkpoint
from transformers import Qwen3Config, Qwen3ForCausalLM

from codila.bridge import VocabularyBridge
from codila.models.ar import ARMetadata, save_ar
from codila.models.dream import DreamConfig, DreamModel
from codila.models.loading import load_dlm

DATA = os.environ.get("CODILA_TEST_DATA")
EOS, BEGIN, MASK, EXPAND = 151_643, 151_665, 151_666, 151_667
THINK = (151_667, 151_668)
QWEN3_ROWS = 151_936

DREAM = {
    "architectures": ["DreamModel"],
    "attention_dropout": 0.0,
    "auto_map": {"AutoConfig": "configuration_dream.DreamConfig"},
    "bos_token_id": 151_643, "eos_token_id": EOS, "pad_token_id": EOS, "mask_token_id": MASK,
    "hidden_act": "silu", "hidden_size": 3584, "initializer_range": 0.02,
    "intermediate_size": 18_944, "max_position_embeddings": 131_072, "max_window_layers": 28,
    "model_type": "Dream", "num_attention_heads": 28, "num_hidden_layers": 28,
    "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_scaling": None,
    "rope_theta": 1_000_000.0, "sliding_window": None, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "use_cache": True, "use_sliding_window": False,
    "vocab_size": 152_064,
}  # fmt: skip
"""Dream's config.json, 7B."""

SMALL = {
    "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "initializer_range": 0.4, "max_window_layers": 2,
}  # fmt: skip

FAMILIES: dict[str, dict[str, Any]] = {
    "Dream-v0": {"max_position_embeddings": 32_768},
    "Dream-Coder": {"max_position_embeddings": 32_768, "bos_token_id": BEGIN},
    "DiffuCoder": {},
    "DreamOn": {"max_position_embeddings": 32_768, "expand_token_id": EXPAND},
    "LLaDA-8B": {},
}
"""What tells the published models apart, besides their weights."""


def write_dlm(folder: Path, family: str) -> Path:
    """Config and float32 weights of a family, under its own keys and tensor names."""
    if family.startswith("LLaDA"):
        small = {"d_model": 16, "n_heads": 4, "n_kv_heads": 4, "n_layers": 2, "mlp_hidden_size": 24}
        write_checkpoint(folder, **LLADA | small)
        return folder
    values = DREAM | FAMILIES[family] | SMALL
    torch.manual_seed(0)
    model = DreamModel(DreamConfig.from_dict(values))
    model.save_pretrained(folder)
    (folder / "config.json").write_text(json.dumps(values), encoding="utf-8")
    return folder


def write_ar(folder: Path, dlm_folder: Path, *, tokenizer: bool = False) -> Path:
    """A Qwen3 with the real vocabulary, and the ``codila.json`` of a model trained on that DLM."""
    torch.manual_seed(1)
    config = Qwen3Config(
        vocab_size=QWEN3_ROWS, head_dim=4, tie_word_embeddings=True, eos_token_id=EOS,
        **{k: v for k, v in SMALL.items() if k != "max_window_layers"},
    )  # fmt: skip
    dlm = load_dlm(dlm_folder)
    valid = min(QWEN3_ROWS, dlm.config.vocab_size)
    banned, suppressed, id_map = (dlm.mask_token_id,), (), {}
    if dlm.shift:
        banned, suppressed = (BEGIN, MASK), tuple(range(151_667, QWEN3_ROWS))
        if getattr(dlm.config, "expand_token_id", None) is not None:
            id_map = {EXPAND: 151_670}
            suppressed = tuple(range(151_668, QWEN3_ROWS))
    bridge = VocabularyBridge(valid, banned, suppressed, id_map)
    metadata = ARMetadata.of(dlm, bridge, block_sizes=(2, 4, 8), boundaries=THINK)
    save_ar(Qwen3ForCausalLM(config), folder, metadata=metadata)
    if tokenizer:
        for file in (qwen3_folder()).iterdir():
            shutil.copy(file, folder / file.name)
    return folder


def qwen3_folder() -> Path:
    if not DATA:
        pytest.skip("CODILA_TEST_DATA is not set")
    return Path(DATA) / "qwen3-tokenizer"


def write_dream_tokenizer(folder: Path) -> None:
    """Dream's files: ranks and merges apart, a class of its own that is remote code."""
    data = json.loads((qwen3_folder() / "tokenizer.json").read_text(encoding="utf-8"))
    merges = [m if isinstance(m, str) else " ".join(m) for m in data["model"]["merges"]]
    (folder / "vocab.json").write_text(json.dumps(data["model"]["vocab"]), encoding="utf-8")
    (folder / "merges.txt").write_text("#version: 0.2\n" + "\n".join(merges) + "\n", "utf-8")
    added = {t["content"]: t["id"] for t in data["added_tokens"] if t["id"] < BEGIN}
    added |= {"<|beginoftext|>": BEGIN, "<|mask|>": MASK}
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    settings = {
        "added_tokens_decoder": {
            str(i): {"content": t, "special": True, **flags} for t, i in added.items()
        },
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        "bos_token": "<|beginoftext|>", "eos_token": "<|endoftext|>", "mask_token": "<|mask|>",
        "pad_token": "<|endoftext|>", "tokenizer_class": "DreamTokenizer",
        "chat_template": (
            "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
            "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
        ),
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (folder / "tokenization_dream.py").write_text(
        "raise SystemExit('remote code was run')", "utf-8"
    )
