"""Every spelling of a composition computes what its definition says."""

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from codila.toy.body import render_body
from codila.toy.chooser import Chooser, enumerate_spellings
from codila.toy.composition import Composition, draw, is_meaningful
from codila.toy.docstring import render_docstring
from codila.toy.pieces import MAPS, PREDICATES
from codila.toy.problem import select_inputs
from codila.toy.reductions import REDUCTIONS
from codila.toy.sources import SOURCES

Build = Callable[[str, str, str], Callable[..., Any]]


def _parameters(c: Composition) -> tuple[str, ...]:
    return tuple(names[0] for names in c.pieces[0].parameters)


def _pick(rng: random.Random, table: dict, kind: str) -> tuple[str, Any]:
    piece = rng.choice([piece for (piece_kind, _), piece in table.items() if piece_kind == kind])
    return piece.name, rng.choice(piece.constants)


def _one_per_combination() -> list[Composition]:
    """Each source x reduction x map and source x reduction x predicate, with one constant."""
    rng = random.Random(0)
    seen: set[tuple[str, ...]] = set()
    chosen = []
    for source in SOURCES.values():
        for reduction, _ in itertools.product(source.reductions, range(80)):
            c = Composition(
                (source.name, rng.choice(source.constants)),
                _pick(rng, PREDICATES, source.kind),
                _pick(rng, MAPS, source.map_kind),
                (reduction, rng.choice(REDUCTIONS[reduction].constants)),
            )
            head = (source.name, reduction)
            combinations = {(*head, "map", c.map[0]), (*head, "predicate", c.predicate[0])}
            if combinations <= seen or not is_meaningful(c) or select_inputs(c) is None:
                continue
            seen |= combinations
            chosen.append(c)
    branches: dict[tuple[str, ...], Composition] = {}
    while len(branches) < 80:
        c = draw(rng)
        if c.otherwise is not None and select_inputs(c) is not None:
            branches.setdefault((c.source[0], c.reduction[0], c.map[0], c.otherwise[0]), c)
    return chosen + list(branches.values())


def _mismatch(c: Composition, body: str, function: Build) -> str | None:
    parameters = _parameters(c)
    candidate = function(f"def f({', '.join(parameters)}):\n", body, "f")
    inputs = select_inputs(c)
    assert inputs is not None
    for args in inputs:
        expected = c.evaluate(*args)
        if (got := candidate(*args)) != expected or type(got) is not type(expected):
            return f"{c.key} on {args}: {got!r}, expected {expected!r}\n{body}"
    return None


@pytest.fixture(scope="module")
def combinations() -> list[Composition]:
    return _one_per_combination()


def test_every_spelling_agrees_with_the_definition(
    combinations: list[Composition], function: Build
) -> None:
    bodies = 0
    for c in combinations:
        spellings = set(enumerate_spellings(lambda ch, c=c: render_body(c, _parameters(c), ch)))
        assert len(spellings) > 1, c.key
        for body in spellings:
            assert (problem := _mismatch(c, body, function)) is None, problem
        bodies += len(spellings)
    assert bodies > 10_000


def test_every_piece_is_covered(combinations: list[Composition]) -> None:
    predicates = {(c.pieces[0].kind, c.predicate[0]) for c in combinations}
    maps = {(c.pieces[0].map_kind, c.map[0]) for c in combinations}
    reductions = {c.reduction[0] for c in combinations}
    assert (predicates, maps, reductions) == (set(PREDICATES), set(MAPS), set(REDUCTIONS))


def test_names_never_collide(function: Build) -> None:
    rng = random.Random(1)
    for _ in range(1000):
        c = draw(rng)
        if select_inputs(c) is None:
            continue
        ch = Chooser(rng)
        parameters = tuple(ch.name(names) for names in c.pieces[0].parameters)
        body = render_body(c, parameters, ch)
        candidate = function(f"def f({', '.join(parameters)}):\n", body, "f")
        for args in select_inputs(c) or ():
            assert candidate(*args) == c.evaluate(*args), f"{c.key}\n{body}"


def test_docstrings_are_complete(combinations: list[Composition]) -> None:
    for c in combinations:
        phrasings = set(
            enumerate_spellings(lambda ch, c=c: render_docstring(c, _parameters(c), ch))
        )
        assert len(phrasings) > 1
        for text in phrasings:
            assert not set("{}") & set(text) and "  " not in text and text.endswith("."), text


def test_one_docstring_has_one_meaning() -> None:
    meaning: dict[str, str] = {}
    rng = random.Random(2)
    for _ in range(20_000):
        c = draw(rng)
        text = f"{c.pieces[0].inputs} {render_docstring(c, _parameters(c), Chooser(rng))}"
        assert meaning.setdefault(text, c.key) == c.key, text


def test_every_source_is_drawn() -> None:
    rng = random.Random(3)
    assert {draw(rng).source[0] for _ in range(2000)} == set(SOURCES)
