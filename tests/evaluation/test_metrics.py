"""Statistics against published values, closed forms and cases small enough to do by hand."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codila.evaluation import (
    aup,
    mcnemar,
    paired_difference_interval,
    pass_at_k,
    spearman_any_order,
    wilson_interval,
)


def paired(both: int, first_only: int, second_only: int, neither: int):
    """Two lists of outcomes with the given cells."""
    a = [True] * (both + first_only) + [False] * (second_only + neither)
    b = [True] * both + [False] * first_only + [True] * second_only + [False] * neither
    return a, b


@pytest.mark.parametrize(
    ("successes", "n", "lower", "upper"),
    [  # Newcombe, Statistics in Medicine 17:857-872 (1998), table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
    ],
)
def test_wilson_published(successes, n, lower, upper):
    assert wilson_interval(successes, n) == pytest.approx((lower, upper), abs=5e-5)


def test_wilson_of_one_half():
    # Closed form at p = 1/2: half a width of z / (2·sqrt(n + z²)); 7.6 points for n = 164.
    half = 1.959964 / (2 * math.sqrt(164 + 1.959964**2))
    assert wilson_interval(82, 164) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-7)
    assert half == pytest.approx(0.0756, abs=5e-5)


@given(st.integers(1, 300).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_wilson_properties(case):
    successes, n = case
    lower, upper = wilson_interval(successes, n)
    assert 0 <= lower <= successes / n <= upper <= 1
    mirrored = wilson_interval(n - successes, n)
    assert (1 - mirrored.upper, 1 - mirrored.lower) == pytest.approx((lower, upper), abs=1e-12)
    narrow = wilson_interval(successes, n, confidence=0.5)
    assert lower <= narrow.lower and narrow.upper <= upper
    for end in {lower, upper} - {0.0, 1.0}:  # both ends solve the score equation
        z = (successes / n - end) / math.sqrt(end * (1 - end) / n)
        assert abs(z) == pytest.approx(1.959964, abs=1e-4)


@pytest.mark.parametrize(
    "arguments", [(0, 0), (-1, 5), (6, 5), (1, 5, 0.0), (1, 5, 1.0), (1, 5, 95)]
)
def test_wilson_rejects(arguments):
    with pytest.raises(ValueError, match="need|confidence"):
        wilson_interval(*arguments)


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [(10, 3, 1, 0.3), (5, 2, 2, 0.7), (4, 4, 2, 1.0), (4, 0, 4, 0.0), (200, 1, 200, 1.0)],
)
def test_pass_at_k(n, c, k, expected):
    assert pass_at_k(n, c, k) == pytest.approx(expected)


def test_pass_at_k_is_the_average_over_all_draws():
    n, c, k = 6, 2, 3
    draws = list(itertools.combinations(range(n), k))
    assert pass_at_k(n, c, k) == pytest.approx(sum(min(d) < c for d in draws) / len(draws))


@pytest.mark.parametrize("arguments", [(5, 6, 1), (5, -1, 1), (5, 2, 0), (5, 2, 6)])
def test_pass_at_k_rejects(arguments):
    with pytest.raises(ValueError, match="need"):
        pass_at_k(*arguments)


@pytest.mark.parametrize(
    ("cells", "p_value"),
    [
        ((59, 6, 16, 80), 2 * 110_056 / 2**22),  # Cavo et al. 2012: sum of C(22, 0..6) = 110056
        ((1, 1, 7, 12), 2 * 9 / 2**8),  # Bentur et al. 2009: 0.0703
        ((3, 0, 0, 4), 1.0),  # no disagreement
        ((0, 5, 5, 0), 1.0),  # the doubled tail exceeds one
        ((0, 0, 5, 9), 1 / 16),
    ],
)
def test_mcnemar(cells, p_value):
    assert mcnemar(*paired(*cells)) == (cells[1], cells[2], pytest.approx(p_value, rel=1e-12))


@pytest.mark.parametrize(
    ("cells", "lower", "upper"),
    [  # Fagerland, Lydersen and Laake, Statistical Analysis of Contingency Tables, chapter 8
        ((59, 6, 16, 80), -0.1186, -0.0046),
        ((1, 1, 7, 12), -0.5069, -0.0256),
    ],
)
def test_paired_difference_published(cells, lower, upper):
    a, b = paired(*cells)
    assert paired_difference_interval(a, b) == pytest.approx((lower, upper), abs=5e-5)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_paired_difference_properties(pairs):
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    lower, upper = paired_difference_interval(a, b)
    difference = float(np.mean(a) - np.mean(b))
    assert -1 - 1e-12 <= lower <= difference + 1e-12 and difference - 1e-12 <= upper <= 1 + 1e-12
    swapped = paired_difference_interval(b, a)
    assert (-swapped.upper, -swapped.lower) == pytest.approx((lower, upper), abs=1e-12)


def test_pairing_narrows_the_interval():
    correlated = paired_difference_interval(*paired(50, 4, 8, 38))
    unrelated = paired_difference_interval(*paired(30, 24, 28, 18))  # the same margins
    assert correlated.upper - correlated.lower < 0.7 * (unrelated.upper - unrelated.lower)


@pytest.mark.parametrize("function", [mcnemar, paired_difference_interval])
@pytest.mark.parametrize(("a", "b"), [([], []), ([True], [True, False])])
def test_paired_rejects(function, a, b):
    with pytest.raises(ValueError, match="same problems"):
        function(a, b)


def test_aup_by_hand():
    assert aup([(1.0, 80.0)]) == pytest.approx(80.0)
    # No accuracy lost: the plain area, 1·80 + (3-1)·80.
    assert aup([(1.0, 80.0), (3.0, 80.0)]) == pytest.approx(240.0)
    # 4 of 80 points lost: W = exp(-3·0.05).
    expected = 80 + 0.5 * 2 * (80 + 76 * math.exp(-0.15))
    assert aup([(3.0, 76.0), (1.0, 80.0)]) == pytest.approx(expected)
    # 5 points below the slowest still count, 5.1 do not, whatever comes after.
    kept = aup([(1.0, 80.0), (2.0, 75.0)])
    assert kept == pytest.approx(80 + 0.5 * (80 + 75 * math.exp(-3 * 5 / 80)))
    assert aup([(1.0, 80.0), (2.0, 75.0), (4.0, 74.9)]) == kept
    # A better method's accuracy weighs on every point but the first rectangle.
    weight = math.exp(-3 * 0.2)
    assert aup([(1.0, 80.0), (3.0, 80.0)], best_accuracy=100.0) == pytest.approx(80 + 160 * weight)
    # Better than the reference: the weight stays at one. Without a penalty: the plain area.
    assert aup([(1.0, 80.0), (3.0, 80.0)], best_accuracy=70.0) == pytest.approx(240.0)
    assert aup([(1.0, 80.0), (3.0, 76.0)], alpha=0.0) == pytest.approx(236.0)
    assert aup([(1.0, 0.0), (2.0, 0.0)]) == 0.0


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([], "at least one"),
        ([(0.0, 50.0)], "positive"),
        ([(1.0, 50.0), (1.0, 60.0)], "distinct"),
        ([(1.0, 101.0)], "percentages"),
        ([(1.0, 0.8), (2.0, 0.7)], "percentages"),
    ],
)
def test_aup_rejects(points, message):
    with pytest.raises(ValueError, match=message):
        aup(points)
    with pytest.raises(ValueError, match="best_accuracy"):
        aup([(1.0, 50.0)], best_accuracy=120.0)


def test_spearman_of_left_to_right_blocks():
    steps = np.arange(512) // 8
    sorted_steps, positions = spearman_any_order(steps)
    assert sorted_steps == 1.0
    assert positions == pytest.approx(math.sqrt(1 - (8**2 - 1) / (512**2 - 1)), abs=1e-12)
    assert round(positions, 5) == 0.99988


def test_spearman_by_hand():
    assert spearman_any_order([0, 1, 2, 3]) == (1.0, 1.0)
    assert spearman_any_order([3, 2, 1, 0]) == (-1.0, -1.0)
    # Without ties the classical form holds: 1 - 6·Σd²/(n(n²-1)), here Σd² = 1+1+0+1+1.
    assert spearman_any_order([1, 0, 2, 4, 3]) == pytest.approx((0.8, 0.8))
    # Ties: ranks (4.5, 2, 4.5, 2, 2), less their mean (1.5, -1, 1.5, -1, -1), squares 7.5.
    # Times themselves sorted: -5. Times (-2, -1, 0, 1, 2), squares 10: -5.
    forms = spearman_any_order([1, 0, 1, 0, 0])
    assert forms == pytest.approx((-5 / 7.5, -5 / math.sqrt(7.5 * 10)))
    assert all(math.isnan(value) for value in spearman_any_order([7, 7, 7]))


@given(st.lists(st.integers(0, 9), min_size=2, max_size=40))
def test_spearman_properties(steps):
    forms = spearman_any_order(steps)
    if len(set(steps)) == 1:
        assert all(math.isnan(value) for value in forms)
        return
    assert all(-1 <= value <= 1 for value in forms)
    assert spearman_any_order([3 * s + 5 for s in steps]) == pytest.approx(forms)  # ranks only
    assert (forms.sorted_steps > 1 - 1e-12) == (steps == sorted(steps))


@pytest.mark.parametrize("order", [[], [1], [[0, 1], [2, 3]]])
def test_spearman_rejects(order):
    with pytest.raises(ValueError, match="at least two"):
        spearman_any_order(order)
