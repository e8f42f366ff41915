"""Tiny random models for the runtime tests: a Dream-architecture DLM and a Qwen3 AR model.

Both share the base ids 0..69 and the end token 70. Behind them each has control tokens of its own:
71 and the mask 72 for the DLM, whose table is padded to 96 rows, and four more for the AR model,
whose table has 80.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import Qwen3Config, Qwen3ForCausalLM

from codila.bridge import VocabularyBridge
from codila.models.ar import ARMetadata, write_ar
from codila.models.dream import DreamConfig, DreamModel

WORDS, EOS, BOS, MASK = 70, 70, 71, 72
DLM_VOCAB, AR_VOCAB = 96, 80
BOUNDARIES = (73, 74)
BRIDGE = VocabularyBridge(AR_VOCAB, banned_ids=(MASK,), suppressed_ids=tuple(range(71, AR_VOCAB)))
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.25,
}


def make_dlm(
    seed: int = 0, dtype: torch.dtype = torch.float64, sharpness: float = 2.0, **changes: Any
) -> DreamModel:
    """A random DLM; ``sharpness`` scales the head, so that entropies spread."""
    values = {
        "vocab_size": DLM_VOCAB,
        "mask_token_id": MASK,
        "eos_token_id": EOS,
        "pad_token_id": EOS,
        "tie_word_embeddings": False,
        **SHAPE,
    }
    torch.manual_seed(seed)
    model = DreamModel(DreamConfig(**(values | changes)))
    with torch.no_grad():
        model.lm_head.weight.mul_(sharpness)
    return model.to(dtype).eval()


def make_ar(
    dlm: DreamModel,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
    *,
    bridge: VocabularyBridge = BRIDGE,
    boundaries: tuple[int, int] | None = BOUNDARIES,
    block_sizes: tuple[int, ...] = (1, 2, 3, 4, 8),
    tied: bool = True,
    window: tuple[int, int] = (0, 0),
) -> Qwen3ForCausalLM:
    """A random AR model for ``dlm``, with the attribute ``codila`` that loading would set."""
    torch.manual_seed(1000 + seed)
    config = Qwen3Config(
        vocab_size=AR_VOCAB, head_dim=8, tie_word_embeddings=tied, eos_token_id=EOS, **SHAPE
    )
    model = Qwen3ForCausalLM(config).to(dtype).eval()
    model.codila = ARMetadata(
        block_sizes=block_sizes,
        boundaries=boundaries,
        conditioning="soft",
        window=window,
        dlm={"vocab_size": dlm.config.vocab_size, "mask_token_id": MASK, "shift": dlm.shift},
        bridge=bridge,
    )
    return model


def save_tokenizer(
    folder: Path, added: list[str], *, words: list[str] | None = None, **named: str
) -> None:
    """A word-level tokenizer of 70 words and the ``added`` tokens, for ``AutoTokenizer``."""
    words = words or [f"w{i}" for i in range(WORDS)]
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_tokens([AddedToken(t, special=True, normalized=False) for t in added])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>", **named}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def save_dlm(folder: Path, dlm: DreamModel) -> None:
    """A checkpoint folder with weights, config and tokenizer."""
    dlm.save_pretrained(folder)
    save_tokenizer(folder, ["<end>", "<begin>", "<mask>"], mask_token="<mask>")


def save_ar(folder: Path, ar: Qwen3ForCausalLM, dlm: DreamModel) -> None:
    """A checkpoint folder with weights, config, tokenizer and codila.json."""
    save_tokenizer(folder, ["<end>", "<call>", "</call>", "<think>", "</think>"])
    facts: ARMetadata = ar.codila
    metadata = ARMetadata.of(
        dlm,
        facts.bridge,
        block_sizes=facts.block_sizes,
        boundaries=facts.boundaries,
        conditioning=facts.conditioning,
        window=facts.window,
    )
    write_ar(ar, metadata, folder)


def with_metadata(ar: Qwen3ForCausalLM, **changes: Any) -> Qwen3ForCausalLM:
    """The same model after changes to its ``codila`` attribute."""
    ar.codila = dataclasses.replace(ar.codila, **changes)
    return ar
