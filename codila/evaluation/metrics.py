"""Numbers of the evaluation, and how sure one may be of them. numpy and the standard library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import NamedTuple

import numpy as np

AUP_TOLERANCE = 5.0
"""Points of accuracy below the slowest setting at which `aup` stops counting a setting."""


class Interval(NamedTuple):
    """A two-sided confidence interval."""

    lower: float
    upper: float


class McNemar(NamedTuple):
    """McNemar's test: the two discordant counts (cells b and c) and the exact p-value."""

    first_only: int
    second_only: int
    p_value: float


class AnyOrder(NamedTuple):
    """Spearman's correlation of the decoding order with left to right, in two forms."""

    sorted_steps: float
    positions: float


def wilson_interval(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval for a proportion, without continuity correction (Wilson 1927).

    Raises:
        ValueError: no trials, more successes than trials, or a confidence outside (0, 1).
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(f"need 0 <= successes <= n and n >= 1, got {successes} of {n}")
    z = _normal_quantile(confidence)
    p = successes / n
    center = p + z * z / (2 * n)
    half = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    # The ends at 0 and n are exact in theory and a rounding error off in floating point.
    lower = 0.0 if successes == 0 else (center - half) / scale
    upper = 1.0 if successes == n else (center + half) / scale
    return Interval(lower, upper)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased estimate of pass@k from `c` correct ones of `n` samples (Chen et al. 2021).

    The probability that `k` samples drawn without replacement hold a correct one:
    ``1 - C(n-c, k) / C(n, k)``.

    Raises:
        ValueError: unless ``0 <= c <= n`` and ``1 <= k <= n``.
    """
    if not 0 <= c <= n:
        raise ValueError(f"need 0 <= c <= n, got c={c}, n={n}")
    if not 1 <= k <= n:
        raise ValueError(f"need 1 <= k <= n, got k={k}, n={n}: draw more samples")
    return 1.0 - math.comb(n - c, k) / math.comb(n, k)


def mcnemar(a: Sequence[bool], b: Sequence[bool]) -> McNemar:
    """McNemar's exact test that two systems pass equally often, on the same problems in order.

    Under that hypothesis each problem on which they differ is a fair coin. The p-value is
    two-sided: ``min(1, 2 P[X <= min(first_only, second_only)])``, X binomial with p = 1/2.

    Raises:
        ValueError: the sequences are empty or differ in length.
    """
    _, first_only, second_only, _ = _paired_counts(a, b)
    n = first_only + second_only
    tail = sum(math.comb(n, i) for i in range(min(first_only, second_only) + 1))
    return McNemar(first_only, second_only, min(1.0, 2 * tail / 2**n))


def paired_difference_interval(
    a: Sequence[bool], b: Sequence[bool], confidence: float = 0.95
) -> Interval:
    """Interval for the difference of paired proportions, mean(a) - mean(b).

    Newcombe's square-and-add interval (Statistics in Medicine 17:2635-2650, 1998, method 10): the
    two Wilson intervals, joined with the observed correlation; the latter is
    continuity-corrected where it is positive and zero where a margin is empty. It keeps its
    coverage for small samples and rates near 0 or 1, where the normal interval does not.

    Raises:
        ValueError: the sequences are empty or differ in length, or a confidence outside (0, 1).
    """
    both, first_only, second_only, neither = _paired_counts(a, b)
    n = both + first_only + second_only + neither
    first, second = both + first_only, both + second_only
    p1, p2 = first / n, second / n
    l1, u1 = wilson_interval(first, n, confidence)
    l2, u2 = wilson_interval(second, n, confidence)
    margins = first * (n - first) * second * (n - second)
    covariance: float = both * neither - first_only * second_only
    if covariance > 0:
        covariance = max(covariance - n / 2, 0.0)
    correlation = covariance / math.sqrt(margins) if margins else 0.0

    def combine(x: float, y: float) -> float:
        return math.sqrt(max(x * x + y * y - 2 * correlation * x * y, 0.0))

    difference = (first_only - second_only) / n
    return Interval(
        difference - combine(p1 - l1, u2 - p2),
        difference + combine(u1 - p1, p2 - l2),
    )


def aup(
    points: Sequence[tuple[float, float]], alpha: float = 3.0, best_accuracy: float | None = None
) -> float:
    """Accuracy under parallelism (d3LLM): the area under accuracy over tokens per forward.

    With the points sorted by parallelism and those more than 5 points of accuracy below the first
    one left out, ``ρ1·y1 + ½ Σ (ρi - ρi-1)·(yi·W(yi) + yi-1·W(yi-1))`` where
    ``W(y) = min(exp(-alpha·(1 - y/y_max)), 1)``.

    Args:
        points: pairs of tokens per forward and accuracy in percent, in any order.
        alpha: how strongly lost accuracy is punished.
        best_accuracy: ``y_max`` in percent, the best accuracy that is known for the task. The
            best of `points` by default; give it to compare methods with each other.

    Raises:
        ValueError: no points, a parallelism that is not positive or given twice, an accuracy
            outside [0, 100], or accuracies that look like fractions of one.
    """
    ordered = sorted((float(rho), float(y)) for rho, y in points)
    if not ordered:
        raise ValueError("aup needs at least one point")
    rhos = [rho for rho, _ in ordered]
    if not all(rho > 0 and math.isfinite(rho) for rho in rhos) or len(set(rhos)) < len(rhos):
        raise ValueError(f"tokens per forward must be positive and distinct, got {rhos}")
    top = max(y for _, y in ordered)
    if not all(0 <= y <= 100 for _, y in ordered) or 0 < top <= 1:
        raise ValueError(f"accuracies must be percentages, got {[y for _, y in ordered]}")
    reference = top if best_accuracy is None else float(best_accuracy)
    if not 0 <= reference <= 100:
        raise ValueError(f"best_accuracy must be a percentage, got {best_accuracy}")

    def weighted(y: float) -> float:
        return y * min(math.exp(-alpha * (1 - y / reference)), 1.0) if reference else 0.0

    kept = [(rho, y) for rho, y in ordered if y >= ordered[0][1] - AUP_TOLERANCE]
    area = kept[0][0] * kept[0][1]
    for (rho0, y0), (rho1, y1) in zip(kept, kept[1:], strict=False):
        area += (rho1 - rho0) * (weighted(y0) + weighted(y1)) / 2
    return area


def spearman_any_order(order: Sequence[int]) -> AnyOrder:
    """How far a decoding order is from left to right: 1 is left to right, less is any order.

    Both forms correlate ranks, ties at their mean. ``sorted_steps`` correlates the steps with the
    same steps sorted (ParallelBench): any block-wise left to right order gives exactly 1.
    ``positions`` correlates the steps with the positions: B tokens per step cost it
    ``1 - sqrt(1 - (B²-1)/(N²-1))`` even then.

    Args:
        order: for each position, left to right, the step at which it was unmasked. Leave padding
            out of it.

    Returns:
        Two correlations in [-1, 1]; nan where all positions were unmasked in one step.

    Raises:
        ValueError: fewer than two positions, or not one-dimensional.
    """
    steps = np.asarray(order)
    if steps.ndim != 1 or steps.size < 2:
        raise ValueError(f"order must list at least two steps, got shape {steps.shape}")
    ranks = _mean_ranks(steps)
    return AnyOrder(
        _correlation(np.sort(ranks), ranks),
        _correlation(np.arange(1.0, steps.size + 1), ranks),
    )


def _normal_quantile(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    return NormalDist().inv_cdf((1 + confidence) / 2)


def _paired_counts(a: Sequence[bool], b: Sequence[bool]) -> tuple[int, int, int, int]:
    """Counts of: both passed, only the first, only the second, neither."""
    if len(a) != len(b) or len(a) == 0:
        raise ValueError(
            f"paired outcomes must be of the same problems, got {len(a)} and {len(b)} of them"
        )
    pairs = [(bool(x), bool(y)) for x, y in zip(a, b, strict=True)]
    cells = ((True, True), (True, False), (False, True), (False, False))
    both, first_only, second_only, neither = (pairs.count(cell) for cell in cells)
    return both, first_only, second_only, neither


def _mean_ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1, equal values sharing the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]


def _correlation(x: np.ndarray, y: np.ndarray) -> float:
    x, y = x - x.mean(), y - y.mean()
    scale = math.sqrt(float(x @ x) * float(y @ y))
    return float(np.clip(x @ y / scale, -1.0, 1.0)) if scale else math.nan
