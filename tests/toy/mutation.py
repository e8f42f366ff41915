"""Small mistakes in a solution, of the kind a language model makes."""

from __future__ import annotations

import random
import re

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


def mutate(problem: Problem, rng: random.Random) -> str | None:
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
