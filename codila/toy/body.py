"""Bodies: the many equivalent Python spellings of a composition."""

from __future__ import annotations

from collections.abc import Callable

from codila.toy.chooser import Chooser
from codila.toy.composition import Composition
from codila.toy.pieces import ADDITION, ATOM, MAPS, TERNARY

_LISTS = ("result", "out", "res", "kept", "acc")
_NUMBERS = {
    "sum": ("total", "result", "acc", "res"),
    "product": ("result", "prod", "acc", "res"),
    "count": ("count", "total", "result"),
    "running": ("total", "acc", "current"),
}
_STRUCTURES = {
    "sum": (
        "generator", "generator", "comprehension", "named", "two_steps", "loop", "loop", "collect",
    ),
    "product": ("loop", "loop", "named"),
    "max": ("generator", "comprehension", "named", "named", "two_steps", "collect", "collect"),
    "count": ("generator", "comprehension", "named", "loop", "loop", "collect"),
    "list": (
        "comprehension", "comprehension", "named", "two_steps", "collect", "collect", "collect",
    ),
    "sorted": ("generator", "comprehension", "named", "named", "two_steps", "collect", "collect"),
    "first": ("generator", "loop", "loop", "named", "two_steps", "collect"),
    "any": ("generator", "comprehension", "loop", "loop", "named"),
    "running": ("loop",),
    "join": ("generator", "comprehension", "named", "two_steps", "loop", "collect", "collect"),
    "dict": ("comprehension", "named", "loop", "loop"),
}  # fmt: skip
_STRUCTURES["min"] = _STRUCTURES["max"]
_STRUCTURES["descending"] = _STRUCTURES["sorted"]

Statements = list[str]
"""Lines of code, indented relative to the function body."""


def _indent(lines: Statements) -> Statements:
    return ["    " + line for line in lines]


