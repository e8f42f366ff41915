"""From a model's text to the code that is executed, and the two syntax error rates.

The rules are those of the instruct harness that Dream is evaluated with, so that rates compare:
cut at a stop string, take the fenced code, keep the largest run of lines that parses, keep what
the entry point needs.

Two rates are kept apart. The *published* one counts samples from which no entry point can be
extracted (`lacks_entry_point` of `sanitize`); it is lenient, since a late error can leave a
shorter run of lines that parses. The *strict* one asks whether prompt and completion parse as they
stand (`has_syntax_error`).
"""

from __future__ import annotations

import ast
import codeop
import warnings
from collections.abc import Iterator, Sequence
from itertools import accumulate

HUMANEVAL_STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
"""Where the continuation of a signature and docstring ends (Dream, eval_instruct)."""

_FENCE = "```"
_MAX_LINES = 100
# A flag that codeop keeps to itself; where it is refused, runs are merely skipped one at a time.
_INCOMPLETE_FLAGS = ast.PyCF_ONLY_AST | getattr(codeop, "PyCF_ALLOW_INCOMPLETE_INPUT", 0x4000)
# Complaints that further lines might cure. Listing one too many costs time, never correctness.
_CURABLE = ("incomplete input", "EOF", "never closed", "triple-quoted", "indented block")


def truncate_completion(text: str, stops: Sequence[str] = HUMANEVAL_STOPS) -> str:
    """`text` up to the first place where one of `stops` begins.

    Raises:
        ValueError: a stop is the empty string.
    """
    if any(not stop for stop in stops):
        raise ValueError("a stop string must not be empty")
    ends = [at for stop in stops if (at := text.find(stop)) >= 0]
    return text[: min(ends)] if ends else text


def extract_code(text: str) -> str:
    """The text after the first "```python" line (or all of it), up to the next fence."""
    _, fence, after = text.partition(f"{_FENCE}python\n")
    return (after if fence else text).partition(_FENCE)[0]


def sanitize(code: str, entry_point: str | None = None) -> str:
    """The part of `code` that parses and that `entry_point` needs.

    Tabs become four spaces; of the first 100 lines the contiguous run with the most non-blank
    lines that parses is taken (the earliest one at a tie). Of its top-level statements these are
    kept, in this order and as `ast.unparse` writes them: all imports; then functions that contain
    a ``return``, classes, and assignments to a name, as far as they are reachable by name from
    `entry_point` (all of them if that is None). Of several definitions of a name the last counts.

    As in the harness, names are not followed into the left of a dot: ``helper(x).strip()`` does
    not keep ``helper``. `async` functions and annotated assignments are dropped.

    Returns:
        Python code, possibly empty. That of the bare problem is empty: its function has no
        ``return``.
    """
    code = code.replace("\t", "    ").replace("\r\n", "\n").replace("\r", "\n").strip()
    kept = _largest_parseable_run(code.splitlines()[:_MAX_LINES])
    tree = _parse(kept)
    assert tree is not None
    imports: list[ast.stmt] = []
    definitions: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports.append(node)
        elif isinstance(node, ast.FunctionDef):
            if any(isinstance(inner, ast.Return) for inner in ast.walk(node)):
                definitions[node.name] = node
        elif isinstance(node, ast.ClassDef):
            definitions[node.name] = node
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            definitions[node.targets[0].id] = node
    if entry_point is not None:
        needed = _reachable(entry_point, definitions)
        definitions = {name: node for name, node in definitions.items() if name in needed}
    return "\n".join(_unparse(node, kept) for node in (*imports, *definitions.values()))


def lacks_entry_point(code: str, entry_point: str) -> bool:
    """Whether `code`, as returned by `sanitize`, has no top-level function `entry_point`.

    The share of samples for which this holds is the published syntax error rate.
    """
    tree = _parse(code)
    return tree is None or not any(
        isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == entry_point
        for node in tree.body
    )


def has_syntax_error(prompt: str, completion: str) -> bool:
    """Whether prompt and completion together fail to parse: the strict rate, per sample.

    Null bytes and nesting too deep for the parser count as errors. Errors that only the compiler
    finds do not (a ``return`` outside a function).
    """
    return _parse(prompt + completion) is None


def _parse(code: str, flags: int = ast.PyCF_ONLY_AST) -> ast.Module | None:
    return None if isinstance(tree := _parse_or_error(code, flags), Exception) else tree


def _parse_or_error(code: str, flags: int = ast.PyCF_ONLY_AST) -> ast.Module | Exception:
    # A caller who turns warnings into errors must not turn "\d" into a syntax error.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return compile(code, "<code>", "exec", flags, dont_inherit=True)
        except (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError) as error:
            return error


def _largest_parseable_run(lines: Sequence[str]) -> str:
    """The run of lines with the most non-blank ones that parses; first start, then first end.

    The result is that of parsing all O(n²) runs. Skipped are runs that cannot beat the best one
    so far, runs that begin with an indented statement, and runs with a beginning that nothing can
    follow.
    """
    filled = [0, *accumulate(1 if line.strip() else 0 for line in lines)]
    best, best_run = 0, ""
    for start, first in enumerate(lines):
        if first.startswith(" ") and first.strip() and first.lstrip()[0] not in "#\\":
            continue
        end = len(lines)
        while filled[end] - filled[start] > best:
            run = "\n".join(lines[start:end])
            outcome = _parse_or_error(run)
            if isinstance(outcome, ast.Module):
                best = filled[end] - filled[start]
                best_run = run
                # Runs with fewer trailing blank lines count the same, and the shortest comes first.
                while end > start and filled[end - 1] - filled[start] == best:
                    end -= 1
                    if _parse(shorter := "\n".join(lines[start:end])) is not None:
                        best_run = shorter
                break
            end = _next_end(lines, start, end, outcome)
    return best_run


def _next_end(lines: Sequence[str], start: int, end: int, error: Exception) -> int:
    """The longest shorter run that may still parse, after lines[start:end] raised `error`.

    If the lines up to the reported one are beyond cure, so is every longer run: the parser reads
    from left to right and would stop at the same token.
    """
    number = getattr(error, "lineno", None)
    if number is None or not 1 <= number < end - start:
        return end - 1
    head = lines[start : start + number]
    if head[-1].endswith("\\"):
        return end - 1
    verdict = _parse_or_error("\n".join(head), _INCOMPLETE_FLAGS)
    if not isinstance(verdict, SyntaxError) or any(c in str(verdict.msg) for c in _CURABLE):
        return end - 1
    return start + number - 1


def _reachable(entry_point: str, definitions: dict[str, ast.stmt]) -> set[str]:
    """Names reachable from `entry_point` through the definitions' bodies, itself included."""
    reached, waiting = {entry_point}, [entry_point]
    while waiting:
        node = definitions.get(waiting.pop())
        for name in _names(node) if node is not None else ():
            if name not in reached:
                reached.add(name)
                waiting.append(name)
    return reached


def _names(root: ast.AST) -> Iterator[str]:
    """Names used in `root`; of an attribute only the part after the last dot."""
    waiting = [root]
    while waiting:
        for child in ast.iter_child_nodes(waiting.pop()):
            if isinstance(child, ast.Name):
                yield child.id
            elif isinstance(child, ast.Attribute):
                yield child.attr
            else:
                waiting.append(child)


def _unparse(node: ast.stmt, source: str) -> str:
    try:
        return ast.unparse(node)
    except RecursionError:  # an expression chained too long for the recursive writer
        return ast.get_source_segment(source, node) or ""
