"""Compositions: source x predicate x map x reduction, without spelling and without names."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, TypeVar

from codila.toy.pieces import MAPS, PREDICATES, Map, Predicate
from codila.toy.reductions import REDUCTIONS, Reduction
from codila.toy.sources import SOURCES, Source

Choice = tuple[str, Any]
"""The name of a piece and its constant (None where it has none)."""

SPLITS = ("train", "dev", "test")

_NO_MAP = ("count", "any")
_BRANCH_REDUCTIONS = ("sum", "list", "max", "value")
_BRANCH_SOURCES = ("list", "upto", "digits", "words", "scalar")
_IMPLIES_NONNEGATIVE = {"positive", "gt", "even_gt"}


@dataclass(frozen=True)
class Composition:
    """The meaning of one problem.

    With ``otherwise`` it is a branch: every element takes ``map`` if the predicate holds and
    ``otherwise`` if not; without, the predicate filters.
    """

    source: Choice
    predicate: Choice
    map: Choice
    reduction: Choice
    otherwise: Choice | None = None

    @cached_property
    def pieces(self) -> tuple[Source, Predicate, Map, Reduction]:
        """The table entries behind the names."""
        source = SOURCES[self.source[0]]
        return (
            source,
            PREDICATES[source.kind, self.predicate[0]],
            MAPS[source.map_kind, self.map[0]],
            REDUCTIONS[self.reduction[0]],
        )

    @property
    def key(self) -> str:
        """A canonical text of the meaning: equal branches written two ways share one key."""
        predicate, then, otherwise = self.predicate, self.map, self.otherwise
        if otherwise is not None:
            name, k = predicate
            if name == "odd":
                predicate, then, otherwise = ("even", None), otherwise, then
            elif name == "lt":
                predicate, then, otherwise = ("gt", k - 1), otherwise, then
        fields = (self.source, predicate, then, self.reduction, otherwise)
        return "|".join(
            field[0] if field[1] is None else f"{field[0]}:{field[1]}"
            for field in fields
            if field is not None
        )

    def constants(self) -> list[Any]:
        """The constants of all pieces."""
        fields = (self.source, self.predicate, self.map, self.reduction, self.otherwise)
        return [field[1] for field in fields if field is not None and field[1] is not None]

    def evaluate(self, *args: Any) -> Any:
        """The value the definition gives, computed without any rendered code."""
        source, predicate, mapping, reduction = self.pieces
        elements = source.elements(args, self.source[1])
        k, j = self.predicate[1], self.map[1]
        if self.otherwise is not None:
            other, i = MAPS[source.map_kind, self.otherwise[0]], self.otherwise[1]
            values = [
                mapping.apply(x, y, j) if predicate.test(x, y, k) else other.apply(x, y, i)
                for x, y in elements
            ]
        else:
            kept = [(x, y) for x, y in elements if predicate.test(x, y, k)]
            if reduction.name == "dict":
                return {x: mapping.apply(x, y, j) for x, y in kept}
            values = [mapping.apply(x, y, j) for x, y in kept]
        return reduction.apply(values, self.reduction[1])


def is_meaningful(c: Composition) -> bool:
    """Static rules: types fit, every piece matters, and no shorter composition means the same."""
    source, predicate, mapping, reduction = c.pieces
    plain, every = mapping.name == "same", predicate.name == "every"
    if c.otherwise is not None:
        return _is_meaningful_branch(c)
    if reduction.name not in source.reductions or reduction.name == "value":
        return False
    if reduction.name in _NO_MAP and (not plain or every):
        return False
    if every and plain and reduction.name not in ("product", "running"):
        return False
    if mapping.kind == "keyed" and every:
        return False
    if mapping.kind == "word" or mapping.kind == "char":
        numeric = reduction.name in ("sum", "max", "min")
        if (numeric and mapping.result != "int") or (
            reduction.name == "join" and mapping.result != "str"
        ):
            return False
    if reduction.name == "dict" and plain:
        return False
    return _pieces_interact(source, predicate, mapping, c)


def _pieces_interact(source: Source, predicate: Predicate, mapping: Map, c: Composition) -> bool:
    """Rules about pairs of pieces of which one would make the other pointless."""
    pair = (predicate.name, mapping.name)
    if source.nonnegative:
        if mapping.name == "absolute" or predicate.name in ("negative", "positive"):
            return False
    if source.name == "digits":
        if predicate.name in ("even_gt", "odd_lt"):
            return False
        if predicate.name in ("gt", "lt", "divisible") and c.predicate[1] > 8:
            return False
    if c.reduction[0] == "running" and predicate.name in ("even_gt", "odd_lt"):
        return False
    if mapping.name == "absolute" and predicate.name in _IMPLIES_NONNEGATIVE:
        return False
    if source.kind == "char":
        if mapping.name == "number" and predicate.name != "digit":
            return False
        if predicate.name == "digit" and mapping.name in ("uppercase", "lowercase"):
            return False
        if pair in {("upper", "uppercase"), ("lower", "lowercase"), ("vowel", "lowercase")}:
            return False
    if pair in {("starts", "initial"), ("ends", "final"), ("length", "size")}:
        return False
    return True


def _is_meaningful_branch(c: Composition) -> bool:
    source, predicate, mapping, reduction = c.pieces
    assert c.otherwise is not None
    other = MAPS[source.map_kind, c.otherwise[0]]
    if source.name not in _BRANCH_SOURCES or reduction.name not in _BRANCH_REDUCTIONS:
        return False
    if (reduction.name == "value") != (source.name == "scalar"):
        return False
    if predicate.name in ("every", "even_gt", "odd_lt", "negative"):
        return False
    if mapping.name == other.name or mapping.result != other.result:
        return False
    if source.kind == "word":
        if (mapping.result == "str") != (reduction.name == "list"):
            return False
        return (predicate.name, mapping.name) not in {
            ("starts", "initial"), ("ends", "final"), ("length", "size"),
        }  # fmt: skip
    if source.nonnegative and (
        predicate.name == "positive" or "absolute" in (mapping.name, other.name)
    ):
        return False
    if source.name == "digits" and predicate.name in ("gt", "lt") and c.predicate[1] > 8:
        return False
    if predicate.name == "lt" and "absolute" == other.name:
        return False
    return not (mapping.name == "absolute" and predicate.name in _IMPLIES_NONNEGATIVE)


P = TypeVar("P", Predicate, Map)


def _of_kind(table: dict[tuple[str, str], P], kind: str) -> tuple[P, ...]:
    return tuple(piece for (piece_kind, _), piece in table.items() if piece_kind == kind)


# Two conditions at once are the hardest to phrase and to spell: rare, as are wide sources.
_PREDICATE_WEIGHTS = {"every": 4, "even_gt": 1, "odd_lt": 1}
_SOURCE_DRAWS = tuple(s for s in SOURCES.values() for _ in range(s.weight))
_PREDICATE_DRAWS = {
    kind: tuple(
        piece
        for piece in _of_kind(PREDICATES, kind)
        for _ in range(_PREDICATE_WEIGHTS.get(piece.name, 2))
    )
    for kind in ("int", "word", "char", "pair")
}
_MAP_DRAWS = {
    kind: tuple(
        piece for piece in _of_kind(MAPS, kind) for _ in range(3 if piece.name == "same" else 1)
    )
    for kind in ("int", "word", "char", "keyed", "pair")
}
_REDUCTION_DRAWS = {
    source.name: tuple(
        REDUCTIONS[name] for name in source.reductions for _ in range(REDUCTIONS[name].weight)
    )
    for source in SOURCES.values()
}
_BRANCH_RATE = 0.1


def draw(rng: random.Random) -> Composition:
    """A meaningful composition; pieces are drawn first, then their constants."""
    choice = rng.choice
    while True:
        source = choice(_SOURCE_DRAWS)
        predicate = choice(_PREDICATE_DRAWS[source.kind])
        mapping = choice(_MAP_DRAWS[source.map_kind])
        reduction = choice(_REDUCTION_DRAWS[source.name])
        if reduction.name in _NO_MAP:
            mapping = MAPS[source.map_kind, "same"]
        otherwise: Choice | None = None
        if source.name == "scalar" or (
            source.name in _BRANCH_SOURCES and rng.random() < _BRANCH_RATE
        ):
            other = choice(_MAP_DRAWS[source.map_kind])
            otherwise = (other.name, choice(other.constants))
        composition = Composition(
            (source.name, choice(source.constants)),
            (predicate.name, choice(predicate.constants)),
            (mapping.name, choice(mapping.constants)),
            (reduction.name, choice(reduction.constants)),
            otherwise,
        )
        if is_meaningful(composition):
            return composition


def every_composition(branches: bool = True) -> Iterator[Composition]:
    """All meaningful compositions, constants included."""
    for source in SOURCES.values():
        maps = [(m.name, k) for m in _of_kind(MAPS, source.map_kind) for k in m.constants]
        heads = [
            ((source.name, s), (p.name, k), (name, r))
            for s in source.constants
            for p in _of_kind(PREDICATES, source.kind)
            for k in p.constants
            for name in source.reductions
            for r in REDUCTIONS[name].constants
        ]
        for head in heads:
            others: list[Choice | None] = [None]
            if branches and source.name in _BRANCH_SOURCES and head[2][0] in _BRANCH_REDUCTIONS:
                others += maps
            for mapping in maps:
                for other in others:
                    c = Composition(head[0], head[1], mapping, head[2], other)
                    if is_meaningful(c):
                        yield c


def neighbours(c: Composition) -> Iterator[Composition]:
    """Compositions one small mistake away: a constant off by one, a flipped or missing piece.

    The tests of a problem must tell it apart from each of them.
    """
    source, predicate, mapping, reduction = c.pieces
    for field, step in (("source", 1), ("predicate", predicate.step), ("map", 1), ("otherwise", 1)):
        choice = getattr(c, field)
        if choice is not None and isinstance(choice[1], int):
            for k in (choice[1] - step, choice[1] + step):
                if k > 0:
                    yield replace(c, **{field: (choice[0], k)})
    flips = {"even": "odd", "odd": "even", "positive": "negative", "negative": "positive"}
    flips |= {"gt": "lt", "lt": "gt", "even_gt": "gt", "odd_lt": "lt"}
    flips |= {"starts": "contains", "ends": "contains", "longer": "shorter", "shorter": "longer"}
    flips |= {"upper": "lower", "lower": "upper", "first_gt": "first_lt", "first_lt": "first_gt"}
    if predicate.name in flips:
        yield replace(c, predicate=(flips[predicate.name], c.predicate[1]))
    if predicate.name != "every":
        yield replace(c, predicate=("every", None))
    if mapping.name not in ("same", "key") and source.kind != "pair":
        if mapping.result == "int" and source.kind == "int":
            yield replace(c, map=("same", None))
    if c.otherwise is not None:
        yield replace(c, map=c.otherwise, otherwise=c.map)
    swaps = {"sum": "max", "max": "min", "min": "max", "list": "sorted", "sorted": "list"}
    swaps |= {"descending": "list", "product": "sum", "running": "list"}
    if reduction.name in swaps and source.name not in ("upto", "indices"):
        yield replace(c, reduction=(swaps[reduction.name], None))


@cache
def split_of(composition: str) -> str:
    """The split of a composition key: 5 % dev, 5 % test, the rest train, by a stable hash."""
    share = int.from_bytes(hashlib.sha256(composition.encode()).digest()[:4], "big") / 2**32
    return "dev" if share < 0.05 else "test" if share < 0.10 else "train"
