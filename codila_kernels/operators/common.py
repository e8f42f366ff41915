"""What the operators share: the devices they serve and the layout their kernels read."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

DEVICES = ("cpu", "cuda")
"""Dispatch keys: ROCm devices are "cuda" to torch; the CPU serves the interpreter."""


def on_device_of(tensor: Tensor) -> contextlib.AbstractContextManager[Any]:
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


def unit_columns(tensor: Tensor) -> Tensor:
    """`tensor` itself where its last stride is 1 (rows may be strided), else a copy."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()
