"""Argument checks of the public ops: what was given, what is expected, what to do.

Shapes, dtypes, devices and host values only. The values in a tensor are never looked at: that would
make the host wait for the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

MIN_TEMPERATURE = 1e-6
"""Smallest temperature other than 0: its reciprocal must leave room in float32."""


def is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def check_float_matrix(op: str, name: str, tensor: Tensor) -> None:
    if tensor.ndim != 2 or tensor.shape[1] == 0:
        raise ValueError(
            f"{op}: {name} is {list(tensor.shape)}, expected two dimensions with at least one "
            "column; flatten leading dimensions first"
        )
    if tensor.dtype not in FLOATS:
        raise TypeError(f"{op}: {name} is {tensor.dtype}, expected a floating-point tensor")


def check_integer_vector(op: str, name: str, tensor: Tensor) -> None:
    if tensor.ndim != 1 or tensor.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"{op}: {name} is {list(tensor.shape)} {tensor.dtype}, expected one dimension of "
            "torch.int64 or torch.int32"
        )


def check_device(op: str, name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    if tensor.device != other.device:
        raise ValueError(
            f"{op}: {name} is on {tensor.device} and {other_name} on {other.device}; move one"
        )


def check_same(op: str, name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    check_device(op, name, tensor, other_name, other)
    if tensor.dtype != other.dtype:
        raise TypeError(
            f"{op}: {name} is {tensor.dtype} and {other_name} is {other.dtype}; cast one, so "
            "that the product and the stored logits have one dtype"
        )


def check_temperature(op: str, temperature: float) -> None:
    fits = not isinstance(temperature, Tensor) and (
        temperature == 0 or MIN_TEMPERATURE <= temperature < math.inf
    )
    if not fits:
        raise ValueError(
            f"{op}: temperature={temperature!r}, expected 0 (arg-max) or a finite number of at "
            f"least {MIN_TEMPERATURE}"
        )


def check_host_number(op: str, name: str, value: object) -> None:
    if isinstance(value, Tensor | str | bool):
        raise TypeError(f"{op}: {name}={value!r}, expected a number of the host, or None")


def check_columns(
    op: str, width: int, valid_vocab: int | None, banned_ids: Sequence[int] | None
) -> tuple[int, ...]:
    if valid_vocab is not None and not (is_int(valid_vocab) and 1 <= valid_vocab <= width):
        raise ValueError(
            f"{op}: valid_vocab={valid_vocab!r}, expected an int from 1 to the {width} columns"
        )
    if isinstance(banned_ids, Tensor):
        raise TypeError(f"{op}: banned_ids is a tensor, expected a host sequence of ints")
    banned = tuple(banned_ids or ())
    for token in banned:
        if not is_int(token) or not 0 <= token < width:
            raise ValueError(
                f"{op}: banned id {token!r} is not an int from 0 to {width - 1}; the logits have "
                f"{width} columns"
            )
    return banned


def check_logits(
    op: str,
    logits: Tensor,
    temperature: float,
    valid_vocab: int | None,
    banned_ids: Sequence[int] | None,
) -> tuple[int, ...]:
    check_float_matrix(op, "logits", logits)
    check_temperature(op, temperature)
    return check_columns(op, logits.shape[1], valid_vocab, banned_ids)
