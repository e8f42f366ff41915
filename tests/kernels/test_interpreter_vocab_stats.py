"""`vocab_stats` in the interpreter, against the definition within an error budget.

The interpreter shows arithmetic, masks and offsets; it shows neither races nor a device's rounding.
"""

from __future__ import annotations

import math

import pytest
import torch
from interpreter_checks import INTERPRETER, check_stats, rows_of

import codila_kernels as ck
from codila_kernels.configs import VocabStatsConfig

pytestmark = INTERPRETER


@pytest.mark.parametrize(
    "rows, width, why",
    [
        (1, 1, "a single column"),
        (2, 127, "one short of the least block"),
        (3, 256, "exactly one chunk"),
        (3, 257, "a last chunk of one column"),
        (5, 1021, "a prime width over four chunks"),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 0.1, 1.0])
def test_vocab_stats(rows, width, why, temperature, generator):
    logits = torch.randn(rows, width, generator=generator) * 4
    check_stats(
        ck.vocab_stats(logits, temperature=temperature, impl="triton"),
        rows_of(logits, temperature),
        temperature,
    )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_vocab_stats_of_low_precision_logits(dtype, generator):
    logits = (torch.randn(4, 700, generator=generator) * 4).to(dtype)
    columns = dict(valid_vocab=650, banned_ids=(0, 31, 32, 255, 256, 649, 699))
    check_stats(
        ck.vocab_stats(logits, temperature=0.7, impl="triton", **columns),
        rows_of(logits, 0.7, **columns),
        0.7,
    )


def test_vocab_stats_at_offset_300(generator):
    near = (torch.randn(3, 600, generator=generator) * 64).round() / 64
    for temperature in (0.1, 1.0):
        logits = near + 300
        stats = ck.vocab_stats(logits, temperature=temperature, impl="triton")
        check_stats(stats, rows_of(logits, temperature), temperature)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_vocab_stats_of_odd_rows(temperature):
    """Ties within and across chunks, one-hot rows, chunks of -inf, rows without a distribution."""
    logits = torch.zeros(9, 600)
    logits[1, [300, 590]] = 2.0  # a tie across chunks
    logits[2, [20, 21]] = 2.0  # a tie within a chunk
    logits[3, :256] = -math.inf  # a chunk that is all -inf
    logits[4] = -math.inf
    logits[4, 599] = 1.0  # one-hot, in the last column
    logits[5] = -math.inf
    logits[6, 599] = math.nan
    logits[7, 0] = math.inf
    logits[8] = -math.inf
    logits[8, 300] = math.nan  # NaN among -inf, away from the first chunk
    stats = ck.vocab_stats(logits, temperature=temperature, impl="triton")
    check_stats(stats, rows_of(logits, temperature), temperature)
    with pytest.raises(ValueError, match=r"rows \[5, 6, 7, 8\]"):
        ck.vocab_stats(logits, temperature=temperature, impl="triton", check_finite=True)


def test_vocab_stats_with_the_tile_of_the_chips(generator):
    from codila_kernels.kernels.vocab_stats import vocab_stats_triton

    logits = torch.randn(2, 9000, generator=generator)
    config = VocabStatsConfig(block_v=4096, chunks=3, num_warps=4)
    stats = ck.VocabStats(*vocab_stats_triton(logits, 1.0, 9000, (), config))
    check_stats(stats, rows_of(logits, 1.0), 1.0)
