"""Files and weights of a checkpoint, from a folder or the hub; errors say what is wrong with it."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
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
from transformers.distributed import DistributedConfig
from transformers.utils import logging as transformers_logging


class CheckpointError(ValueError):
    """A checkpoint folder that cannot be used, and why."""


def load_weights(cls: Any, folder: str | Path, dtype: torch.dtype, **options: Any) -> Any:
    """A model in `dtype` whose every tensor came from the checkpoint; never runs code from it.

    ``options`` go to ``from_pretrained``: attn_implementation, device_map, tp_plan.
    """
    if "tp_plan" in options:
        options["distributed_config"] = DistributedConfig(tp_plan=options.pop("tp_plan"))
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


def gguf_options(place: str | Path) -> tuple[str, dict[str, str]]:
    """Folder and ``from_pretrained`` options of a checkpoint that may be one GGUF file."""
    path = Path(place)
    if path.suffix == ".gguf":
        return str(path.parent), {"gguf_file": path.name}
    return str(place), {}


@contextlib.contextmanager
def written_whole(folder: str | Path) -> Iterator[Path]:
    """A scratch folder that takes the place of ``folder`` at the end: none is ever half written."""
    folder = Path(folder)
    scratch, old = (folder.with_name(folder.name + end) for end in (".tmp", ".old"))
    for leftover in (scratch, old):
        shutil.rmtree(leftover, ignore_errors=True)
    scratch.mkdir(parents=True)
    yield scratch
    if folder.exists():
        folder.rename(old)
    scratch.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def checkpoint_file(folder: str | Path, name: str) -> Path | None:
    """A file of a checkpoint folder, or of a hub id (downloaded or cached); None: not there."""
    if Path(folder).is_dir() or Path(folder).is_file():
        path = (Path(folder) if Path(folder).is_dir() else Path(folder).parent) / name
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
