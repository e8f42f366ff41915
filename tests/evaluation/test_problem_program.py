"""How prompt, completion and tests are put together, and what the whole is then judged to be."""

import os

import pytest

from codila.evaluation import problem_program, run_programs

PROMPT = 'def double(x):\n    """Twice x."""\n'
TESTS = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(0) == 0\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_problem_program():
    completions = {
        "    return 2 * x": "passed",
        "    return x * x": "passed",  # 2 and 0 cannot tell it from the right one
        "    return x + 2": "failed",
        "    return 2 * x\n\nimport sys\nsys.exit(0)": "failed",
        "    return (2 * x": "syntax",
        "    return 2 * x\n\n'''": "syntax",
        "    return 2 * x \\": "passed",
        "    pass\n\ndef check(candidate): pass": "failed",
    }
    programs = [problem_program(PROMPT, c, TESTS, "double") for c in completions]
    assert [r.status for r in run_programs(programs, timeout=20.0)] == list(completions.values())
    assert programs[0].endswith("\ncheck(double)\n")


@pytest.mark.parametrize(
    ("tests", "entry_point"), [("assert f()", "f"), (TESTS, "f()"), (TESTS, "")]
)
def test_problem_program_rejects(tests, entry_point):
    with pytest.raises(ValueError, match="check|function name"):
        problem_program("", "", tests, entry_point)
