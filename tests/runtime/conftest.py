"""Tiny checkpoints of random weights, written once per run of the tests."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # so that the tests can import their helpers

import tiny_pairs  # noqa: E402

from codila.models.dream import DreamModel  # noqa: E402


@pytest.fixture(scope="session")
def dlm() -> DreamModel:
    """A float64 DLM in memory. Tests must not change it."""
    return tiny_pairs.make_dlm()


@pytest.fixture(scope="session")
def ar(dlm: DreamModel):
    """A float64 AR model for :func:`dlm`. Tests must not change it."""
    return tiny_pairs.make_ar(dlm)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``dlm`` and ``ar``, float32. Tests must not change it."""
    root = tmp_path_factory.mktemp("checkpoints")
    dlm = tiny_pairs.make_dlm(dtype=torch.float32)
    tiny_pairs.save_dlm(root / "dlm", dlm)
    tiny_pairs.save_ar(root / "ar", tiny_pairs.make_ar(dlm, dtype=torch.float32), dlm)
    return root


@pytest.fixture
def copied(checkpoints: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Copies ``dlm`` or ``ar`` to a folder that the test may damage."""

    def copy(name: str) -> Path:
        return Path(shutil.copytree(checkpoints / name, tmp_path / name))

    return copy
