"""Training recipes: dataclasses read from JSON by name or by file, unknown keys refused."""

from __future__ import annotations

import dataclasses
import json
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")


def load_recipe(cls: type[T], kind: str, name_or_file: str, overrides: dict[str, Any]) -> T:
    """A ``cls`` from ``codila/training/configs/{kind}-{name}.json`` or from a JSON file.

    ``overrides`` replace values of the file.

    Raises:
        ValueError: no such recipe or file, not JSON, or a key that ``cls`` does not have.
    """
    configs = resources.files("codila.training") / "configs"
    bundled = configs / f"{kind}-{name_or_file}.json"
    path = bundled if bundled.is_file() else Path(name_or_file)
    if not path.is_file():
        names = sorted(
            p.name[len(kind) + 1 : -5] for p in configs.iterdir() if p.name.startswith(f"{kind}-")
        )
        raise ValueError(f"no recipe {name_or_file!r}: give one of {names} or a JSON file")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{name_or_file} is not JSON: {error}") from error
    values |= overrides
    known = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]
    unknown = sorted(set(values) - known)
    if unknown:
        raise ValueError(f"{name_or_file}: unknown keys {unknown}; known are {sorted(known)}")
    return cls(**values)
