"""Write trained models as checkpoint folders: bf16 safetensors, config, tokenizer, metadata."""

from __future__ import annotations

import copy
import shutil
from pathlib import Path
from typing import Any

import torch

from codila.models.ar import write_ar
from codila.models.checkpoint import written_whole
from codila.models.dream import DreamModel
from codila.models.loading import load_tokenizer
from codila.training.ar import ARTraining, ar_folder


def export_dlm(model: DreamModel, tokenizer_folder: str, folder: Path) -> None:
    """A Dream-layout checkpoint folder; an existing folder is replaced as a whole."""
    with written_whole(folder) as scratch:
        _narrow(model).save_pretrained(scratch)
        _complete(tokenizer_folder, scratch)


def export_ars(training: ARTraining, folder: Path) -> None:
    """One folder per conditioning (``ar``, ``ar-top3``, ...) under ``folder``, with codila.json."""
    for conditioning, model in training.models.items():
        with written_whole(folder / ar_folder(conditioning)) as scratch:
            write_ar(_narrow(model), training.metadata(conditioning), scratch)
            _complete(training.recipe.tokenizer, scratch)


def _narrow(model: Any) -> Any:
    return copy.deepcopy(model).to(dtype=torch.bfloat16)


def _complete(tokenizer_folder: str, scratch: Path) -> None:
    load_tokenizer(tokenizer_folder)  # fails early on a folder without one
    (scratch / "generation_config.json").unlink(missing_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(Path(tokenizer_folder) / name, scratch / name)
