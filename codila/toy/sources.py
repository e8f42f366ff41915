"""Sources: where the elements of a composition come from, and which inputs exercise them."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_INT_NAMES = ("x", "n", "v", "num", "item")
_LIST_PARAMETERS = ("nums", "values", "xs", "numbers", "data")
_WORDS = (
    "apple tree Rose star test arrow area error eager oboe soot Sea tar rat era Toast orator "
    "estate sass otter at or so to be Stereo radar a art trees roast Ear easel tomatoes"
).split()


@dataclass(frozen=True)
class Source:
    """A kind of input and the sequence of elements taken from it.

    ``parameters`` holds the possible names of each parameter; ``inputs`` the type of each
    argument (see :func:`random_argument`). ``elements`` is the meaning: argument tuple and
    constant to a list of ``(x, y)``. ``iterables`` are code templates over ``{p}``, ``{q}``
    (the parameters) and ``{k}``; ``helpers`` build the elements as a list beforehand.
    ``kind`` selects the predicates, ``map_kind`` the maps. ``nouns`` are (plural, singular).
    """

    name: str
    kind: str
    map_kind: str
    inputs: tuple[str, ...]
    parameters: tuple[tuple[str, ...], ...]
    elements: Callable[[tuple[Any, ...], Any], list[tuple[Any, Any]]]
    iterables: tuple[str, ...]
    variables: tuple[str, ...]
    second: tuple[str, ...] = ()
    helpers: tuple[str, ...] = ()
    helper_names: tuple[str, ...] = ()
    nouns: tuple[tuple[str, str], ...] = ()
    tails: tuple[str, ...] = ()
    constants: tuple[Any, ...] = (None,)
    reductions: tuple[str, ...] = ()
    nonnegative: bool = False
    weight: int = 1


def _alone(items: Any) -> list[tuple[Any, Any]]:
    return [(item, None) for item in items]


_INT_REDUCTIONS = (
    "sum", "product", "max", "min", "count", "list", "sorted", "descending", "first", "any",
    "running", "dict",
)  # fmt: skip
_RANGE_REDUCTIONS = ("sum", "product", "max", "count", "list", "descending", "running", "dict")
_TEXT_REDUCTIONS = (
    "sum", "max", "min", "count", "list", "sorted", "first", "any", "join", "dict"
)  # fmt: skip
_NUMBERS = (("numbers", "number"), ("integers", "integer"), ("elements", "element"))

_SOURCES = (
    Source(
        "list", "int", "int", ("ints",), (_LIST_PARAMETERS,),
        lambda args, k: _alone(args[0]), ("{p}",), _INT_NAMES,
        nouns=_NUMBERS, tails=("in {p}", "in the list {p}"), reductions=_INT_REDUCTIONS, weight=26,
    ),
    Source(
        "first", "int", "int", ("ints",), (_LIST_PARAMETERS,),
        lambda args, k: _alone(x for i, x in enumerate(args[0]) if i < k),
        ("{p}[:{k}]",), _INT_NAMES,
        helpers=("{p}[:{k}]",), helper_names=("head", "first", "part"),
        nouns=_NUMBERS[:2], tails=("among the first {k} of {p}",),
        constants=(3, 4, 5, 6), reductions=_INT_REDUCTIONS, weight=2,
    ),
    Source(
        "upto", "int", "int", ("size",), (("n", "limit", "m", "last"),),
        lambda args, k: _alone(i + 1 for i in range(args[0])), ("range(1, {p} + 1)",),
        ("x", "i", "v", "num", "k"),
        nouns=(("integers", "integer"), ("numbers", "number")),
        tails=("from 1 to {p}", "from 1 to {p} inclusive"),
        reductions=_RANGE_REDUCTIONS, nonnegative=True, weight=7,
    ),
    Source(
        "digits", "int", "int", ("number",), (("n", "number", "m", "value"),),
        lambda args, k: _alone("0123456789".index(c) for c in str(args[0])),
        ("map(int, str({p}))",), ("d", "x", "digit", "v"),
        helpers=("[int(c) for c in str({p})]", "list(map(int, str({p})))"),
        helper_names=("digits", "ds", "parts"),
        nouns=(("digits", "digit"), ("decimal digits", "decimal digit")), tails=("of {p}",),
        reductions=_INT_REDUCTIONS, nonnegative=True, weight=9,
    ),
    Source(
        "values", "int", "int", ("table",), (("d", "scores", "table", "counts"),),
        lambda args, k: _alone(args[0][key] for key in args[0]), ("{p}.values()",), _INT_NAMES,
        helpers=("list({p}.values())",), helper_names=("values", "items", "vals"),
        nouns=(("values", "value"),), tails=("of the dict {p}", "in the dict {p}"),
        reductions=_INT_REDUCTIONS, weight=9,
    ),
    Source(
        "words", "word", "word", ("words",), (("words", "names", "tokens", "strings"),),
        lambda args, k: _alone(args[0]), ("{p}",), ("w", "word", "s", "item"),
        nouns=(("words", "word"), ("strings", "string")), tails=("in the list {p}", "in {p}"),
        reductions=_TEXT_REDUCTIONS, weight=12,
    ),
    Source(
        "split", "word", "word", ("sentence",), (("text", "sentence", "line"),),
        lambda args, k: _alone(args[0].split()), ("{p}.split()",), ("w", "word", "s", "item"),
        helpers=("{p}.split()",), helper_names=("words", "parts", "tokens"),
        nouns=(("words", "word"),), tails=("of the string {p}", "in the string {p}"),
        reductions=_TEXT_REDUCTIONS, weight=10,
    ),
    Source(
        "chars", "char", "char", ("string",), (("s", "text", "string"),),
        lambda args, k: _alone(args[0][i] for i in range(len(args[0]))),
        ("{p}",), ("c", "ch", "char", "x"),
        nouns=(("characters", "character"),), tails=("of {p}", "in {p}", "of the string {p}"),
        reductions=_TEXT_REDUCTIONS, weight=12,
    ),
    Source(
        "keys", "int", "keyed", ("table",), (("d", "scores", "table", "counts"),),
        lambda args, k: [(args[0][key], key) for key in args[0]], ("{p}.items()",),
        ("v", "value", "x"), ("k", "key", "name"),
        nouns=(("keys", "key"),), tails=("of the dict {p}", "in the dict {p}"),
        reductions=("list", "sorted", "join"), weight=4,
    ),
    Source(
        "indices", "int", "keyed", ("ints",), (_LIST_PARAMETERS,),
        lambda args, k: [(x, i) for i, x in enumerate(args[0])], ("enumerate({p})",),
        ("x", "v", "num", "item"), ("i", "j", "index"),
        nouns=_NUMBERS, tails=("in {p}", "in the list {p}"),
        reductions=("sum", "list", "first", "max", "descending"), weight=2,
    ),
    Source(
        "pairs", "pair", "pair", ("ints", "ints"), (("a", "xs", "left"), ("b", "ys", "right")),
        lambda args, k: [(args[0][i], args[1][i]) for i in range(min(map(len, args)))],
        ("zip({p}, {q})",), ("x", "u", "m"), ("y", "v", "n"),
        nouns=(("corresponding elements", ""), ("corresponding numbers", "")),
        tails=("of {p} and {q}",),
        reductions=("sum", "product", "max", "min", "list", "sorted", "descending"), weight=2,
    ),
    Source(
        "scalar", "int", "int", ("scalar",), (("n", "x", "num", "value"),),
        lambda args, k: _alone(args), (), (), reductions=("value",), weight=4,
    ),
)  # fmt: skip

SOURCES: dict[str, Source] = {source.name: source for source in _SOURCES}


def _random_int(rng: random.Random, near: list[int]) -> int:
    if near and rng.random() < 0.5:
        return rng.choice(near)
    return rng.choice((rng.randint(-9, -1), rng.randint(1, 9), rng.randint(0, 24)))


def random_argument(rng: random.Random, kind: str, size: int, constants: list[Any]) -> Any:
    """An argument of type ``kind`` with about ``size`` elements, near the given constants.

    Sizes from 0 up give the edge cases: an empty list, string or dict, ``range(0)``, ``"0"``.
    """
    near = [k * s + d for k in constants if isinstance(k, int) for s in (1, 2) for d in (-1, 0, 1)]
    if kind == "ints":
        return [_random_int(rng, near) for _ in range(size)]
    if kind == "size":
        return size if size < 3 else rng.randint(3, 12) + (rng.choice(near) if near else 4)
    if kind == "number":
        return rng.randint(10 ** max(size - 1, 0), 10**size - 1) if size else 0
    if kind == "table":
        keys = rng.sample("abcdefghpqrxyz", size)
        return {key: _random_int(rng, near) for key in keys}
    if kind == "scalar":
        return _random_int(rng, near) if size else 0
    if kind == "words":
        return [rng.choice(_WORDS) for _ in range(size)]
    if kind == "sentence":
        return " ".join(rng.choice(_WORDS) for _ in range(size))
    if kind == "string":
        return "".join(rng.choice("abcdeioustzABEIKOUZ0123456789 -") for _ in range(2 * size))
    raise AssertionError(f"unknown argument kind {kind!r}")
