"""Problems: their tests, their split, their determinism."""

import ast
import collections
import itertools
import random

import pytest

from codila.toy import Problem, pairs, problems, sample, split_of
from codila.toy.composition import draw, every_composition
from codila.toy.problem import select_inputs
from tests.toy.mutation import mutate
from tests.toy.support import passes


@pytest.fixture(scope="module")
def held_out() -> list[Problem]:
    return problems("test", 250, seed=0) + problems("dev", 150, seed=0)


def test_reference_solutions_pass(held_out: list[Problem]) -> None:
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


def test_mutated_solutions_fail(held_out: list[Problem]) -> None:
    rng = random.Random(0)
    mutants = [
        (problem, body)
        for problem, _ in itertools.product(held_out, range(4))
        if (body := mutate(problem, rng)) is not None
    ]
    survivors = [body for problem, body in mutants if passes(problem, body)]
    assert len(mutants) > 1000
    assert len(survivors) < 0.03 * len(mutants), "\n".join(survivors)


def test_trivial_bodies_fail(held_out: list[Problem]) -> None:
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
    for prompt, _ in pairs("train", 30_000, seed=0):
        assert prompt.split("\n", 1)[1] not in prompts


def test_split_is_stable_and_balanced() -> None:
    keys = [c.key for c in itertools.islice(every_composition(branches=False), 0, None, 5)]
    share = collections.Counter(map(split_of, keys))
    assert share["dev"] / len(keys) == pytest.approx(0.05, abs=0.01)
    assert share["test"] / len(keys) == pytest.approx(0.05, abs=0.01)
    assert split_of("list|even|square|sum") == "train"


def test_held_out_meanings_are_not_trained_under_another_name() -> None:
    """Compositions that agree on all their inputs are rare enough not to matter."""
    rng = random.Random(0)
    by_type: dict[tuple[str, ...], list] = collections.defaultdict(list)
    for c in {c.key: c for c in (draw(rng) for _ in range(1500))}.values():
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
    prompt = 'def f(nums):\n    """Return the sum of the squares of the even numbers in nums."""\n'
    bodies = {body for head, body in pairs("train", 60_000, seed=1) if head == prompt}
    assert bodies
