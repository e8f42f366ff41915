"""The CPU path streams over the vocabulary: what it needs beyond its inputs stays small."""

from __future__ import annotations

import pytest
import torch

import codila_kernels as ck
from benchmarks.memory import peak_bytes

pytestmark = pytest.mark.slow

ROWS, WIDTH, EMBEDDING = 80, 152_064, 1024
LIMIT = 160 * 2**20  # half of the table; the float32 copy of it that eager makes is 594 MiB


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_statistics_and_soft_tokens_stay_under_160_mib(dtype):
    logits = torch.zeros(ROWS, WIDTH, dtype=dtype)  # memory depends on no value
    table = torch.zeros(WIDTH, EMBEDDING, dtype=torch.bfloat16)

    def step():
        return ck.vocab_stats(logits), ck.expected_embedding(logits, table)

    with torch.no_grad():
        peak, _ = peak_bytes(step, logits.device)
    assert 2**20 < peak < LIMIT, f"{peak / 2**20:.0f} MiB"
