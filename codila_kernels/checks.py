"""Argument checks of the public ops: what was given, what is expected, what to do.

Shapes, dtypes, devices and host values only. The values in a tensor are never looked at: that would
make the host wait for the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real

import torch
from torch import Tensor

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

MIN_TEMPERATURE = 1e-6
"""Smallest temperature other than 0: its reciprocal must leave room in float32."""


def is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def check_tensor(op: str, name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise TypeError(f"{op}: {name} is a {type(value).__name__}, expected a torch.Tensor")


def check_float_matrix(op: str, name: str, tensor: Tensor, *, least_rows: int = 0) -> None:
    check_tensor(op, name, tensor)
    if tensor.ndim != 2 or tensor.shape[1] == 0:
        raise ValueError(
            f"{op}: {name} is {list(tensor.shape)}, expected two dimensions with at least one "
            "column; flatten leading dimensions first"
        )
    if tensor.shape[0] < least_rows:
        raise ValueError(f"{op}: {name} is {list(tensor.shape)}, expected at least one row")
    if tensor.dtype not in FLOATS:
        raise TypeError(f"{op}: {name} is {tensor.dtype}, expected a floating-point tensor")


def check_integer_vector(op: str, name: str, tensor: Tensor) -> None:
    check_tensor(op, name, tensor)
    fits = tensor.dtype in (torch.int32, torch.int64)
    if tensor.ndim != 1 or not fits:
        raise (ValueError if fits else TypeError)(
            f"{op}: {name} is {list(tensor.shape)} {tensor.dtype}, expected one dimension of "
            "torch.int64 or torch.int32"
        )


def check_exactly(
    op: str, name: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype, meaning: str
) -> None:
    """A tensor that has one shape and one dtype; `meaning` ends the sentence."""
    check_tensor(op, name, tensor)
    if tensor.shape != shape or tensor.dtype != dtype:
        raise (ValueError if tensor.dtype == dtype else TypeError)(
            f"{op}: {name} is {list(tensor.shape)} {tensor.dtype}, expected {list(shape)} {dtype}"
            f"{meaning}"
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
    number = is_number(temperature)
    if not number or not (temperature == 0 or MIN_TEMPERATURE <= temperature < math.inf):
        raise (ValueError if number else TypeError)(
            f"{op}: temperature={temperature!r}, expected 0 (arg-max) or a finite number of at "
            f"least {MIN_TEMPERATURE}"
        )


def check_count(
    op: str, name: str, value: object, least: int, most: int | None, allowed: str
) -> None:
    """An int from `least` to `most`, either end included; `allowed` says so in words."""
    if not is_int(value):
        raise TypeError(f"{op}: {name}={value!r}, expected an int {allowed}")
    assert isinstance(value, int)
    if value < least or (most is not None and value > most):
        raise ValueError(f"{op}: {name}={value!r}, expected an int {allowed}")


def check_columns(
    op: str, width: int, valid_vocab: int | None, banned_ids: Sequence[int] | None
) -> tuple[int, ...]:
    if valid_vocab is not None:
        allowed = f"from 1 to the {width} columns"
        check_count(op, "valid_vocab", valid_vocab, 1, width, allowed)
    if banned_ids is None:
        return ()
    if not isinstance(banned_ids, Sequence) or isinstance(banned_ids, (str, bytes)):
        raise TypeError(
            f"{op}: banned_ids is a {type(banned_ids).__name__}, expected a host sequence of ints"
        )
    banned = tuple(banned_ids)
    for token in banned:
        if not is_int(token) or not 0 <= token < width:
            raise (ValueError if is_int(token) else TypeError)(
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
