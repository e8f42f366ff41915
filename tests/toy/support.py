"""Running rendered code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from codila.toy import Problem


def function(header: str, body: str, name: str) -> Callable[..., Any]:
    """The function called ``name`` that ``header + body`` defines."""
    namespace: dict[str, Any] = {}
    exec(header + body, namespace)
    return namespace[name]


def passes(problem: Problem, body: str) -> bool:
    """Whether ``body`` passes the problem's tests."""
    check = function("", problem.tests, "check")
    try:
        check(function(problem.prompt, body, problem.entry_point))
    except Exception:
        return False
    return True
