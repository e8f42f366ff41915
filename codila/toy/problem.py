"""Problems: a prompt, a reference solution and the tests that decide whether a body is right."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from codila.toy.body import render_body
from codila.toy.chooser import Chooser
from codila.toy.composition import SPLITS, Composition, draw, neighbours, split_of
from codila.toy.docstring import render_docstring
from codila.toy.sources import random_argument

_FUNCTION_NAMES = ("f", "f", "f", "g", "solve", "compute", "func", "run")
_CANDIDATES, _MIN_ASSERTS, _MAX_ASSERTS = 48, 6, 10


@dataclass(frozen=True)
class Problem:
    """A programming problem in HumanEval's form.

    ``prompt + solution`` is a complete function called ``entry_point``; ``tests`` defines
    ``check(candidate)``, which raises AssertionError for a wrong function.
    """

    task_id: str
    composition: str
    prompt: str
    entry_point: str
    solution: str
    tests: str


def _render(c: Composition, rng: random.Random) -> tuple[str, str, str]:
    """Entry point, prompt and solution, all spellings drawn at random."""
    ch = Chooser(rng)
    entry_point = ch.name(_FUNCTION_NAMES)
    parameters = tuple(ch.name(names) for names in c.pieces[0].parameters)
    docstring = render_docstring(c, parameters, ch)
    prompt = f'def {entry_point}({", ".join(parameters)}):\n    """{docstring}"""\n'
    return entry_point, prompt, render_body(c, parameters, ch)


def _outcome(c: Composition, args: tuple[Any, ...]) -> Any:
    try:
        return c.evaluate(*args)
    except (ValueError, TypeError, IndexError) as error:  # a neighbour may be ill-typed here
        return type(error).__name__


@lru_cache(maxsize=65536)
def select_inputs(c: Composition) -> tuple[tuple[Any, ...], ...] | None:
    """Inputs that tell ``c`` from all its neighbours, or None if there are no such inputs."""
    rng = random.Random(c.key)
    kinds, constants = c.pieces[0].inputs, c.constants()
    if c.predicate[0] in ("positive", "negative"):
        constants.append(0)
    candidates: list[tuple[Any, ...]] = []
    for i in range(_CANDIDATES):
        size = i if i < 2 else 3 + i % 5
        args = tuple(random_argument(rng, kind, size, constants) for kind in kinds)
        if args not in candidates:
            candidates.append(args)
    expected = [_outcome(c, args) for args in candidates]
    chosen = [0, 1]
    for other in neighbours(c):
        differing = [i for i, args in enumerate(candidates) if _outcome(other, args) != expected[i]]
        if not differing:
            return None
        if not set(differing) & set(chosen):
            chosen.append(differing[0])
    # Fill up with inputs whose result is new, then with any.
    results = {repr(expected[i]) for i in chosen}
    for fresh_only in (True, False):
        for i in range(2, len(candidates)):
            if len(chosen) >= _MIN_ASSERTS + 2:
                break
            if i not in chosen and not (fresh_only and repr(expected[i]) in results):
                chosen.append(i)
                results.add(repr(expected[i]))
    if len(results) < 2 or not _MIN_ASSERTS <= len(chosen) <= _MAX_ASSERTS:
        return None
    return tuple(candidates[i] for i in sorted(chosen))


def _tests(c: Composition, inputs: tuple[tuple[Any, ...], ...]) -> str:
    lines = ["def check(candidate):"]
    for args in inputs:
        expected = c.evaluate(*args)
        compare = "is" if expected is None or isinstance(expected, bool) else "=="
        lines.append(f"    assert candidate({', '.join(map(repr, args))}) {compare} {expected!r}")
    return "\n".join(lines) + "\n"


def _problem(c: Composition, rng: random.Random) -> Problem | None:
    inputs = select_inputs(c)
    if inputs is None:
        return None
    entry_point, prompt, solution = _render(c, rng)
    digest = hashlib.sha256(f"{c.key}\n{prompt}".encode()).hexdigest()[:12]
    return Problem(f"toy/{digest}", c.key, prompt, entry_point, solution, _tests(c, inputs))


def _draw(rng: random.Random, split: str) -> Composition:
    while True:
        composition = draw(rng)
        if split_of(composition.key) == split:
            return composition


def _check_split(split: str) -> None:
    if split not in SPLITS:
        raise ValueError(f"split is {split!r}; expected one of {', '.join(SPLITS)}")


def sample(rng: random.Random, split: str) -> Problem:
    """One problem of ``split`` ("train", "dev" or "test").

    Raises ValueError for another split.
    """
    _check_split(split)
    while True:
        problem = _problem(_draw(rng, split), rng)
        if problem is not None:
            return problem


def problems(split: str, n: int, seed: int) -> list[Problem]:
    """``n`` problems, the same ones for the same arguments, no composition twice.

    Raises ValueError for an unknown split, or if the split seems to hold fewer than ``n``
    compositions.
    """
    _check_split(split)
    rng = random.Random(f"{split}/{seed}")
    found: dict[str, Problem] = {}
    for _ in range(200 * n + 1000):
        if len(found) == n:
            break
        problem = sample(rng, split)
        found.setdefault(problem.composition, problem)
    if len(found) < n:
        raise ValueError(f"found {len(found)} distinct compositions in {split!r}, asked for {n}")
    return list(found.values())


def pairs(split: str, n: int, seed: int) -> Iterator[tuple[str, str]]:
    """``n`` pairs (prompt, solution) for training, without tests; deterministic for a seed.

    Raises ValueError for an unknown split.
    """
    _check_split(split)
    rng = random.Random(f"pairs/{split}/{seed}")
    for _ in range(n):
        _, prompt, solution = _render(_draw(rng, split), rng)
        yield prompt, solution
