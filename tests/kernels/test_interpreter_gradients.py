"""Gradients of `expected_embedding`'s kernels, against autograd through the float64 reference."""

from __future__ import annotations

import math

import pytest
import torch
from interpreter_checks import CAST, INTERPRETER
from kernel_definitions import U

import codila_kernels as ck

pytestmark = INTERPRETER

WIDTH, EMBEDDING = 70, 37  # ragged tiles of 32 ids and of 32 summed columns


def gradients(logits, table, grad, impl, **options):
    leaves = [tensor.detach().clone().requires_grad_() for tensor in (logits, table)]
    out = ck.expected_embedding(*leaves, impl=impl, **options)
    return torch.autograd.grad(out, leaves, grad.to(out.dtype), allow_unused=True)


def gradient_budgets(logits, table, grad, rows, temperature, **options):
    """First-order float32 error of dz [R, V] and dE [Va, D].

    A probability is off by ``p (8 |d| + 8 + V) u``, with d its exponent and the total's, which is
    a sum of V terms. With c the rounding of an operand or a result to the table's dtype, dE adds N
    products: ``sum_r p |g| (error of p + 2 c + N u)``. dz is p/T times a difference of two sums of
    D products, so its error is ``p/T * S (error of p + 2 c + (2 D + 4) u)`` with S the sums of
    their magnitudes; the output in the second sum is itself a sum of V terms.
    """
    n = torch.arange(len(logits)) if rows is None else rows.long()
    z, e, g = logits.double()[n], table.double().abs(), grad.double().abs()
    cast, v, depth = CAST[table.dtype], logits.shape[1], logits.shape[1] + 2 * table.shape[1] + 12
    spread = (z.amax(-1, keepdim=True) - z.amin(-1, keepdim=True)) / temperature
    # the soft distribution at its own columns, from the oracle's gradient to a table of one-hots
    p = ck.expected_embedding(
        z, torch.eye(v, dtype=torch.float64), impl="torch", temperature=temperature, **options
    )
    relative = (8 * spread + 8 + depth) * U + 3 * cast
    sizes = g @ e[:v].mT + (g * (p @ e[:v])).sum(-1, keepdim=True)
    per_mention = p / temperature * sizes * relative
    of_logits = torch.zeros(logits.shape, dtype=torch.float64).index_add_(0, n, per_mention)
    of_table = p.mT @ (g * (relative + (len(n) + 2) * U))
    return of_logits * (1 + cast), of_table * (1 + cast)


@pytest.mark.parametrize("rows", [None, (3, 1, 3, 3, 0)], ids=["all rows", "repeats"])
@pytest.mark.parametrize("top_k", [None, 3], ids=["soft", "top-k"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_within_the_budget(rows, top_k, dtype, generator):
    logits = torch.randn(18 if rows is None else 4, WIDTH, generator=generator)
    logits[1, 32:64] = -20.0  # a whole tile of next to nothing
    table = torch.randn(WIDTH, EMBEDDING, generator=generator).to(dtype)
    rows = None if rows is None else torch.tensor(rows, dtype=torch.int32)
    options = dict(temperature=0.7, valid_vocab=66, banned_ids=(4,), top_k=top_k)
    grad = torch.randn(len(logits) if rows is None else len(rows), EMBEDDING, generator=generator)
    grad = grad.to(dtype)
    ours = gradients(logits, table, grad, "triton", rows=rows, **options)
    exact = gradients(logits.double(), table.double(), grad, "torch", rows=rows, **options)
    budgets = gradient_budgets(logits, table, grad, rows, **options)
    for got, want, budget in zip(ours, exact, budgets, strict=True):
        error = (got.double() - want).abs()
        assert (error <= budget).all(), (error - budget).max()
        assert want.abs().max() > 100 * error.max()  # the budget is not what lets it pass
    again = gradients(logits, table, grad, "triton", rows=rows, **options)
    assert all(torch.equal(a, b) for a, b in zip(ours, again, strict=True))


@pytest.mark.parametrize("rows", [None, (2, 0, 2)], ids=["all rows", "repeats"])
def test_the_hard_token_sends_its_gradient_to_one_row(rows, generator):
    logits = torch.tensor([[0.0, 1.0, 0.0], [2.0, 0.0, 0.0], [0.0, 3.0, 0.0]])
    table, grad = torch.zeros(3, 2), torch.tensor([[1.0, 2.0], [4.0, 8.0], [16.0, 32.0]])
    want = {None: [[4, 8], [17, 34], [0, 0]], (2, 0, 2): [[0, 0], [21, 42], [0, 0]]}[rows]
    index = None if rows is None else torch.tensor(rows)
    of_logits, of_table = gradients(logits, table, grad, "triton", top_k=1, rows=index)
    assert of_logits is None
    assert of_table.tolist() == want


def test_only_what_is_needed_is_computed(generator):
    logits = torch.randn(2, 40, generator=generator)
    table = torch.randn(40, 3, generator=generator)
    for options in (dict(), dict(top_k=2)):
        for needed, other in ((logits, table), (table, logits)):
            needed.requires_grad_()
            out = ck.expected_embedding(logits, table, impl="triton", **options)
            out.sum().backward()
            assert needed.grad is not None and other.grad is None
            needed.requires_grad_(False)
            needed.grad = None


def test_a_row_without_a_distribution_spoils_its_own_gradient_only(generator):
    logits = torch.randn(3, 40, generator=generator)
    logits[1] = -math.inf
    table = torch.randn(40, 3, generator=generator)
    of_logits, _ = gradients(logits, table, torch.ones(3, 3), "triton")
    assert of_logits.isnan().all(-1).tolist() == [False, True, False]
    assert of_logits[[0, 2]].isfinite().all()
