"""`head_stats` in the interpreter: logits against the definition, statistics against the logits.

The logits are held to the exact product within the budget of a float32 sum of H terms, and the
statistics to those of the logits that came back, so that each has an error budget of its own.
"""

from __future__ import annotations

import math

import pytest
import torch
from interpreter_checks import CAST, INTERPRETER, check_stats, rows_of
from kernel_definitions import head_logits, head_logits_budget

import codila_kernels as ck
from codila_kernels.configs import head_stats_config

pytestmark = [
    *INTERPRETER,
    pytest.mark.filterwarnings("ignore:(All-NaN slice|overflow encountered):RuntimeWarning"),
]


def check_head(stats, logits, hidden, head, bias=None, temperature=1.0, **columns):
    assert logits.dtype == hidden.dtype and logits.is_contiguous()
    exact = head_logits(hidden, head, bias)
    budget = head_logits_budget(hidden, head, bias, CAST[hidden.dtype])
    assert logits.shape == exact.shape
    assert ((logits.double() - exact).abs() <= budget).all()
    check_stats(stats, rows_of(logits, temperature, **columns), temperature)


def inputs(rows, vocabulary, width, generator, dtype=torch.float32):
    hidden = torch.randn(rows, width, generator=generator)
    head = torch.randn(vocabulary, width, generator=generator) * 2 / math.sqrt(width)
    bias = torch.randn(vocabulary, generator=generator)
    return hidden.to(dtype), head.to(dtype), bias.to(dtype)


