"""Cutting, extracting and sanitizing against small goldens, and against all runs tried in turn."""

import ast
import random
import time
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codila.evaluation import (
    extract_code,
    has_syntax_error,
    lacks_entry_point,
    sanitize,
    truncate_completion,
)
from codila.evaluation.extraction import _largest_parseable_run

PROMPT = (
    'from typing import List\n\ndef double(xs: List[int]) -> List[int]:\n    """Twice each."""\n'
)
BODY = "    return [2 * x for x in xs]\n"
DEEP = ("(" * 500 + ")" * 500, "-" * 100_000 + "1", "x = " + "+".join(["1"] * 100_000))


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (BODY, BODY),
        (BODY + "\nprint(double([1]))", BODY),
        (BODY + "\ndef other():\n    pass", BODY),
        (BODY + "\n# Example", BODY),
        (BODY + "\nclass A: pass\ndef f(): pass", BODY),
        ("    if x:\n        return 1\n    # why\n", "    if x:\n        return 1\n    # why\n"),
        ("\nif __name__", ""),
        ("", ""),
    ],
)
def test_truncate(text, kept):
    assert truncate_completion(text) == kept


def test_truncate_at_the_earliest_stop():
    assert truncate_completion("a STOP b END", ["END", "STOP"]) == "a "
    assert truncate_completion("a STOP", []) == "a STOP"
    with pytest.raises(ValueError, match="empty"):
        truncate_completion("text", [""])


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Here:\n```python\nx = 1\n```\nDone.\n```python\ny\n```", "x = 1\n"),
        ("```python\nx = 1\n", "x = 1\n"),
        ("x = 1\n```\nDone.", "x = 1\n"),
        ("x = 1", "x = 1"),
        ("```\nx = 1\n```", ""),  # an unnamed fence is an end
        ("```python x", ""),  # no line end after the name: not a beginning
        ("", ""),
    ],
)
def test_extract(text, code):
    assert extract_code(text) == code


def test_sanitize_keeps_what_the_entry_point_needs():
    code = """\
import math
from os import path
LIMIT = 10
UNUSED = 1
a, b = 1, 2
class Helper:
    size = LIMIT
class Stranger: pass
def unused(): return 0
def used(x): return Helper.size + x
def no_return(x): print(x)
def main(x):
    # a comment
    def inner(): return used(x)
    return inner() + math.pi
main(3)
if True:
    hidden = 1
"""
    kept = sanitize(code, "main")
    names = [getattr(node, "name", None) for node in ast.parse(kept).body]
    assert names == [None, None, "used", "main"]  # only the last part of Helper.size is followed
    assert kept.startswith("import math\nfrom os import path\n") and "comment" not in kept
    everything = sanitize(code)
    for text in ("LIMIT = 10", "UNUSED = 1", "class Helper", "class Stranger", "def unused"):
        assert text in everything
    for text in ("no_return", "main(3)", "hidden", "a, b"):
        assert text not in everything


def test_sanitize_follows_names():
    code = "BASE = 1\ndef step(): return BASE\ndef other(): return BASE\ndef f(): return step()"
    kept = ["BASE = 1", "def step():", "    return BASE", "def f():", "    return step()"]
    assert [line for line in sanitize(code, "f").split("\n") if line] == kept
    assert "def step" not in sanitize("def step(): return ''\ndef f(): return step().strip()", "f")
    assert "return 2" in (last := sanitize("def f(): return 1\ndef f(): return 2", "f"))
    assert "return 1" not in last
    assert sanitize("def f(): return 1", "g") == ""
    assert sanitize("import re\ndef f(): return 1", "g") == "import re"


def test_sanitize_text_around_and_broken_tails():
    chat = "Sure, here it is:\n" + PROMPT + BODY + "\nHope this helps! It's (mostly) right.\n"
    assert "return [2 * x for x in xs]" in sanitize(chat, "double")
    assert "typing" in sanitize(chat, "double")
    tabs = "\r\ndef f(x):\r\n\tif x:\r\n\t\treturn 1\r\n\treturn 2\r\n"
    assert sanitize(tabs, "f").split("\n")[-1] == "    return 2"
    late = "\n" * 3 + "x = 0\n" * 101 + "def f(): return 1"
    assert "def f" not in sanitize(late, "f")  # beyond the first hundred lines


