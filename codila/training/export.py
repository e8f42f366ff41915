"""Write trained models as checkpoint folders: bf16 safetensors, config, tokenizer, metadata."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from codila.models.dream import DreamModel
from codila.models.loading import load_tokenizer
from codila.training.ar import ARTraining, ar_folder, write_metadata


def export_dlm(model: DreamModel, tokenizer_folder: str, folder: Path) -> None:
    """A Dream-layout checkpoint folder; an existing folder is replaced as a whole."""
    _replace(folder, lambda scratch: _write(model, tokenizer_folder, scratch))


def export_ars(training: ARTraining, folder: Path) -> None:
    """One folder per conditioning (``ar``, ``ar-top3``, ...) under ``folder``, with codila.json."""
    for conditioning, model in training.models.items():

        def fill(scratch: Path, conditioning: str = conditioning, model: Any = model) -> None:
            _write(model, training.recipe.tokenizer, scratch)
            write_metadata(training, conditioning, scratch)

        _replace(folder / ar_folder(conditioning), fill)


def _write(model: Any, tokenizer_folder: str, scratch: Path) -> None:
    load_tokenizer(tokenizer_folder)  # fails early on a folder without one
    narrow = copy.deepcopy(model).to(dtype=torch.bfloat16)
    narrow.save_pretrained(scratch)
    (scratch / "generation_config.json").unlink(missing_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(Path(tokenizer_folder) / name, scratch / name)


def _replace(folder: Path, fill: Callable[[Path], None]) -> None:
    """Fill a scratch folder, then swap it in: a reader never sees half a checkpoint."""
    scratch = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir(parents=True)
    fill(scratch)
    old = folder.with_name(folder.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    scratch.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
