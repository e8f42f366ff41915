"""Recipes small enough to train in a test."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from codila.training.ar_recipe import ARRecipe
from codila.training.dlm import DLMRecipe, train_dlm
from codila.training.export import export_dlm

BUNDLED = Path(str(resources.files("codila") / "pretrained" / "tiny"))
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 192,
    "tie_word_embeddings": True,
}


@pytest.fixture
def dlm_recipe() -> DLMRecipe:
    return DLMRecipe(
        tokenizer=str(BUNDLED / "dlm"),
        model={"vocab_size": 1088, **SHAPE},
        pairs=1500,
        rows=8,
        steps=6,
        warmup=2,
    )


@pytest.fixture(scope="session")
def dlm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DLM trained for two steps and exported."""
    recipe = DLMRecipe(
        tokenizer=str(BUNDLED / "dlm"),
        model={"vocab_size": 1088, **SHAPE},
        pairs=800,
        rows=8,
        steps=2,
        warmup=1,
    )
    folder = tmp_path_factory.mktemp("dlm")
    export_dlm(train_dlm(recipe, folder / "run"), recipe.tokenizer, folder / "dlm")
    return folder / "dlm"


@pytest.fixture
def ar_recipe(dlm_folder: Path) -> ARRecipe:
    return ARRecipe(
        dlm=str(dlm_folder),
        tokenizer=str(BUNDLED / "ar"),
        model={"vocab_size": 1056, "head_dim": 16, **SHAPE},
        variants={
            "ar": {},
            "ar-top3": {"conditioning": "top-3"},
            "ar-top1": {"conditioning": "top-1"},
        },
        pairs=800,
        rows=8,
        region=64,
        extra=0,
        block_sizes=(2, 4, 8),
        weight_floor=0.1,
        eos_block_share=0.1,
        optimizer="muon",
        lr=0.015,
        schedule="wsd",
        steps=4,
        warmup=1,
        eval_batches=1,
    )
