"""Helpers of the toy-problem tests, as fixtures: running rendered code, and small mistakes."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest

from codila.toy import Problem

_SWAPS = (
    (r" \+= ", (" -= ",)),
    (r" \*= ", (" += ",)),
    (r"(?<=\w) \+ (?=\w)", (" - ", " * ")),
    (r"(?<=\w) - (?=\w)", (" + ",)),
    (r" \* ", (" + ",)),
    (r" \*\* ", (" * ",)),
    (r" // ", (" % ", " * ")),
    (r" % (?=\d(?! ==))", (" // ",)),
    (r" > ", (" < ", " >= ")),
    (r" < ", (" > ", " <= ")),
    (r" == ", (" != ",)),
    (r"\bsum\(", ("max(", "len(")),
    (r"\bmax\(", ("min(",)),
    (r"\bmin\(", ("max(",)),
    (r"\bsorted\(", ("list(",)),
    (r"reverse=True", ("reverse=False",)),
    (r"\.upper\(", (".lower(",)),
    (r"\.lower\(", (".upper(",)),
    (r"\.startswith\(", (".endswith(",)),
    (r"\.endswith\(", (".startswith(",)),
    (r"\.isupper\(", (".islower(",)),
    (r"\.islower\(", (".isupper(",)),
    (r"\[::-1\]", ("[:-1]",)),
    (r"\[0\]", ("[-1]",)),
    (r"\[-1\]", ("[0]",)),
    (r"return True", ("return False",)),
)


def _mutate(problem: Problem, rng: random.Random) -> str | None:
    """The solution with one operator, comparison, call or constant changed, or None."""
    changes: list[tuple[int, int, str]] = []
    for pattern, replacements in _SWAPS:
        for match in re.finditer(pattern, problem.solution):
            changes += [(*match.span(), replacement) for replacement in replacements]
    for match in re.finditer(r"(?<![\w\[])[2-9]\b|\b[12][0-9]\b", problem.solution):
        changes += [(*match.span(), str(int(match.group()) + step)) for step in (-1, 1)]
    if not changes:
        return None
    start, end, text = rng.choice(changes)
    return problem.solution[:start] + text + problem.solution[end:]


def _function(header: str, body: str, name: str) -> Callable[..., Any]:
    """The function called ``name`` that ``header + body`` defines."""
    namespace: dict[str, Any] = {}
    exec(header + body, namespace)
    return namespace[name]


def _passes(problem: Problem, body: str) -> bool:
    """Whether ``body`` passes the problem's tests."""
    check = _function("", problem.tests, "check")
    try:
        check(_function(problem.prompt, body, problem.entry_point))
    except Exception:
        return False
    return True


@pytest.fixture(scope="session")
def function() -> Callable[[str, str, str], Callable[..., Any]]:
    """``function(header, body, name)``: the function that the text defines."""
    return _function


@pytest.fixture(scope="session")
def passes() -> Callable[[Problem, str], bool]:
    """``passes(problem, body)``: whether the body passes the problem's tests."""
    return _passes


@pytest.fixture(scope="session")
def mutate() -> Callable[[Problem, random.Random], str | None]:
    """``mutate(problem, rng)``: the solution with one small mistake, or None."""
    return _mutate
