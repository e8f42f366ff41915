"""Files and weights of a checkpoint, from a folder or the hub; errors say what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
)
from transformers.utils import logging as transformers_logging


class CheckpointError(ValueError):
    """A checkpoint folder that cannot be used, and why."""


def load_weights(cls: Any, folder: str | Path, dtype: torch.dtype, **options: Any) -> Any:
    """A model in `dtype` whose every tensor came from the checkpoint; never runs code from it.

    ``options`` go to ``from_pretrained``: attn_implementation, device_map, tp_plan.
    """
    progress = transformers_logging.is_progress_bar_enabled()
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()  # what it would report becomes the error below
    try:
        model, info = cls.from_pretrained(
            str(folder),
            dtype=dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # to have them all named: none is let through
            trust_remote_code=False,
            **options,
        )
    except Exception as error:  # safetensors and transformers raise many kinds
        raise CheckpointError(f"{folder}: the checkpoint cannot be read: {error}") from error
    finally:
        transformers_logging.set_verbosity(verbosity)
        if progress:
            transformers_logging.enable_progress_bar()
    wrong = []
    for kind in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        names = sorted(str(k) for k in info.get(kind) or ())
        if names:
            more = f" and {len(names) - 8} more" if len(names) > 8 else ""
            wrong.append(f"{kind.replace('_', ' ')} {names[:8]}{more}")
    if wrong:
        raise CheckpointError(f"{folder}: the weights do not fit the model: {'; '.join(wrong)}")
    return model


def checkpoint_file(folder: str | Path, name: str) -> Path | None:
    """A file of a checkpoint folder, or of a hub id (downloaded or cached); None: not there."""
    if Path(folder).is_dir():
        path = Path(folder) / name
        return path if path.is_file() else None
    try:
        return Path(hf_hub_download(str(folder), name))
    except LocalEntryNotFoundError as error:
        raise CheckpointError(f"{folder}/{name} is not cached and cannot be fetched") from error
    except EntryNotFoundError:
        return None
    except (HfHubHTTPError, HFValidationError) as error:
        raise CheckpointError(f"{folder}: no such folder, nor a hub model: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The content of a JSON file of a checkpoint."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path.parent} has no {path.name}") from error
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
