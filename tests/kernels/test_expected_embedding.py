"""`expected_embedding` on the reference path, against the definition, and its gradients."""

from __future__ import annotations

import math

import pytest
import torch
from kernel_definitions import distribution, expected_embedding, expected_embedding_budget

import codila_kernels as ck
from codila_kernels.reference import largest_ids


def rows_of(logits, temperature=1.0, **columns):
    return [distribution(values, temperature, **columns) for values in logits.tolist()]


def top_k_logits(logits, k):
    """Everything but the k largest logits at -inf, ties to the lowest id."""
    out = torch.full_like(logits, -math.inf)
    for r, values in enumerate(logits.tolist()):
        for i in sorted(range(len(values)), key=lambda i: (-values[i], i))[:k]:
            out[r, i] = values[i]
    return out


@pytest.mark.parametrize("temperature", [0.0, 0.1, 1.0, 3.0])
@pytest.mark.parametrize("offset", [0, 300])
def test_soft_matches_definition(temperature, offset, generator):
    logits = torch.randn(4, 301, generator=generator) * 3 + offset
    table = torch.randn(301, 23, generator=generator)
    rows = rows_of(logits, temperature)
    exact = expected_embedding(rows, table)
    oracle = ck.expected_embedding(logits.double(), table.double(), temperature=temperature)
    torch.testing.assert_close(oracle, exact, rtol=1e-12, atol=1e-12)
    single = ck.expected_embedding(logits, table, temperature=temperature)
    budget = expected_embedding_budget(rows, table, cast=0.0, additions=301)
    assert ((single.double() - exact).abs() <= budget).all()


def test_probabilities_sum_to_one_at_large_offsets(generator):
    """A table of ones shows the total; from one float32 lse it would be off by 2e-4."""
    logits = torch.randn(8, 5000, generator=generator) * 2 + 300
    ones = torch.ones(5000, 1)
    for temperature in (0.1, 1.0):
        stats = ck.vocab_stats(logits, temperature=temperature)
        for given in (None, stats):
            total = ck.expected_embedding(logits, ones, temperature=temperature, stats=given)
            assert (total - 1).abs().max() < 2e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_low_precision_table_costs_one_rounding(dtype, generator):
    logits = torch.randn(3, 40_000, generator=generator)  # three pieces of the upcast
    table = torch.randn(40_000, 5, generator=generator).to(dtype)
    out = ck.expected_embedding(logits, table)
    assert out.dtype == dtype
    exact = torch.softmax(logits.double(), -1) @ table.double()
    error = (out.double() - exact).abs()
    assert (error <= exact.abs() * torch.finfo(dtype).eps / 2 + 1e-6).all()


def test_logits_wider_than_the_table(generator):
    logits = torch.randn(2, 40, generator=generator)
    table = torch.randn(33, 6, generator=generator)
    columns = dict(valid_vocab=30, banned_ids=(2, 29, 39))
    got = ck.expected_embedding(logits.double(), table.double(), **columns)
    exact = expected_embedding(rows_of(logits.double(), **columns), table)
    torch.testing.assert_close(got, exact, rtol=1e-12, atol=1e-12)
    with pytest.raises(ValueError, match="pass valid_vocab=33 or less"):
        ck.expected_embedding(logits, table)
    with pytest.raises(ValueError, match="valid_vocab=34 but a table of 33 rows"):
        ck.expected_embedding(logits, table, valid_vocab=34)


@pytest.mark.parametrize("top_k", [1, 2, 3, 64])
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_top_k_renormalises_over_the_largest(top_k, temperature, generator):
    logits = (torch.randn(6, 90, generator=generator) * 2).round()  # integers: many ties
    table = torch.randn(90, 7, generator=generator).double()
    got = ck.expected_embedding(logits.double(), table, top_k=top_k, temperature=temperature)
    exact = expected_embedding(rows_of(top_k_logits(logits, top_k), temperature), table)
    torch.testing.assert_close(got, exact, rtol=1e-12, atol=1e-12)


def test_top_k_beyond_the_columns_is_soft(generator):
    logits = torch.randn(2, 20, generator=generator)
    table = torch.randn(20, 4, generator=generator)
    soft = ck.expected_embedding(logits, table)
    assert torch.equal(ck.expected_embedding(logits, table, top_k=20), soft)
    assert torch.equal(ck.expected_embedding(logits, table, top_k=64), soft)