@pytest.mark.parametrize(
    "rows, vocabulary, width, why",
    [
        (1, 1, 1, "the smallest of everything"),
        (16, 64, 128, "whole tiles only"),
        (3, 65, 65, "one past a chunk of the vocabulary and a slab of H"),
        (17, 97, 70, "one past a tile of rows; a prime vocabulary; a ragged second slab"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_head_stats(rows, vocabulary, width, why, dtype, generator):
    hidden, head, bias = inputs(rows, vocabulary, width, generator, dtype)
    check_head(*ck.head_stats(hidden, head, impl="triton"), hidden, head)
    stats, logits = ck.head_stats(hidden, head, bias, temperature=0.7, impl="triton")
    check_head(stats, logits, hidden, head, bias, 0.7)


@pytest.mark.parametrize("temperature", [0.0, 0.1, 1.0])
def test_head_stats_options(temperature, generator):
    """Rows of larger matrices; padding and banned ids of any chunk. No logit is masked."""
    hidden, head, bias = inputs(6, 200, 90, generator)
    hidden, head = hidden[::2, 3:83], head[:, 4:84]
    columns = dict(valid_vocab=150, banned_ids=(0, 31, 32, 63, 64, 149, 150, 199))
    stats, logits = ck.head_stats(
        hidden, head, bias, temperature=temperature, impl="triton", **columns
    )
    check_head(stats, logits, hidden, head, bias, temperature, **columns)


def test_columns_of_a_transposed_head_are_copied(generator):
    hidden, head, bias = inputs(3, 40, 20, generator)
    sparse = torch.stack((bias, bias), dim=-1)[:, 0]
    stats, logits = ck.head_stats(
        hidden.T.contiguous().T, head.T.contiguous().T, sparse, impl="triton"
    )
    check_head(stats, logits, hidden, head, bias)


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_head_stats_at_offset_300(temperature, generator):
    hidden, head, _ = inputs(3, 150, 40, generator)
    bias = torch.full((150,), 300.0)
    stats, logits = ck.head_stats(hidden, head, bias, temperature=temperature, impl="triton")
    check_head(stats, logits, hidden, head, bias, temperature)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_ties_go_to_the_lowest_id(temperature, generator):
    hidden, head, _ = inputs(4, 200, 40, generator)
    hidden[1] = 0.0  # every logit alike
    hidden[2] = 4.0
    head[[70, 71, 150]] = 1.0  # for row 2 the maximum, within a chunk and in another
    stats, logits = ck.head_stats(hidden, head, temperature=temperature, impl="triton")
    assert stats.top1_id[1:3].tolist() == [0, 70]
    assert temperature == 0 or stats.margin[1:3].tolist() == [0.0, 0.0]
    check_head(stats, logits, hidden, head, None, temperature)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_without_a_distribution_leave_the_others_alone(temperature, generator):
    hidden, head, bias = inputs(6, 200, 40, generator)
    head[:, 0] = 1.0
    bias[:64] = -math.inf  # a whole chunk that takes no part
    clean, clean_logits = ck.head_stats(hidden, head, bias, temperature=temperature, impl="triton")
    check_stats(clean, rows_of(clean_logits, temperature), temperature)
    hidden[1, 0] = -math.inf  # every logit -inf
    hidden[2, 39] = math.nan
    hidden[4, 0] = math.inf
    stats, logits = ck.head_stats(hidden, head, bias, temperature=temperature, impl="triton")
    rows = rows_of(logits, temperature)
    assert [row is None for row in rows] == [False, True, True, False, True, False]
    check_stats(stats, rows, temperature)
    whole = [0, 3, 5]
    assert torch.equal(logits[whole], clean_logits[whole])
    assert all(torch.equal(a[whole], b[whole]) for a, b in zip(stats, clean, strict=True))
    with pytest.raises(ValueError, match=r"rows \[1, 2, 4\]"):
        ck.head_stats(hidden, head, bias, impl="triton", check_finite=True)


def test_statistics_are_those_of_the_rounded_logits(generator):
    """Values a bfloat16 logit cannot tell apart tie; the largest float16 overflows to +inf."""
    hidden = torch.ones(1, 2).bfloat16()
    head = torch.tensor([[256.0, 0.25], [256.0, 0.5], [1.0, 1.0]]).bfloat16()
    stats, logits = ck.head_stats(hidden, head, impl="triton")
    assert logits.tolist() == [[256.0, 256.0, 2.0]]
    assert stats.top1_id.item() == 0 and stats.margin.item() == 0.0
    assert abs(stats.entropy.item() - math.log(2)) < 1e-6
    stats, logits = ck.head_stats(hidden.half() * 300, head.half(), impl="triton")
    assert logits[0, 0] == math.inf and stats.top1_id.item() == -1 and stats.entropy.isnan()


def test_a_row_has_the_same_bits_whatever_the_rows_beside_it(generator):
    """One, two and five tiles of rows in a program, and two programs of three past 80 rows."""
    hidden, head, bias = inputs(81, 70, 40, generator)
    whole, whole_logits = ck.head_stats(hidden, head, bias, impl="triton")
    check_head(whole, whole_logits, hidden, head, bias)
    for start, count in ((80, 1), (16, 16), (43, 17), (1, 80)):
        part = slice(start, start + count)
        stats, logits = ck.head_stats(hidden[part], head, bias, impl="triton")
        assert torch.equal(logits, whole_logits[part]), (start, count)
        for got, want in zip(stats, whole, strict=True):
            assert torch.equal(got, want[part]), (start, count)


def test_head_stats_with_the_tile_of_the_chips(generator):
    from codila_kernels.kernels.head_stats import head_stats_triton

    hidden, head, bias = inputs(5, 300, 192, generator, torch.bfloat16)
    config = head_stats_config(300, 192, torch.bfloat16, "sm_90")
    *stats, logits = head_stats_triton(hidden, head, bias, 1.0, 290, (7,), config)
    columns = dict(valid_vocab=290, banned_ids=(7,))
    check_head(ck.VocabStats(*stats), logits, hidden, head, bias, **columns)


def test_offsets_beyond_32_bits(generator):
    """Rows of hidden and of the head a gigaelement apart, in memory that is not touched."""
    stride, width = 2**30, 40
    try:
        storage = torch.ops.aten.empty.memory_format([3 * stride], dtype=torch.float16)
    except RuntimeError:
        pytest.xfail("this machine does not lend 6 GB of untouched address space")
    hidden = storage.as_strided((3, width), (stride, 1))
    head = storage.as_strided((3, width), (stride, 1), width)
    few_hidden, few_head, _ = inputs(3, 3, width, generator, torch.float16)
    hidden.copy_(few_hidden)
    head.copy_(few_head)
    check_head(*ck.head_stats(hidden, head, impl="triton"), few_hidden, few_head)


def test_no_rows():
    stats, logits = ck.head_stats(torch.zeros(0, 9), torch.zeros(4, 9), impl="triton")
    assert logits.shape == (0, 4) and all(tensor.shape == (0,) for tensor in stats)


@pytest.mark.parametrize("with_bias", [False, True])
def test_gradients_of_the_logits(with_bias, generator):
    tensors = list(inputs(3, 30, 20, generator)[: 3 if with_bias else 2])
    grad = torch.randn(3, 30, generator=generator)
    exact = [tensor.double().requires_grad_() for tensor in tensors]
    want = torch.autograd.grad(head_logits(*exact), exact, grad.double())
    leaves = [tensor.requires_grad_() for tensor in tensors]
    stats, logits = ck.head_stats(*leaves, impl="triton")
    assert not any(tensor.requires_grad for tensor in stats)
    got = torch.autograd.grad(logits, leaves, grad)
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)
