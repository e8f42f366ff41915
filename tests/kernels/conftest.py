"""Legs of the kernel tests: which tests can run in this process, and why the others cannot."""

from __future__ import annotations

import importlib.util
import math
import os
import sys
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # so that the tests can import `kernel_definitions`

INTERPRETING = os.environ.get("TRITON_INTERPRET") == "1"
HAVE_TRITON = importlib.util.find_spec("triton") is not None


def _obstacle(item: pytest.Item) -> str | None:
    if item.get_closest_marker("interpret"):
        if not INTERPRETING:
            return "runs in a process of its own, started by test_interpreter_leg.py"
    elif item.get_closest_marker("compile"):
        if not HAVE_TRITON:
            return "triton is not installed"
        if INTERPRETING:
            return "TRITON_INTERPRET=1 is set, and the interpreter cannot compile"
    elif item.get_closest_marker("gpu"):
        if not torch.cuda.is_available():
            return "no GPU"
        if not HAVE_TRITON:
            return "triton is not installed"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            reason = _obstacle(item)
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(20260)


@pytest.fixture
def poisoned_scratch(monkeypatch):
    """Memory that a kernel forgets to write, or reads unmasked, shows as NaN or a wild id."""
    empty = torch.empty

    def poisoned(*args, **kwargs):
        out = empty(*args, **kwargs)
        return out.fill_(math.nan) if out.is_floating_point() else out.fill_(2**31 - 5)

    monkeypatch.setattr(torch, "empty", poisoned)


@pytest.fixture
def quick_device_functions(monkeypatch):
    """Device functions without the interpreter's set-up, milliseconds for each of their calls.

    The kernel that calls them has replaced the builtins of `triton.language` already; those of
    `triton.language.core`, which the standard functions see, stay replaced after the first time.
    """
    from triton.language import core
    from triton.runtime import interpreter

    replaced = []

    def call(self, *args, **kwargs):
        sees_core = any(value is core for value in self.fn.__globals__.values())
        if sees_core and not replaced:
            replaced.append(core)
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **kwargs)

    monkeypatch.setattr(interpreter.InterpretedFunction, "__call__", call)
