"""Execution and extraction on HumanEval's own solutions; needs the public test data."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from codila.evaluation.execution import problem_program, run_programs
from codila.evaluation.extraction import has_syntax_error, lacks_entry_point, sanitize

DATA = os.environ.get("CODILA_TEST_DATA")
pytestmark = pytest.mark.skipif(
    DATA is None, reason="CODILA_TEST_DATA is unset: the folder of public test data"
)


@pytest.fixture(scope="module")
def problems() -> list[dict[str, str]]:
    assert DATA is not None
    with gzip.open(Path(DATA) / "humaneval" / "HumanEval.jsonl.gz", "rt") as lines:
        return [json.loads(line) for line in lines]


def test_every_canonical_solution_passes_and_an_empty_body_fails(
    problems: list[dict[str, str]],
) -> None:
    def program(problem: dict[str, str], body: str) -> str:
        return problem_program(problem["prompt"], body, problem["test"], problem["entry_point"])

    right = run_programs([program(p, p["canonical_solution"]) for p in problems], timeout=20)
    assert [p["task_id"] for p, r in zip(problems, right, strict=True) if not r.passed] == []
    wrong = run_programs([program(p, "    return None\n") for p in problems], timeout=20)
    assert not any(r.passed for r in wrong)


def test_sanitize_keeps_every_entry_point_and_drops_a_bare_prompt(
    problems: list[dict[str, str]],
) -> None:
    for p in problems:
        whole = p["prompt"] + p["canonical_solution"]
        assert not lacks_entry_point(sanitize(whole, p["entry_point"]), p["entry_point"])
        assert not has_syntax_error(p["prompt"], p["canonical_solution"])
        # signature and docstring alone parse, but return nothing: no code was extracted
        assert lacks_entry_point(sanitize(p["prompt"], p["entry_point"]), p["entry_point"])
