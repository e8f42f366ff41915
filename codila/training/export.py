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
from codila.training.ar import ARTraining


def export_dlm(model: DreamModel, tokenizer_folder: str, folder: Path) -> None:
    """A Dream-layout checkpoint folder; an existing folder is replaced as a whole."""
    with written_whole(folder) as scratch:
        _narrow(copy.deepcopy(model)).save_pretrained(scratch)
        _complete(tokenizer_folder, scratch)


def export_ars(training: ARTraining, folder: Path) -> list[Path]:
    """One folder per variant (``ar``, ...) under ``folder``, with codila.json; adapters merged.

    Every process must call it; the first one writes.
    """
    folders = []
    models = training.trained()
    for name, model in models.items() if training.world.is_main else ():
        with written_whole(folder / name) as scratch:
            write_ar(_narrow(_merged(model)), training.metadata(name), scratch)
            (scratch / "generation_config.json").unlink(missing_ok=True)
            training.start.ar_tokenizer.save_pretrained(scratch)
        folders.append(folder / name)
    return folders


def _merged(model: Any) -> Any:
    """A copy in which adapters, if there are any, have become part of the weights."""
    wrapped = getattr(model, "codila_peft", None)
    if wrapped is None:
        return copy.deepcopy(model)
    order = getattr(model, "codila_order", None)
    merged = copy.deepcopy(wrapped[0]).merge_and_unload()
    if order is not None:
        merged.codila_order = order
    return merged


def _narrow(model: Any) -> Any:
    model = model.to(dtype=torch.bfloat16)
    model.config.use_cache = True
    return model


def _complete(tokenizer_folder: str, scratch: Path) -> None:
    load_tokenizer(tokenizer_folder)  # fails early on a folder without one
    (scratch / "generation_config.json").unlink(missing_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(Path(tokenizer_folder) / name, scratch / name)