@pytest.mark.parametrize(
    "code", ["", "   \n\t\n", "not python at all", "\0", "x = '\ud800'", *DEEP]
)
def test_sanitize_never_raises(code):
    assert lacks_entry_point(sanitize(code, "f"), "f")


def test_sanitize_writes_long_chains():
    chain = " + ".join(["x"] * 900)
    assert sanitize(f"def f(x): return {chain}", "f").count("x") == 901


@pytest.mark.parametrize(
    ("completion", "published", "strict"),
    [
        (BODY, False, False),
        ("    return [2 * x for x in xs\n", True, True),
        ("", True, False),  # the bare prompt parses, but has no return
        ("    pass\n", True, False),
        (BODY + "def other(:\n", False, True),  # a late error escapes the published rate
        (BODY + "\0", False, True),
        ("    return (" + "(" * 500, True, True),
        ("  return xs\n", True, True),
    ],
)
def test_the_two_rates(completion, published, strict):
    assert lacks_entry_point(sanitize(PROMPT + "\n" + completion, "double"), "double") is published
    assert has_syntax_error(PROMPT, completion) is strict


def test_lacks_entry_point_looks_at_the_top_level():
    assert not lacks_entry_point("async def f(): pass", "f")
    assert lacks_entry_point("class A:\n    def f(self): return 1", "f")
    assert lacks_entry_point("f = lambda: 1", "f")
    assert lacks_entry_point("def f(: pass", "f")


@pytest.mark.parametrize("code", DEEP)
def test_too_deep_for_the_parser_is_an_error(code):
    assert has_syntax_error("", code)


def test_warnings_are_not_errors():
    code = 'def f(x): return "\\d" is x'
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not has_syntax_error("", code)
        assert "def f" in sanitize(code, "f")


def all_runs(lines: list[str]) -> str:
    """The definition: every run of lines is parsed, the first of the largest is taken."""
    best, best_run = 0, ""
    for start in range(len(lines)):
        for end in range(start + 1, len(lines) + 1):
            count = sum(1 for line in lines[start:end] if line.strip())
            run = "\n".join(lines[start:end])
            if count > best and not has_syntax_error("", run):
                best, best_run = count, run
    return best_run


LINES = (
    *("", "", "   ", "\u00a0", "\x0c", "\0", "# c", "    # c", "  \\", "y = 1 + \\"),
    *("x = 1", "import os", "prose, you see.", "\u00e9 = 1", "    pass", "  pass", "        y = 2"),
    *("def f():", "    return 1", "@dec", "class A:", "if x:", "else:", "try:", "except E:", "for"),
    *("match x:", "    case 1:", "x = (", ")", "]", "lambda: (", "x = 'a", "'b'", "z = f'{x"),
    *('s = """', '"""', "'''", "    '''doc'''", "f'''{", "}'''"),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(LINES), max_size=12))
def test_the_largest_run_is_that_of_all_runs(lines):
    assert _largest_parseable_run(lines) == all_runs(lines)


SOURCE = '''\
import math
@decorate(
    1,
)
class Shape:
    """A shape

    with an area.
    """

    def area(self, scale=1.0):
        """Its area."""
        if scale < 0:
            raise ValueError(f"scale must not be negative, got {scale}")

        return math.prod(  # of the sides
            [scale * side for side in self.sides]
        )

TABLE = {
    "a": 1,
    "b": (2, 3),
}

def lookup(key):
    try:
        return TABLE[key]
    except KeyError:
        return None
'''.splitlines()


@pytest.mark.parametrize("seed", range(25))
def test_the_largest_run_of_damaged_code(seed):
    rng = random.Random(seed)
    lines = list(SOURCE)
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(lines))
        column = rng.randrange(len(lines[at]) + 1)
        junk = rng.choice(["(", ")", '"""', "'", "\\", "  ", ":", "f'{", "", "def ", "\0"])
        lines[at] = lines[at][:column] + junk + lines[at][column + rng.randrange(2) :]
    assert _largest_parseable_run(lines) == all_runs(lines)


def test_a_hundred_broken_lines_are_quick():
    lines = [line for i in range(25) for line in (f"x{i} = (", "    1,", ")", "print(")]
    started = time.perf_counter()
    assert sanitize("\n".join(lines)) == "x0 = (1,)"
    assert time.perf_counter() - started < 5  # a fraction of a second where nothing else runs