def test_top_k_with_fewer_finite_logits_than_k(generator):
    logits = torch.full((1, 30), -math.inf)
    logits[0, [4, 9]] = torch.tensor([1.0, 0.0])
    table = torch.randn(30, 4, generator=generator)
    torch.testing.assert_close(
        ck.expected_embedding(logits, table, top_k=5), ck.expected_embedding(logits, table)
    )


def test_largest_ids_breaks_ties_by_the_lowest_id():
    z = torch.tensor([[1.0, 2.0, 2.0, 0.0, 2.0, 1.0], [0.0] * 6])
    assert largest_ids(z, 2).tolist() == [[1, 2], [0, 1]]
    assert largest_ids(z, 4).tolist() == [[0, 1, 2, 4], [0, 1, 2, 3]]


@pytest.mark.parametrize("spread", [2, 30, 3000])  # equals past any short list, some, none
@pytest.mark.parametrize("k", [2, 17, 64])
def test_largest_ids_are_those_of_a_stable_sort(spread, k, generator):
    z = torch.randint(spread, (4, 3000), generator=generator).float()
    by_size = z.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    assert torch.equal(largest_ids(z, k), by_size.sort(dim=-1).values)


@pytest.mark.parametrize("options", [dict(), dict(top_k=3), dict(top_k=1), dict(temperature=0)])
def test_rows_without_a_distribution_are_nan(options, generator):
    logits = torch.randn(5, 40, generator=generator)
    logits[1] = -math.inf
    logits[2, 8] = math.nan
    logits[3, 8] = math.inf
    table = torch.randn(40, 3, generator=generator)
    for stats in (None, ck.vocab_stats(logits)):
        out = ck.expected_embedding(logits, table, stats=stats, **options)
        assert out.isnan().all(-1).tolist() == [False, True, True, True, False]
        assert out[[0, 4]].isfinite().all()


@pytest.mark.parametrize("options", [dict(), dict(top_k=4), dict(top_k=1), dict(temperature=0)])
@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
def test_rows_and_stats(options, index_dtype, generator):
    """`rows` picks and repeats; `stats` are of all rows, taken at any temperature."""
    logits = torch.randn(5, 50, generator=generator).double()
    table = torch.randn(50, 3, generator=generator).double()
    rows = torch.tensor([3, 0, 3], dtype=index_dtype)
    whole = ck.expected_embedding(logits, table, **options)
    stats = ck.vocab_stats(logits, temperature=0.3)
    for given in (None, stats):
        picked = ck.expected_embedding(logits, table, rows=rows, stats=given, **options)
        torch.testing.assert_close(picked, whole[rows.long()], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("options", [dict(), dict(temperature=0.6), dict(top_k=3, temperature=0.6)])
@pytest.mark.parametrize("with_rows", [False, True])
def test_gradients_against_finite_differences(options, with_rows, generator):
    logits = torch.randn(4, 9, generator=generator).double().requires_grad_()
    table = torch.randn(9, 3, generator=generator).double().requires_grad_()
    rows = torch.tensor([2, 0, 2]) if with_rows else None

    def op(z, e):
        return ck.expected_embedding(
            z, e, rows=rows, valid_vocab=8, banned_ids=(1,), impl="torch", **options
        )

    assert torch.autograd.gradcheck(op, (logits, table))


def test_hard_token_has_a_gradient_to_the_table_only(generator):
    logits = torch.randn(3, 9, generator=generator).requires_grad_()
    table = torch.randn(9, 2, generator=generator).requires_grad_()
    ck.expected_embedding(logits, table, top_k=1).sum().backward()
    assert logits.grad is None and table.grad is not None
    assert table.grad.sum() == 3 * 2


def test_no_rows(generator):
    table = torch.randn(9, 4, generator=generator)
    assert ck.expected_embedding(torch.empty(0, 9), table).shape == (0, 4)


def test_soft_tokens_of_vocabulary_shards_merge_by_their_log_sums(generator):
    """Each shard normalises over its own columns; adding their soft tokens up would be wrong."""
    logits = torch.randn(5, 90, generator=generator, dtype=torch.float64) * 4
    table = torch.randn(90, 7, generator=generator, dtype=torch.float64)
    whole = ck.expected_embedding(logits, table, temperature=0.7)
    lse, soft = [], []
    for shard in (slice(0, 31), slice(31, 90)):
        lse.append(ck.vocab_stats(logits[:, shard], temperature=0.7).lse)
        soft.append(ck.expected_embedding(logits[:, shard], table[shard], temperature=0.7))
    weight = torch.stack(lse).softmax(0)[..., None]
    torch.testing.assert_close((weight * torch.stack(soft)).sum(0), whole)
