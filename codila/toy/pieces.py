"""Predicates and maps: the two inner pieces of a composition.

Each piece has a meaning (a plain function, the oracle), one or more code spellings, and the
phrases a docstring uses for it. An element is always a pair ``(x, y)``; ``y`` is None except
for sources with two loop variables. ``k`` is the constant of the piece, None if it has none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

TERNARY, ADDITION, PRODUCT, ATOM = 0, 1, 2, 3
"""Binding strength of an expression; powers and calls count as atoms."""

_LETTERS = ("a", "e", "o", "r", "s", "t")
_DIGITS = (2, 3, 4, 5, 6, 7, 8, 9)


@dataclass(frozen=True)
class Predicate:
    """A condition on an element.

    ``code`` is its single spelling (conditions are where small models flip signs, so they
    carry no variety of their own). ``before`` and ``after`` surround the noun in "the even
    numbers in nums greater than 4"; ``states`` completes "x ...", as in "is even". ``step``
    is the smallest change of the constant that changes the meaning.
    """

    name: str
    kind: str
    test: Callable[[Any, Any, Any], bool]
    code: str
    before: str = ""
    after: tuple[str, ...] = ("",)
    states: tuple[str, ...] = ("",)
    constants: tuple[Any, ...] = (None,)
    step: int = 1


@dataclass(frozen=True)
class Map:
    """A function of an element.

    ``codes`` are (template, binding strength). ``plural`` speaks of all elements ("the
    squares of {xs}"), ``verbs`` of an action ("square each"), ``of`` of one element ("the
    square of {x}"), ``its`` of its image ("its square").
    """

    name: str
    kind: str
    result: str
    apply: Callable[[Any, Any, Any], Any]
    codes: tuple[tuple[str, int], ...]
    plural: tuple[str, ...] = ("{xs}",)
    verbs: tuple[str, ...] = ("",)
    of: tuple[str, ...] = ("{x}",)
    its: str = "itself"
    constants: tuple[Any, ...] = (None,)


def _after(*phrases: str) -> dict[str, Any]:
    """Phrases that follow the noun, and the same ones as a statement."""
    return {"after": phrases, "states": tuple(f"is {phrase}" for phrase in phrases)}


_COMPARED = (*_DIGITS, 10, 20)

_PREDICATES = (
    Predicate("every", "int", lambda x, y, k: True, ""),
    Predicate(
        "even", "int", lambda x, y, k: x % 2 == 0, "{x} % 2 == 0", "even",
        states=("is even",),
    ),
    Predicate("odd", "int", lambda x, y, k: x % 2 == 1, "{x} % 2 == 1", "odd", states=("is odd",)),
    Predicate(
        "positive", "int", lambda x, y, k: x > 0, "{x} > 0", "positive", states=("is positive",)
    ),
    Predicate(
        "negative", "int", lambda x, y, k: x < 0, "{x} < 0", "negative", states=("is negative",)
    ),
    Predicate(
        "gt", "int", lambda x, y, k: x > k, "{x} > {k}",
        constants=_COMPARED, **_after("greater than {k}", "larger than {k}"),
    ),
    Predicate(
        "lt", "int", lambda x, y, k: x < k, "{x} < {k}",
        constants=_COMPARED, **_after("less than {k}", "smaller than {k}"),
    ),
    Predicate(
        "divisible", "int", lambda x, y, k: x % k == 0, "{x} % {k} == 0",
        constants=(3, 4, 5, 6, 7), **_after("divisible by {k}"),
    ),
    Predicate(
        "even_gt", "int", lambda x, y, k: x % 2 == 0 and x > k, "{x} % 2 == 0 and {x} > {k}",
        "even", ("greater than {k}", "larger than {k}"), ("is even and greater than {k}",),
        (4, 6, 8, 10), 2,
    ),
    Predicate(
        "odd_lt", "int", lambda x, y, k: x % 2 == 1 and x < k, "{x} % 2 == 1 and {x} < {k}",
        "odd", ("less than {k}", "smaller than {k}"), ("is odd and less than {k}",),
        (5, 7, 9, 11), 2,
    ),
    Predicate("every", "word", lambda x, y, k: True, ""),
    Predicate(
        "longer", "word", lambda x, y, k: len(x) > k, "len({x}) > {k}",
        after=("longer than {k} characters", "with more than {k} characters"),
        states=("is longer than {k} characters", "has more than {k} characters"),
        constants=(2, 3, 4, 5, 6),
    ),
    Predicate(
        "shorter", "word", lambda x, y, k: len(x) < k, "len({x}) < {k}",
        after=("shorter than {k} characters", "with fewer than {k} characters"),
        states=("is shorter than {k} characters", "has fewer than {k} characters"),
        constants=(3, 4, 5, 6, 7),
    ),
    Predicate(
        "length", "word", lambda x, y, k: len(x) == k, "len({x}) == {k}",
        after=("of length {k}", "with exactly {k} characters"),
        states=("has length {k}", "has exactly {k} characters"),
        constants=(2, 3, 4, 5, 6),
    ),
    Predicate(
        "starts", "word", lambda x, y, k: x[:1] == k, '{x}.startswith("{k}")',
        after=("starting with '{k}'", "that start with '{k}'"), states=("starts with '{k}'",),
        constants=_LETTERS,
    ),
    Predicate(
        "ends", "word", lambda x, y, k: x[-1:] == k, '{x}.endswith("{k}")',
        after=("ending with '{k}'", "that end with '{k}'"), states=("ends with '{k}'",),
        constants=_LETTERS,
    ),
    Predicate(
        "contains", "word", lambda x, y, k: x.count(k) > 0, '"{k}" in {x}',
        after=("containing '{k}'", "that contain '{k}'"), states=("contains '{k}'",),
        constants=_LETTERS,
    ),
    Predicate("every", "char", lambda x, y, k: True, ""),
    Predicate(
        "digit", "char", lambda x, y, k: x in tuple("0123456789"), "{x}.isdigit()",
        after=("that are digits",), states=("is a digit",),
    ),
    Predicate(
        "letter", "char", lambda x, y, k: x.lower() != x.upper(), "{x}.isalpha()",
        after=("that are letters",), states=("is a letter",),
    ),
    Predicate(
        "upper", "char", lambda x, y, k: x != x.lower(), "{x}.isupper()",
        "uppercase", states=("is uppercase",),
    ),
    Predicate(
        "lower", "char", lambda x, y, k: x != x.upper(), "{x}.islower()",
        "lowercase", states=("is lowercase",),
    ),
    Predicate(
        "vowel", "char", lambda x, y, k: x in tuple("aeiou"), '{x} in "aeiou"',
        after=("in 'aeiou'",), states=("is in 'aeiou'",),
    ),
    Predicate("every", "pair", lambda x, y, k: True, ""),
    Predicate(
        "first_gt", "pair", lambda x, y, k: x > y, "{x} > {y}",
        after=("where the first is greater",),
    ),
    Predicate(
        "first_lt", "pair", lambda x, y, k: x < y, "{x} < {y}", after=("where the first is less",),
    ),
)  # fmt: skip

_MAPS = (
    Map("same", "int", "int", lambda x, y, k: x, (("{x}", ATOM),), of=("{x}", "{x} unchanged")),
    Map(
        "square", "int", "int", lambda x, y, k: pow(x, 2),
        (("{x} * {x}", PRODUCT), ("{x} ** 2", ATOM)), ("the squares of {xs}",), ("square each",),
        ("the square of {x}", "{x} squared"), "its square",
    ),
    Map(
        "absolute", "int", "int", lambda x, y, k: max(x, -x), (("abs({x})", ATOM),),
        ("the absolute values of {xs}",), ("take the absolute value of each",),
        ("the absolute value of {x}",), "its absolute value",
    ),
    Map(
        "double", "int", "int", lambda x, y, k: x + x,
        (("{x} * 2", PRODUCT), ("2 * {x}", PRODUCT), ("{x} + {x}", ADDITION)),
        ("the doubles of {xs}", "{xs}, each doubled"), ("double each",),
        ("the double of {x}", "twice {x}"), "its double",
    ),
    Map(
        "times", "int", "int", lambda x, y, k: x * k,
        (("{x} * {k}", PRODUCT), ("{k} * {x}", PRODUCT)),
        ("{xs}, each multiplied by {k}", "{k} times {xs}"), ("multiply each by {k}",),
        ("{x} times {k}",), "itself times {k}", (3, 4, 5, 6, 7, 8, 9),
    ),
    Map(
        "plus", "int", "int", lambda x, y, k: x + k,
        (("{x} + {k}", ADDITION), ("{k} + {x}", ADDITION)),
        ("{xs}, each increased by {k}",), ("add {k} to each",),
        ("{x} plus {k}",), "itself plus {k}", _DIGITS,
    ),
    Map(
        "minus", "int", "int", lambda x, y, k: x - k, (("{x} - {k}", ADDITION),),
        ("{xs}, each decreased by {k}",), ("subtract {k} from each",),
        ("{x} minus {k}",), "itself minus {k}", _DIGITS,
    ),
    Map(
        "modulo", "int", "int", lambda x, y, k: x % k, (("{x} % {k}", PRODUCT),),
        ("{xs}, each modulo {k}", "the remainders modulo {k} of {xs}"), ("take each modulo {k}",),
        ("{x} modulo {k}",), "itself modulo {k}", (3, 4, 5, 6, 7),
    ),
    Map(
        "quotient", "int", "int", lambda x, y, k: x // k, (("{x} // {k}", PRODUCT),),
        ("{xs}, each floor-divided by {k}",), ("floor-divide each by {k}",),
        ("{x} floor-divided by {k}",), "itself floor-divided by {k}", (2, 3, 4, 5),
    ),
    Map("same", "word", "str", lambda x, y, k: x, (("{x}", ATOM),), of=("{x}", "{x} unchanged")),
    Map(
        "uppercase", "word", "str", lambda x, y, k: x.upper(), (("{x}.upper()", ATOM),),
        ("{xs} in uppercase", "the uppercase forms of {xs}"), ("uppercase each",),
        ("{x} in uppercase",), "its uppercase form",
    ),
    Map(
        "lowercase", "word", "str", lambda x, y, k: x.lower(), (("{x}.lower()", ATOM),),
        ("{xs} in lowercase", "the lowercase forms of {xs}"), ("lowercase each",),
        ("{x} in lowercase",), "its lowercase form",
    ),
    Map(
        "reverse", "word", "str", lambda x, y, k: "".join(reversed(x)), (("{x}[::-1]", ATOM),),
        ("{xs}, each reversed", "the reverses of {xs}"), ("reverse each",),
        ("{x} reversed",), "its reverse",
    ),
    Map(
        "initial", "word", "str", lambda x, y, k: x[:1], (("{x}[0]", ATOM),),
        ("the first letters of {xs}",), ("take the first letter of each",),
        ("the first letter of {x}",), "its first letter",
    ),
    Map(
        "final", "word", "str", lambda x, y, k: x[-1:], (("{x}[-1]", ATOM),),
        ("the last letters of {xs}",), ("take the last letter of each",),
        ("the last letter of {x}",), "its last letter",
    ),
    Map(
        "twice", "word", "str", lambda x, y, k: x + x,
        (("{x} * 2", PRODUCT), ("{x} + {x}", ADDITION)),
        ("{xs}, each repeated twice",), ("repeat each twice",),
        ("{x} repeated twice",), "itself repeated twice",
    ),
    Map(
        "size", "word", "int", lambda x, y, k: len(x), (("len({x})", ATOM),),
        ("the lengths of {xs}",), ("take the length of each",),
        ("the length of {x}",), "its length",
    ),
    Map("same", "char", "str", lambda x, y, k: x, (("{x}", ATOM),)),
    Map(
        "uppercase", "char", "str", lambda x, y, k: x.upper(), (("{x}.upper()", ATOM),),
        ("{xs}, each in uppercase",), ("uppercase each",), its="its uppercase form",
    ),
    Map(
        "lowercase", "char", "str", lambda x, y, k: x.lower(), (("{x}.lower()", ATOM),),
        ("{xs}, each in lowercase",), ("lowercase each",), its="its lowercase form",
    ),
    Map(
        "twice", "char", "str", lambda x, y, k: x + x,
        (("{x} * 2", PRODUCT), ("{x} + {x}", ADDITION)),
        ("{xs}, each repeated twice",), ("repeat each twice",), its="itself repeated twice",
    ),
    Map(
        "number", "char", "int", lambda x, y, k: "0123456789".index(x), (("int({x})", ATOM),),
        ("the integer values of {xs}",), ("convert each to an integer",), its="its integer value",
    ),
    Map("key", "keyed", "key", lambda x, y, k: y, (("{y}", ATOM),)),
    Map(
        "product", "pair", "int", lambda x, y, k: x * y,
        (("{x} * {y}", PRODUCT), ("{y} * {x}", PRODUCT)), ("the products of {xs}",),
        ("multiply each pair",),
    ),
    Map(
        "addition", "pair", "int", lambda x, y, k: x + y,
        (("{x} + {y}", ADDITION), ("{y} + {x}", ADDITION)), ("the sums of {xs}",),
        ("add each pair",),
    ),
    Map(
        "difference", "pair", "int", lambda x, y, k: x - y, (("{x} - {y}", ADDITION),),
        ("the differences of {xs}",), ("subtract the second from the first in each pair",),
    ),
    Map(
        "larger", "pair", "int", lambda x, y, k: x if x > y else y,
        (("max({x}, {y})", ATOM), ("max({y}, {x})", ATOM)), ("the maximums of {xs}",),
        ("take the larger of each pair",),
    ),
    Map(
        "smaller", "pair", "int", lambda x, y, k: x if x < y else y,
        (("min({x}, {y})", ATOM), ("min({y}, {x})", ATOM)), ("the minimums of {xs}",),
        ("take the smaller of each pair",),
    ),
)  # fmt: skip

PREDICATES: dict[tuple[str, str], Predicate] = {(p.kind, p.name): p for p in _PREDICATES}
MAPS: dict[tuple[str, str], Map] = {(m.kind, m.name): m for m in _MAPS}
