"""Reductions: what a composition does with the values it has gathered."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Reduction:
    """A function of the gathered values.

    ``apply`` is the meaning, over the values and the constant. ``phrases`` name the result
    ("the sum of {xs}"); ``actions`` end a sentence that began with "Take {xs}, square each".
    """

    name: str
    apply: Callable[[Sequence[Any], Any], Any]
    phrases: tuple[str, ...]
    actions: tuple[str, ...] = ()
    constants: tuple[Any, ...] = (None,)
    weight: int = 2


_SEPARATORS = {"": "into one string", " ": "with spaces", "-": "with '-'", ",": "with ','"}

_REDUCTIONS = (
    Reduction(
        "sum", lambda values, k: sum(values),
        ("the sum of {xs}", "the total of {xs}"), ("return the sum", "return their sum"), weight=4,
    ),
    Reduction(
        "product", lambda values, k: math.prod(values),
        ("the product of {xs}",), ("return the product",),
    ),
    Reduction(
        "max", lambda values, k: sorted(values)[-1] if values else 0,
        ("the largest of {xs}, or 0 if there are none",
         "the maximum of {xs}, or 0 if there are none"),
        ("return the largest, or 0 if there are none",), weight=3,
    ),
    Reduction(
        "min", lambda values, k: sorted(values)[0] if values else 0,
        ("the smallest of {xs}, or 0 if there are none",
         "the minimum of {xs}, or 0 if there are none"),
        ("return the smallest, or 0 if there are none",), weight=3,
    ),
    Reduction("count", lambda values, k: len(values), ("the number of {xs}", "the count of {xs}")),
    Reduction(
        "list", lambda values, k: list(values),
        ("a list of {xs}", "the list of {xs}"),
        ("return the list", "return them as a list"), weight=4,
    ),
    Reduction(
        "sorted", lambda values, k: sorted(values),
        ("a sorted list of {xs}", "the sorted list of {xs}"), ("return them sorted",), weight=3,
    ),
    Reduction(
        "descending", lambda values, k: sorted(values)[::-1],
        ("a list of {xs}, in descending order", "a list of {xs}, from largest to smallest"),
        ("return them in descending order",), weight=1,
    ),
    Reduction(
        "first", lambda values, k: values[0] if values else None,
        ("the first of {xs}, or None if there are none",),
        ("return the first, or None if there are none",), weight=3,
    ),
    Reduction(
        "any", lambda values, k: len(values) > 0,
        ("whether any {one} {state}", "True if any {one} {state}, otherwise False"), weight=1,
    ),
    Reduction(
        "running", lambda values, k: [sum(values[: i + 1]) for i in range(len(values))],
        ("the list of running totals of {xs}", "the list of running sums of {xs}"),
        ("return the list of running totals",),
    ),
    Reduction(
        "join", lambda values, k: "".join(v if i == 0 else k + v for i, v in enumerate(values)),
        ("the string of {xs}, joined {joint}", "{xs}, joined {joint}"),
        ("return them joined {joint}",),
        constants=tuple(_SEPARATORS), weight=3,
    ),
    Reduction(
        "dict", lambda values, k: dict(values),
        ("a dict from each of {xs} to {its}", "a dict mapping each of {xs} to {its}"), weight=1,
    ),
    Reduction("value", lambda values, k: values[0], ("{a} if {x} {state}, otherwise {b}",)),
)  # fmt: skip

REDUCTIONS: dict[str, Reduction] = {reduction.name: reduction for reduction in _REDUCTIONS}


def joint(separator: str) -> str:
    """How a docstring says that strings are joined by ``separator``."""
    return _SEPARATORS[separator]
