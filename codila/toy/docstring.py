"""Docstrings: several phrasings of a composition, each of which determines the function."""

from __future__ import annotations

from codila.toy.chooser import Chooser
from codila.toy.composition import Composition
from codila.toy.pieces import MAPS
from codila.toy.reductions import joint

_LEADS = ("Return", "Return", "Return", "Compute", "Find")


def _fill(template: str, k: object) -> str:
    return template.replace("{k}", str(k))


def _tail(c: Composition, parameters: tuple[str, ...], ch: Chooser) -> str:
    tail = ch.spelling(c.pieces[0].tails).replace("{p}", parameters[0])
    return _fill(tail.replace("{q}", parameters[-1]), c.source[1])


def _elements(c: Composition, parameters: tuple[str, ...], ch: Chooser) -> str:
    """The noun phrase for the kept elements: "the even numbers in nums"."""
    source, predicate, _, _ = c.pieces
    noun = ch.spelling(source.nouns)[0]
    tail = _tail(c, parameters, ch)
    k = c.predicate[1]
    if source.name == "keys":
        return f"the {noun} {tail} whose value {_fill(ch.spelling(predicate.states), k)}"
    if predicate.before:
        noun = f"{predicate.before} {noun}"
    after = _fill(ch.spelling(predicate.after), k)
    # "among the first 3 of nums" must not be followed by a condition it could belong to.
    order = (noun, after, tail) if source.name == "first" else (noun, tail, after)
    phrase = "the " + " ".join(part for part in order if part)
    return f"the indices of {phrase}" if source.name == "indices" else phrase


def _branch(c: Composition, parameters: tuple[str, ...], ch: Chooser) -> str:
    source, predicate, mapping, reduction = c.pieces
    assert c.otherwise is not None
    x = parameters[0] if reduction.name == "value" else "w" if source.kind == "word" else "x"
    other = MAPS[source.map_kind, c.otherwise[0]]
    then = _fill(ch.spelling(mapping.of), c.map[1]).replace("{x}", x)
    els = _fill(ch.spelling(other.of), c.otherwise[1]).replace("{x}", x)
    state = _fill(ch.spelling(predicate.states), c.predicate[1])
    if reduction.name == "value":
        return ch.spelling(
            (
                f"Return {then} if {x} {state}, otherwise {els}.",
                f"If {x} {state}, return {then}, else {els}.",
            )
        )
    noun = ch.spelling(source.nouns)[1]
    action = ch.spelling(reduction.actions)
    tail = _tail(c, parameters, ch)
    return f"For each {noun} {x} {tail}, take {then} if {x} {state}, otherwise {els}; {action}."


def render_docstring(c: Composition, parameters: tuple[str, ...], ch: Chooser) -> str:
    """One phrasing of the composition, a sentence."""
    if c.otherwise is not None:
        return _branch(c, parameters, ch)
    source, predicate, mapping, reduction = c.pieces
    lead = ch.spelling(_LEADS)
    if reduction.name == "any":
        one = f"{ch.spelling(source.nouns)[1]} {_tail(c, parameters, ch)}"
        state = _fill(ch.spelling(predicate.states), c.predicate[1])
        phrase = ch.spelling(reduction.phrases)
        return f"Return {phrase.replace('{one}', one).replace('{state}', state)}."
    elements = _elements(c, parameters, ch)
    if reduction.name == "count" and ch.chance():
        return f"Count {elements}."
    if reduction.name == "dict":
        phrase = ch.spelling(reduction.phrases).replace("{xs}", elements)
        return f"Return {phrase.replace('{its}', _fill(mapping.its, c.map[1]))}."
    joined = joint(c.reduction[1]) if reduction.name == "join" else ""
    if reduction.actions and ch.chance():
        verb = _fill(ch.spelling(mapping.verbs), c.map[1])
        action = ch.spelling(reduction.actions).replace("{joint}", joined)
        return f"Take {elements}{', ' if verb else ''}{verb} and {action}."
    values = _fill(ch.spelling(mapping.plural), c.map[1]).replace("{xs}", elements)
    phrase = ch.spelling(reduction.phrases).replace("{xs}", values).replace("{joint}", joined)
    return f"{lead} {phrase}."
