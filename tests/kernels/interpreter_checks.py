"""What the interpreter tests share: kernels against the definition, within an error budget."""

from __future__ import annotations

import pytest
import torch
from kernel_definitions import Budget, distribution, expected_embedding, expected_embedding_budget

INTERPRETER = [
    pytest.mark.interpret,
    pytest.mark.usefixtures("poisoned_scratch"),
    pytest.mark.filterwarnings("ignore:(invalid value|divide by zero):RuntimeWarning"),  # meant
]
"""`pytestmark` of a module that runs Triton kernels in the interpreter."""

# Rounding to bfloat16 truncates in the interpreter: one unit in the last place instead of half.
CAST = {torch.float32: 0.0, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
STATISTICS = ("lse", "entropy", "top1_prob", "margin")


def rows_of(logits, temperature, **columns):
    return [distribution(values, temperature, **columns) for values in logits.tolist()]


def check_stats(stats, rows, temperature):
    for r, row in enumerate(rows):
        if row is None:
            assert stats.top1_id[r] == -1
            assert all(getattr(stats, name)[r].isnan() for name in STATISTICS)
            continue
        budget = Budget.of(row, temperature or 1.0)
        assert stats.top1_id[r].item() == row.top1_id
        for name in STATISTICS:
            error = abs(getattr(stats, name)[r].item() - getattr(row, name))
            assert error <= getattr(budget, name), (name, r, error)


def check_soft(out, rows, table, additions=None):
    """`additions`: the longest chain, a row's whole vocabulary in the worst case."""
    exact = expected_embedding(rows, table)
    budget = expected_embedding_budget(rows, table, CAST[table.dtype], additions or len(table))
    assert out.dtype == table.dtype and out.shape == exact.shape
    assert torch.equal(out.isnan(), exact.isnan())
    assert ((out.double() - exact).abs().nan_to_num() <= budget).all()
