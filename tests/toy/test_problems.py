"""Problems: their tests, their split, their determinism."""

import ast
import collections
import itertools
import random
from collections.abc import Callable

import pytest

from codila.toy import Problem, pairs, problems, sample, split_of
from codila.toy.body import render_body
from codila.toy.chooser import enumerate_spellings
from codila.toy.composition import Composition, draw
from codila.toy.docstring import render_docstring
from codila.toy.problem import select_inputs

Passes = Callable[[Problem, str], bool]
Mutate = Callable[[Problem, random.Random], str | None]


@pytest.fixture(scope="module")
def held_out() -> list[Problem]:
    return problems("test", 200, seed=0) + problems("dev", 100, seed=0)


def test_reference_solutions_pass(held_out: list[Problem], passes: Passes) -> None:
    for problem in held_out:
        assert passes(problem, problem.solution), problem.prompt + problem.solution + problem.tests


def test_tests_have_the_agreed_form(held_out: list[Problem]) -> None:
    for problem in held_out:
        assert problem.prompt.startswith(f"def {problem.entry_point}(")
        assert problem.prompt.endswith('."""\n') and problem.solution.endswith("\n")
        check = ast.parse(problem.tests).body[0]
        assert isinstance(check, ast.FunctionDef) and check.name == "check"
        assert 6 <= len(check.body) <= 10
        assert all(isinstance(statement, ast.Assert) for statement in check.body)


def test_mutated_solutions_fail(held_out: list[Problem], passes: Passes, mutate: Mutate) -> None:
    rng = random.Random(0)
    mutants = [
        (problem, body)
        for problem, _ in itertools.product(held_out, range(4))
        if (body := mutate(problem, rng)) is not None
    ]
    survivors = [body for problem, body in mutants if passes(problem, body)]
    assert len(mutants) > 800
    assert len(survivors) < 0.03 * len(mutants), "\n".join(survivors)


def test_trivial_bodies_fail(held_out: list[Problem], passes: Passes) -> None:
    for problem in held_out:
        parameter = problem.prompt.split("(")[1].split(",")[0].split(")")[0]
        for value in ("0", "1", "None", "[]", '""', "{}", "True", parameter):
            assert not passes(problem, f"    return {value}\n")


def test_same_seed_same_problems() -> None:
    assert problems("dev", 20, seed=3) == problems("dev", 20, seed=3)
    assert problems("dev", 20, seed=3) != problems("dev", 20, seed=4)
    assert list(pairs("train", 50, seed=3)) == list(pairs("train", 50, seed=3))
    assert list(pairs("train", 50, seed=3)) == list(pairs("train", 80, seed=3))[:50]
    assert sample(random.Random(5), "test") == sample(random.Random(5), "test")


def test_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="expected one of train, dev, test"):
        problems("validation", 1, seed=0)
    with pytest.raises(ValueError, match="validation"):
        next(pairs("validation", 1, seed=0))


def test_no_held_out_composition_in_training(held_out: list[Problem]) -> None:
    keys = {problem.composition for problem in held_out}
    assert len(keys) == len(held_out)
    assert {split_of(key) for key in keys} == {"dev", "test"}
    prompts = {problem.prompt.split("\n", 1)[1] for problem in held_out}
    # A docstring determines the composition, so no held-out docstring may be trained on.
    for prompt, _ in pairs("train", 15_000, seed=0):
        assert prompt.split("\n", 1)[1] not in prompts


def test_split_is_stable_and_balanced() -> None:
    rng = random.Random(0)
    keys = sorted({draw(rng).key for _ in range(20_000)})
    share = collections.Counter(map(split_of, keys))
    assert share["dev"] / len(keys) == pytest.approx(0.05, abs=0.01)
    assert share["test"] / len(keys) == pytest.approx(0.05, abs=0.01)
    assert split_of("list|even|square|sum") == "train"


def test_held_out_meanings_are_not_trained_under_another_name() -> None:
    """Compositions that agree on all their inputs are rare enough not to matter."""
    rng = random.Random(0)
    by_type: dict[tuple[str, ...], list] = collections.defaultdict(list)
    for c in {c.key: c for c in (draw(rng) for _ in range(800))}.values():
        if select_inputs(c) is not None:
            by_type[c.pieces[0].inputs].append(c)
    equal = total = 0
    for group in by_type.values():
        probes = [args for c in group[:12] for args in select_inputs(c) or ()]
        signatures = collections.defaultdict(list)
        for c in group:
            signatures[repr([c.evaluate(*args) for args in probes])].append(c.key)
        total += len(group)
        equal += sum(len(keys) for keys in signatures.values() if len(keys) > 1)
    assert equal < 0.02 * total


def test_the_example_of_the_documentation_is_a_problem() -> None:
    c = Composition(("list", None), ("even", None), ("square", None), ("sum", None))
    docstrings = enumerate_spellings(lambda ch: render_docstring(c, ("nums",), ch))
    assert "Return the sum of the squares of the even numbers in nums." in set(docstrings)
    bodies = set(enumerate_spellings(lambda ch: render_body(c, ("nums",), ch)))
    assert "    return sum(x * x for x in nums if x % 2 == 0)\n" in bodies
    loop = "    total = 0\n    for x in nums:\n        if x % 2 == 0:\n            total += x * x\n"
    assert f"{loop}    return total\n" in bodies
