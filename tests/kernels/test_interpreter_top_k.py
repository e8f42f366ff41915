"""Top-k and hard `expected_embedding` in the interpreter, against the definition."""

from __future__ import annotations

import math

import pytest
import torch
from interpreter_checks import INTERPRETER, check_soft, rows_of

import codila_kernels as ck

pytestmark = INTERPRETER

WIDTH = 530  # two chunks of 256 and a ragged third


def top_k_rows(logits, k, temperature, **columns):
    """Distributions over the k largest usable logits, ties to the lowest id."""
    whole = rows_of(logits, 1.0, **columns)
    kept = torch.full_like(logits, -math.inf)
    for r, values in enumerate(logits.tolist()):
        usable = list(range(columns.get("valid_vocab") or len(values)))
        usable = [i for i in usable if i not in columns.get("banned_ids", ())]
        for i in sorted(usable, key=lambda i: (-values[i], i))[:k]:
            kept[r, i] = values[i]
    chosen = rows_of(kept, temperature)
    return [None if row is None else few for row, few in zip(whole, chosen, strict=True)]


def odd_logits(generator):
    """Integers (many ties, within and across chunks), chunks of -inf, rows without distribution."""
    logits = (torch.randn(6, WIDTH, generator=generator) * 2).round()
    logits[1] = 0.0
    logits[1, [7, 255, 256, 511, 529]] = 3.0  # a tie across the edges of chunks
    logits[1, 3] = -0.0  # equal to 0.0, and the lowest id of them but three
    logits[2] = -math.inf
    logits[2, [300, 9]] = torch.tensor([1.0, 0.0])  # fewer finite logits than k, a chunk of none
    logits[3] = -math.inf
    logits[4, 520] = -math.nan  # NaN with its sign bit set
    logits[5, 2] = math.inf
    return logits


@pytest.mark.parametrize("top_k", [1, 2, 3, 8, 64])
def test_top_k(top_k, generator):
    logits = odd_logits(generator)
    table = torch.randn(WIDTH, 18, generator=generator)
    out = ck.expected_embedding(logits, table, top_k=top_k, impl="triton")
    check_soft(out, top_k_rows(logits, top_k, 1.0), table)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_top_k_options(dtype, generator):
    """Rows that repeat, banned ids, logits wider than the table, float32 logits, offset 300."""
    logits = torch.randn(4, 320, generator=generator) * 2 + 300
    table = torch.randn(290, 9, generator=generator).to(dtype)
    columns = dict(valid_vocab=283, banned_ids=(0, int(logits[2, :283].argmax()), 300))
    rows = torch.tensor([2, 0, 2], dtype=torch.int32)
    exact = top_k_rows(logits[rows], 3, 0.1, **columns)
    out = ck.expected_embedding(
        logits, table, rows=rows, top_k=3, temperature=0.1, impl="triton", **columns
    )
    check_soft(out, exact, table)


def test_the_hard_token_is_a_copy(generator):
    logits = odd_logits(generator)
    table = torch.randn(WIDTH, 9, generator=generator).bfloat16()
    rows = torch.tensor([1, 2, 3, 4, 5, 0])
    best = [7, 300, None, None, None, int(logits[0].argmax())]
    stats = ck.vocab_stats(logits, impl="torch")
    for given in (None, stats):
        out = ck.expected_embedding(
            logits, table, rows=rows, stats=given, temperature=0, impl="triton"
        )
        for token, soft in zip(best, out, strict=True):
            assert soft.isnan().all() if token is None else torch.equal(soft, table[token])


def test_a_known_hard_token_reads_no_logits(generator):
    logits = torch.randn(2, 40, generator=generator)
    table = torch.randn(40, 5, generator=generator)
    stats = ck.vocab_stats(logits, impl="torch")
    logits.fill_(math.nan)
    out = ck.expected_embedding(logits, table, top_k=1, stats=stats, impl="triton")
    assert torch.equal(out, table[stats.top1_id])


def test_top_k_beyond_the_columns_is_soft(generator):
    logits = torch.randn(2, 20, generator=generator)
    table = torch.randn(20, 4, generator=generator)
    soft = ck.expected_embedding(logits, table, impl="triton")
    for top_k in (20, 64):
        assert torch.equal(ck.expected_embedding(logits, table, top_k=top_k, impl="triton"), soft)
    assert ck.expected_embedding(logits[:0], table, top_k=2, impl="triton").shape == (0, 4)


def test_top_k_offsets_beyond_32_bits(generator):
    """Rows of logits, and of the table, a gigaelement apart (virtual memory, mostly untouched)."""
    stride, width = 2**30, 64
    try:
        storage = torch.ops.aten.empty.memory_format([2 * stride + width], dtype=torch.float16)
    except RuntimeError:
        pytest.xfail("this machine does not lend 4 GB of untouched address space")
    logits = storage.as_strided((3, width), (stride, 1))
    logits.copy_(torch.randn(3, width, generator=generator))
    table = torch.randn(width, 4, generator=generator)
    out = ck.expected_embedding(logits, table, top_k=2, impl="triton")
    check_soft(out, top_k_rows(logits, 2, 1.0), table)
    tall = storage.as_strided((3, 4), (stride, 1))
    few = torch.randn(2, 3, generator=generator).half()
    out = ck.expected_embedding(few, tall, top_k=2, impl="triton")
    check_soft(out, top_k_rows(few, 2, 1.0), tall)
