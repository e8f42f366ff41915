"""The one-pass experiment computes what the two kernels do, so that its counts compare like."""

from __future__ import annotations

import pytest
import torch
from interpreter_checks import INTERPRETER

import codila_kernels as ck

pytestmark = INTERPRETER


@pytest.mark.parametrize("rows", [3, 17])
def test_one_pass(rows, generator):
    from benchmarks.experiments.one_pass import one_pass

    hidden = torch.randn(rows, 70, generator=generator)
    head = torch.randn(101, 70, generator=generator) / 4
    table = torch.randn(99, 40, generator=generator)
    options = dict(valid_vocab=97, temperature=0.7)
    logits = ck.head_stats(hidden.double(), head.double())[1]
    want = ck.expected_embedding(logits, table.double(), **options)
    got = one_pass(hidden, head, table, width=97, chunks=3, temperature=0.7)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)
