"""A pair with random weights, written as checkpoint folders, and the command to run on it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM
from typer.testing import CliRunner

from codila.bridge import VocabularyBridge
from codila.cli import app
from codila.models.ar import ARMetadata
from codila.models.dream import DreamConfig, DreamModel

BUNDLED = Path(str(resources.files("codila"))) / "pretrained" / "tiny"


def _write_pair(folder: Path) -> tuple[Path, Path]:
    dlm_folder, ar_folder = folder / "dlm", folder / "ar"
    for name in ("dlm", "ar"):
        (folder / name).mkdir()
        for file in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(BUNDLED / name / file, folder / name / file)
    tokenizer = AutoTokenizer.from_pretrained(dlm_folder)
    shape: dict[str, Any] = {
        "hidden_size": 32,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 128,
        "tie_word_embeddings": True,
    }
    torch.manual_seed(0)
    dlm = DreamModel(
        DreamConfig(
            vocab_size=1088,
            mask_token_id=tokenizer.mask_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            architectures=["DreamModel"],
            **shape,
        )
    )
    ar = Qwen3ForCausalLM(Qwen3Config(vocab_size=1056, head_dim=16, **shape))
    dlm.save_pretrained(dlm_folder)
    ar.save_pretrained(ar_folder)
    (dlm_folder / "generation_config.json").unlink(missing_ok=True)
    eos = dlm.eos_token_id
    bridge = VocabularyBridge(1056, (dlm.mask_token_id,), tuple(range(eos + 1, 1056)))
    opening, closing = AutoTokenizer.from_pretrained(ar_folder).convert_tokens_to_ids(
        ["<think>", "</think>"]
    )
    metadata = ARMetadata.of(dlm, bridge, block_sizes=(2, 4), boundaries=(opening, closing))
    metadata.save_pretrained(ar_folder)
    return dlm_folder, ar_folder


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders of a DLM and of an AR model with random weights."""
    return _write_pair(tmp_path_factory.mktemp("pair"))


@pytest.fixture
def codila_command(folders: tuple[Path, Path]) -> Callable[..., Any]:
    """``codila_command(*arguments, input=...)``: run it; ``PAIR`` stands for the folder options."""
    pair = ["--dlm", str(folders[0]), "--ar", str(folders[1])]

    def run(*arguments: str, input: str | None = None) -> Any:
        words = [w for a in arguments for w in (pair if a == "PAIR" else [a])]
        return CliRunner().invoke(app, words, input=input)

    return run
