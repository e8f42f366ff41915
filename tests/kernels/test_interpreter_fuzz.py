"""Random shapes, strides, dtypes, temperatures and broken values against the definitions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interpreter_checks import INTERPRETER, check_soft, check_stats, rows_of
from kernel_definitions import kept_ids

import codila_kernels as ck

pytestmark = INTERPRETER

few = settings(
    max_examples=20,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@st.composite
def cases(draw):
    """Logits whose rows are strided, offset or broken, and the columns that take part."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))
    rows, width = draw(st.integers(1, 4)), draw(st.sampled_from([1, 2, 31, 64, 65, 130]))
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    step, pad = draw(st.sampled_from([1, 2])), draw(st.sampled_from([0, 3]))
    values = torch.randn(rows * step, width + pad, generator=generator) * 3
    values += draw(st.sampled_from([0.0, 300.0]))
    logits = values.to(dtype)[::step, :width]
    for value in draw(st.lists(st.sampled_from([-math.inf, math.nan, math.inf]), max_size=2)):
        logits[draw(st.integers(0, rows - 1)), draw(st.integers(0, width - 1))] = value
    valid = draw(st.one_of(st.none(), st.integers(1, width)))
    banned = draw(st.lists(st.integers(0, width - 1), max_size=3))
    columns = {"valid_vocab": valid, "banned_ids": tuple(banned)}
    return logits, draw(st.sampled_from([0.0, 0.1, 1.0, 3.0])), columns, generator


@few
@given(case=cases())
def test_vocab_stats(case, quick_device_functions):
    logits, temperature, columns, _ = case
    stats = ck.vocab_stats(logits, temperature=temperature, impl="triton", **columns)
    check_stats(stats, rows_of(logits, temperature, **columns), temperature)


@few
@given(case=cases(), top_k=st.sampled_from([None, None, 1]), reuse=st.booleans())
def test_expected_embedding(case, top_k, reuse, quick_device_functions):
    logits, temperature, columns, generator = case
    table = torch.randn(logits.shape[1], 5, generator=generator)
    stats = ck.vocab_stats(logits, impl="torch", **columns) if reuse else None
    picked = torch.randint(len(logits), (3,), generator=generator)
    soft = ck.expected_embedding(
        logits, table, rows=picked, top_k=top_k, stats=stats, temperature=temperature,
        impl="triton", **columns,
    )  # fmt: skip
    # hard is the arg-max at any temperature
    rows = rows_of(logits[picked], 0.0 if top_k == 1 else temperature, **columns)
    check_soft(soft, rows, table)


@few
@given(case=cases(), top_k=st.sampled_from([None, 1, 3]))
def test_sample_tokens_draws_what_is_kept(case, top_k, quick_device_functions):
    logits, temperature, columns, _ = case
    seeds = torch.arange(len(logits))
    counters = torch.zeros(len(logits), 2, dtype=torch.int32)
    top_k = None if top_k is None else min(top_k, logits.shape[1])
    ids, probs = ck.sample_tokens(
        logits, seeds, counters, top_k=top_k, temperature=temperature, impl="triton", **columns
    )
    for r, row in enumerate(rows_of(logits, temperature, **columns)):
        if row is None:
            assert ids[r] == -1 and probs[r].isnan()
            continue
        kept = kept_ids(row, top_k, None)
        assert ids[r].item() in kept
        share = row.probabilities[ids[r]] / math.fsum(row.probabilities[i] for i in kept)
        # float32 exponents of a few hundred, relative error 2^-22, weights in units of 2^-40
        assert probs[r].item() == pytest.approx(share, rel=1e-4, abs=1e-9)