class _Body:
    """The expressions of one composition, and the statements built from them."""

    def __init__(self, c: Composition, parameters: tuple[str, ...], ch: Chooser) -> None:
        source, predicate, mapping, reduction = c.pieces
        self.ch, self.reduction, self.separator = ch, reduction.name, c.reduction[1]
        self.taken = set(parameters)
        self.setup: Statements = []
        p, q, k = parameters[0], parameters[-1], c.source[1]
        if reduction.name == "value":
            self.x, y = p, ""
        else:
            # The longest bodies go without a helper list, to stay within 64 tokens.
            long = reduction.name in ("product", "running") or c.otherwise is not None
            if source.helpers and not long and ch.chance():
                helper = ch.spelling(source.helpers).format(p=p, k=k)
                self.iterable = self.name(source.helper_names)
                self.setup = [f"{self.iterable} = {helper}"]
            else:
                self.iterable = ch.spelling(source.iterables).format(p=p, q=q, k=k)
            self.x = self.name(source.variables)
            y = self.name(source.second) if source.second else ""
        self.target = self.x
        if y:
            self.target = f"{y}, {self.x}" if source.map_kind == "keyed" else f"{self.x}, {y}"
        self.condition = predicate.code.format(x=self.x, y=y, k=c.predicate[1])
        self.plain = mapping.name in ("same", "key")
        template, self.strength = ch.spelling(mapping.codes)
        self.value = template.format(x=self.x, y=y, k=c.map[1])
        self.other = ""
        if c.otherwise is not None:
            template, _ = ch.spelling(MAPS[source.map_kind, c.otherwise[0]].codes)
            self.other = template.format(x=self.x, y=y, k=c.otherwise[1])

    def name(self, options: tuple[str, ...]) -> str:
        """A new local name."""
        name = self.ch.name(options, self.taken)
        self.taken.add(name)
        return name

    def clause(self, value: str | None = None) -> str:
        """The inside of a comprehension or generator."""
        value = self.value if value is None else value
        if self.other:
            value = f"{value} if {self.condition} else {self.other}"
            return f"{value} for {self.target} in {self.iterable}"
        condition = f" if {self.condition}" if self.condition else ""
        return f"{value} for {self.target} in {self.iterable}{condition}"

    def loop(self, statements: Callable[[str, int], Statements]) -> Statements:
        """A loop that runs ``statements(value, strength)`` for every kept element."""
        inner = statements(self.value, self.strength)
        if self.other:
            if not self.ch.chance():
                other = statements(self.other, TERNARY)
                inner = [f"if {self.condition}:", *_indent(inner), "else:", *_indent(other)]
            else:
                ternary = f"{self.value} if {self.condition} else {self.other}"
                inner = statements(ternary, TERNARY)
        elif self.condition:
            inner = [f"if {self.condition}:", *_indent(inner)]
        return [f"for {self.target} in {self.iterable}:", *_indent(inner)]

    def render(self) -> Statements:
        """The whole body."""
        if self.reduction == "value":
            return self._branch_value()
        options = _STRUCTURES[self.reduction]
        if self.plain or not self.condition or self.other:
            options = tuple(option for option in options if option != "two_steps")
        if self.reduction == "join" and self.separator:
            options = tuple(option for option in options if option != "loop")
        return self.setup + getattr(self, "_" + self.ch.spelling(options))()

    def _branch_value(self) -> Statements:
        test, then, other = self.condition, self.value, self.other
        structure = self.ch.spelling(("early", "early", "else", "ternary", "override", "assign"))
        if structure == "early":
            return [f"if {test}:", f"    return {then}", f"return {other}"]
        if structure == "else":
            return [f"if {test}:", f"    return {then}", "else:", f"    return {other}"]
        if structure == "ternary":
            return [f"return {then} if {test} else {other}"]
        result = self.name(("result", "out", "res", "y"))
        if structure == "override":
            change = [f"if {test}:", f"    {result} = {then}"]
            return [f"{result} = {other}", *change, f"return {result}"]
        return [
            f"if {test}:", f"    {result} = {then}", "else:", f"    {result} = {other}",
            f"return {result}",
        ]  # fmt: skip

    def _generator(self, clause: str | None = None) -> Statements:
        if self.reduction == "count":
            return [f"return sum({self.clause('1')})"]
        if self.reduction == "first":
            return [f"return next(({clause or self.clause()}), None)"]
        if self.reduction == "any":
            return [f"return any({self.condition} for {self.target} in {self.iterable})"]
        return [f"return {self.applied(clause or self.clause(), bare=True)}"]

    def _comprehension(self) -> Statements:
        if self.reduction == "dict":
            return [f"return {{{self.clause(f'{self.x}: {self.value}')}}}"]
        if self.reduction == "any":
            return [f"return any([{self.condition} for {self.target} in {self.iterable}])"]
        return [f"return {self.applied(f'[{self.clause()}]')}"]

    def applied(self, values: str, bare: bool = False) -> str:
        """The reduction of an iterable expression; ``bare`` if it is a generator's inside."""
        closed = f"({values})" if bare else values
        match self.reduction:
            case "sum" | "sorted":
                return f"{self.reduction}({values})"
            case "max" | "min":
                return f"{self.reduction}({closed}, default=0)"
            case "descending":
                return f"sorted({closed}, reverse=True)"
            case "join":
                return f'"{self.separator}".join({values})'
            case "count":
                return f"len({values})"
            case "list":
                return values
        raise AssertionError(self.reduction)

    def finish(self, name: str) -> Statements:
        """Return the reduction of the list called ``name``."""
        match self.reduction:
            case "max" | "min" | "first":
                call, empty = f"{self.reduction}({name})", "0"
                if self.reduction == "first":
                    call, empty = f"{name}[0]", "None"
                forms = [
                    [f"return {call} if {name} else {empty}"],
                    [f"if {name}:", f"    return {call}", f"return {empty}"],
                ]
                if self.reduction != "first":
                    forms += [[f"return {self.applied(name)}"]] * 2
                return self.ch.spelling(forms)
            case "sorted" | "descending":
                order = "reverse=True" if self.reduction == "descending" else ""
                in_place = [f"{name}.sort({order})", f"return {name}"]
                return self.ch.spelling([in_place, [f"return {self.applied(name)}"]])
            case "any":
                return [f"return len({name}) > 0"]
            case "product":
                self.iterable, self.condition, self.other = name, "", ""
                self.target = self.value = self.x
                self.strength = ATOM
                return self._loop()
        return [f"return {self.applied(name)}"]

    def _named(self) -> Statements:
        name = self.name(_LISTS)
        if self.reduction == "dict":
            return [f"{name} = {{{self.clause(f'{self.x}: {self.value}')}}}", f"return {name}"]
        if self.reduction == "product" and self.plain and not self.condition:
            return self._loop()
        return [f"{name} = [{self.clause()}]", *self.finish(name)]

    def _two_steps(self) -> Statements:
        """First the kept elements, then the values."""
        name = self.name(_LISTS)
        kept = self.target if "," not in self.target else f"({self.target})"
        lines = [f"{name} = [{self.clause(kept)}]"]
        clause = f"{self.value} for {self.target} in {name}"
        if self.reduction in ("list", "max", "min"):
            return [*lines, f"return {self.applied(f'[{clause}]')}"]
        return lines + self._generator(clause)

    def _collect(self) -> Statements:
        """A loop that appends to a list."""
        name = self.name(_LISTS)
        append = self.ch.spelling(("{0}.append({1})", "{0}.append({1})", "{0} += [{1}]"))
        loop = self.loop(lambda value, strength: [append.format(name, value)])
        return [f"{name} = []", *loop, *self.finish(name)]

    def _loop(self) -> Statements:
        """A loop with an accumulator, or with an early return."""
        match self.reduction:
            case "first":
                loop = self.loop(lambda value, strength: [f"return {value}"])
                return [*loop, "return None"]
            case "any":
                if not self.ch.chance():
                    loop = self.loop(lambda value, strength: ["return True"])
                    return [*loop, "return False"]
                flag = self.name(("found", "result", "seen"))
                loop = self.loop(lambda value, strength: [f"{flag} = True"])
                return [f"{flag} = False", *loop, f"return {flag}"]
            case "dict":
                table = self.name(("result", "out", "res", "mapping"))
                loop = self.loop(lambda value, strength: [f"{table}[{self.x}] = {value}"])
                return [f"{table} = {{}}", *loop, f"return {table}"]
            case "join":
                text = self.name(("result", "out", "res", "joined"))
                update = self._update(text, "+", ADDITION)
                return [f'{text} = ""', *self.loop(update), f"return {text}"]
            case "running":
                total, out = self.name(_NUMBERS["running"]), self.name(_LISTS)
                update = self._update(total, "+", ADDITION)
                start = [f"{total} = 0", f"{out} = []"]
                start = self.ch.spelling((start, start[::-1]))
                append = f"{out}.append({total})"
                loop = self.loop(lambda value, strength: [*update(value, strength), append])
                return [*start, *loop, f"return {out}"]
            case "count":
                self.value, self.strength = "1", ATOM
        total = self.name(_NUMBERS[self.reduction])
        product = self.reduction == "product"
        update = self._update(total, "*" if product else "+", ATOM if product else ADDITION)
        return [f"{total} = {1 if product else 0}", *self.loop(update), f"return {total}"]

    def _update(self, name: str, operator: str, needed: int) -> Callable[[str, int], Statements]:
        """``name += value`` or ``name = name + value``, with the parentheses it needs."""
        if not self.ch.chance():
            return lambda value, strength: [f"{name} {operator}= {value}"]

        def statements(value: str, strength: int) -> Statements:
            value = value if strength >= needed else f"({value})"
            return [f"{name} = {name} {operator} {value}"]

        return statements


def render_body(c: Composition, parameters: tuple[str, ...], ch: Chooser) -> str:
    """One spelling of the composition: an indented function body that ends with a newline."""
    return "".join(f"    {line}\n" for line in _Body(c, parameters, ch).render())
