"""Random shapes, strides, dtypes, temperatures and broken values against the definitions."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interpreter_checks import INTERPRETER, check_soft, check_stats, rows_of
from kernel_definitions import kept_ids
from test_interpreter_block_entropy import check as check_choice
from test_interpreter_head_stats import check_head
from test_interpreter_top_k import top_k_rows

import codila_kernels as ck

pytestmark = INTERPRETER

few = settings(
    max_examples=40,
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


KINDS = st.tuples(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]), st.booleans())
"""Dtype of a matrix, and whether its rows are further apart than they are long."""


def matrix(rows, columns, kind, generator):
    dtype, apart = kind
    values = torch.randn(rows, columns + 3 * apart, generator=generator).to(dtype)
    return values[:, 2 * apart : 2 * apart + columns]


@few
@given(case=cases())
def test_vocab_stats(case, quick_device_functions):
    logits, temperature, columns, _ = case
    stats = ck.vocab_stats(logits, temperature=temperature, impl="triton", **columns)
    check_stats(stats, rows_of(logits, temperature, **columns), temperature)


@few
@given(case=cases(), top_k=st.sampled_from([None, None, 1]), reuse=st.booleans(), kind=KINDS)
def test_expected_embedding(case, top_k, reuse, kind, quick_device_functions):
    logits, temperature, columns, generator = case
    table = matrix(logits.shape[1], 5, kind, generator)
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


@few
@given(case=cases(), top_k=st.sampled_from([2, 3, 7, 64]), reuse=st.booleans(), kind=KINDS)
def test_top_k_conditioning(case, top_k, reuse, kind, quick_device_functions):
    logits, temperature, columns, generator = case
    table = matrix(logits.shape[1], 5, kind, generator)
    stats = ck.vocab_stats(logits, impl="torch", **columns) if reuse else None
    picked = torch.randint(len(logits), (3,), generator=generator)
    soft = ck.expected_embedding(
        logits, table, rows=picked, top_k=top_k, stats=stats, temperature=temperature,
        impl="triton", **columns,
    )  # fmt: skip
    check_soft(soft, top_k_rows(logits[picked], top_k, temperature, **columns), table)


@few
@given(
    rows=st.integers(1, 18),
    vocabulary=st.sampled_from([1, 2, 31, 64, 65, 130]),
    width=st.sampled_from([1, 7, 32, 65]),
    kind=KINDS,
    with_bias=st.booleans(),
    temperature=st.sampled_from([0.0, 0.1, 1.0]),
    seed=st.integers(0, 2**20),
    data=st.data(),
)
def test_head_stats(
    rows, vocabulary, width, kind, with_bias, temperature, seed, data, quick_device_functions
):
    generator = torch.Generator().manual_seed(seed)
    hidden, head = (matrix(n, width, kind, generator) for n in (rows, vocabulary))
    bias = matrix(1, vocabulary, (kind[0], False), generator)[0] if with_bias else None
    ids = st.lists(st.integers(0, vocabulary - 1), max_size=3)
    columns = {
        "valid_vocab": data.draw(st.one_of(st.none(), st.integers(1, vocabulary))),
        "banned_ids": tuple(data.draw(ids)),
    }
    stats, logits = ck.head_stats(
        hidden, head, bias, temperature=temperature, impl="triton", **columns
    )
    check_head(stats, logits, hidden, head, bias, temperature, **columns)


@few
@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 6)),
    dynamic=st.booleans(),
    blocks=st.integers(1, 4),
    threshold=st.sampled_from([-1.0, 0.0, 0.4, 1.0, math.inf]),
    transposed=st.booleans(),
    seed=st.integers(0, 2**20),
)
def test_block_entropy(shape, dynamic, blocks, threshold, transposed, seed, quick_device_functions):
    generator = torch.Generator().manual_seed(seed)
    n, c, b = shape
    place = (n, b, c) if transposed else shape
    entropy = torch.randint(0, 9, place, generator=generator) / 8
    entropy[torch.rand(place, generator=generator) < 0.1] = math.nan
    masked = torch.rand(place, generator=generator) < torch.rand(1, generator=generator)
    if transposed:
        entropy, masked = entropy.transpose(1, 2), masked.transpose(1, 2)
    mode = "dynamic" if dynamic else "static"
    check_choice(entropy, masked, mode, blocks, threshold if dynamic else None)


@few
@given(
    case=cases(), top_p=st.sampled_from([0.05, 0.5, 0.8, 0.95]), top_k=st.sampled_from([None, 5])
)
def test_sample_tokens_stays_in_the_nucleus(case, top_p, top_k, quick_device_functions):
    logits, temperature, columns, _ = case
    seeds = torch.arange(len(logits)) + 3
    counters = torch.zeros(len(logits), 2, dtype=torch.int32)
    top_k = None if top_k is None else min(top_k, logits.shape[1])
    options = dict(top_k=top_k, top_p=top_p, temperature=temperature, **columns)
    ids, probs = ck.sample_tokens(logits, seeds, counters, impl="triton", **options)
    for r, row in enumerate(rows_of(logits, temperature, **columns)):
        if row is None:
            assert ids[r] == -1 and probs[r].isnan()
            continue
        # sums that end within rounding of p may keep one token more or less
        sizes = [set(kept_ids(row, top_k, p)) for p in (top_p * (1 - 1e-5), top_p * (1 + 1e-5))]
        assert ids[r].item() in sizes[0] | sizes[1]
        share = [row.probabilities[ids[r]] / math.fsum(row.probabilities[i] for i in kept)
                 for kept in sizes]  # fmt: skip
        low, high = min(share), max(share)
        assert low * (1 - 1e-4) - 1e-9 <= probs[r].item() <= high * (1 + 1e-4) + 1e-9
