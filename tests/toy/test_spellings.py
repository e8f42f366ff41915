"""Every spelling of a composition computes what its definition says."""

import random

import pytest

from codila.toy.body import render_body
from codila.toy.chooser import Chooser, enumerate_spellings
from codila.toy.composition import Composition, draw, every_composition
from codila.toy.docstring import render_docstring
from codila.toy.problem import select_inputs
from codila.toy.sources import SOURCES
from tests.toy.support import function


def _parameters(c: Composition) -> tuple[str, ...]:
    return tuple(names[0] for names in c.pieces[0].parameters)


def _one_per_combination() -> list[Composition]:
    """Each source x reduction x map and source x reduction x predicate, with one constant."""
    rng = random.Random(0)
    everything = list(every_composition(branches=False))
    rng.shuffle(everything)
    seen: set[tuple[str, ...]] = set()
    chosen = []
    for c in everything:
        head = (c.source[0], c.reduction[0])
        combinations = {(*head, "map", c.map[0]), (*head, "predicate", c.predicate[0])}
        if not combinations <= seen and select_inputs(c) is not None:
            seen |= combinations
            chosen.append(c)
    branches: dict[tuple[str, ...], Composition] = {}
    while len(branches) < 150:
        c = draw(rng)
        if c.otherwise is not None and select_inputs(c) is not None:
            branches.setdefault((c.source[0], c.reduction[0], c.map[0], c.otherwise[0]), c)
    return chosen + list(branches.values())


def _mismatch(c: Composition, body: str) -> str | None:
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


def test_every_spelling_agrees_with_the_definition(combinations: list[Composition]) -> None:
    bodies = 0
    for c in combinations:
        spellings = set(enumerate_spellings(lambda ch, c=c: render_body(c, _parameters(c), ch)))
        assert len(spellings) > 1, c.key
        for body in spellings:
            assert (problem := _mismatch(c, body)) is None, problem
        bodies += len(spellings)
    assert bodies > 10_000


def test_names_never_collide() -> None:
    rng = random.Random(1)
    for _ in range(2000):
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
