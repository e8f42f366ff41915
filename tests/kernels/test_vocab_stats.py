"""`vocab_stats` and `head_stats` on the reference path, against the definition."""

from __future__ import annotations

import math

import pytest
import torch
from kernel_definitions import Budget, distribution
from torch import Tensor

import codila_kernels as ck

EXACT = ("lse", "entropy", "top1_prob", "margin")


def check(logits: Tensor, temperature: float, **columns) -> None:
    """float64 to 1e-12 and float32 within its budget, every statistic of every row."""
    stats = ck.vocab_stats(logits.double(), temperature=temperature, **columns)
    single = ck.vocab_stats(logits.float(), temperature=temperature, **columns)
    for r, values in enumerate(logits.tolist()):
        row = distribution(values, temperature, **columns)
        assert row is not None
        budget = Budget.of(row, temperature or 1.0)
        for name in EXACT:
            exact = getattr(row, name)
            assert getattr(stats, name)[r].item() == pytest.approx(exact, rel=1e-12, abs=1e-12)
            error = abs(getattr(single, name)[r].item() - exact)
            assert error <= getattr(budget, name), (name, r, error, getattr(budget, name))
        assert stats.top1_id[r].item() == single.top1_id[r].item() == row.top1_id


@pytest.mark.parametrize(
    "rows, width, why",
    [
        (1, 1, "a single column: no second id"),
        (2, 2, "the smallest margin"),
        (3, 257, "a prime width"),
        (5, 1088, "a toy vocabulary"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 0.1, 1.0, 2.5])
def test_matches_definition(rows, width, why, temperature, generator):
    check(torch.randn(rows, width, generator=generator) * 4, temperature)


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_offset_does_not_enter_the_rounding(temperature, generator):
    """At offset 300 and T = 0.1, scaling first would lose 7.7e-5 of entropy."""
    near = (torch.randn(4, 999, generator=generator) * 64).round() / 64  # exact also with 300 added
    check(near + 300, temperature)
    plain = ck.vocab_stats(near, temperature=temperature)
    moved = ck.vocab_stats(near + 300, temperature=temperature)
    assert torch.equal(plain.entropy, moved.entropy)


def test_minus_infinity_columns_contribute_nothing(generator):
    logits = torch.randn(3, 600, generator=generator)
    logits[:, 100:500] = -math.inf
    logits[2] = -math.inf
    logits[2, 7] = 3.0  # one-hot
    check(logits, 0.7)
    stats = ck.vocab_stats(logits)
    assert stats.entropy[2] == 0 and stats.top1_prob[2] == 1 and stats.margin[2] == 1


def test_ties_go_to_the_lowest_id():
    logits = torch.zeros(2, 300)
    logits[0, [40, 41, 299]] = 2.0
    check(logits, 1.0)
    check(logits, 0.0)
    stats = ck.vocab_stats(logits)
    assert stats.top1_id.tolist() == [40, 0]
    assert stats.margin.tolist() == [0.0, 0.0]
    assert ck.vocab_stats(logits, temperature=0).margin.tolist() == [1.0, 1.0]


def test_banned_and_invalid_columns_take_no_part(generator):
    logits = torch.randn(4, 320, generator=generator)
    logits[:, 310] = 50.0  # beyond valid_vocab
    logits[:, 5] = math.nan  # banned, so not even NaN counts
    check(logits, 1.3, valid_vocab=301, banned_ids=(5, 300, 315))


@pytest.mark.parametrize("temperature", [0.0, 0.1, 1.0])
@pytest.mark.parametrize(
    "poison", [(-math.inf,), (math.nan,), (math.inf,)], ids=["all -inf", "NaN", "+inf"]
)
def test_rows_without_a_distribution_are_nan(poison, temperature, generator):
    logits = torch.randn(3, 50, generator=generator)
    if poison[0] == -math.inf:
        logits[1] = poison[0]
    else:
        logits[1, 20] = poison[0]
    stats = ck.vocab_stats(logits, temperature=temperature)
    for name in EXACT:
        assert getattr(stats, name).isnan().tolist() == [False, True, False], name
    assert stats.top1_id[1] == -1 and (stats.top1_id[[0, 2]] >= 0).all()
    with pytest.raises(ValueError, match=r"rows \[1\] have no distribution"):
        ck.vocab_stats(logits, temperature=temperature, check_finite=True)


def test_smallest_temperature_and_widest_logits_stay_numbers():
    logits = torch.tensor([[3e38, -3e38, 0.0], [1.0, 1.0, 1.0 - 2**-20]])
    stats = ck.vocab_stats(logits, temperature=1e-6)
    assert stats.entropy[0] == 0 and stats.top1_prob[0] == 1
    assert stats.entropy[1].item() == pytest.approx(
        distribution(logits[1].tolist(), 1e-6).entropy, abs=1e-5
    )


def test_dtypes(generator):
    logits = torch.randn(2, 64, generator=generator)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        stats = ck.vocab_stats(logits.to(dtype))
        assert stats.entropy.dtype == torch.float32 and stats.top1_id.dtype == torch.int64
        assert torch.equal(stats.entropy, ck.vocab_stats(logits.to(dtype).float()).entropy)


def test_statistics_hold_what_a_second_pass_needs(generator):
    """m is the logit at top1_id and log l = -log top1_prob, without the rounding of lse."""
    logits = torch.randn(4, 700, generator=generator).double() + 300
    stats = ck.vocab_stats(logits, temperature=0.1)
    m = logits.gather(-1, stats.top1_id.unsqueeze(-1)).squeeze(-1)
    torch.testing.assert_close(m / 0.1 - stats.top1_prob.log(), stats.lse, rtol=1e-14, atol=0)


def test_no_rows():
    assert ck.vocab_stats(torch.empty(0, 9)).entropy.shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_head_stats_are_those_of_the_stored_logits(dtype, generator):
    hidden = torch.randn(5, 24, generator=generator).to(dtype)
    head = torch.randn(90, 24, generator=generator).to(dtype)
    bias = torch.randn(90, generator=generator).to(dtype)
    columns = dict(temperature=0.8, valid_vocab=88, banned_ids=(3,))
    stats, logits = ck.head_stats(hidden, head, bias, **columns)
    assert logits.dtype == dtype and logits.shape == (5, 90) and logits.isfinite().all()
    exact = hidden.double() @ head.double().T + bias.double()
    size = hidden.double().abs() @ head.double().abs().T + bias.double().abs()
    assert ((logits.double() - exact).abs() <= 26 * torch.finfo(dtype).eps * size).all()
    for got, want in zip(stats, ck.vocab_stats(logits, **columns), strict=True):
        assert torch.equal(got, want)
    assert torch.equal(ck.head_stats(hidden, head)[1], hidden @ head.T)
