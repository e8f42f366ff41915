"""Bytes that the shipped configs move, counted in the interpreter, over the bytes they must move.

The sizes are those of Dream-7B with Qwen3-0.6B and the tiles those of each chip; of the grid, all
row tiles of the first column tile and chunk run, and count for all.
"""

from __future__ import annotations

import pytest
import torch
from interpreter_checks import INTERPRETER
from traffic import counted

from codila_kernels.configs import (
    CHIPS,
    expected_embedding_config,
    head_stats_config,
    vocab_stats_config,
)

# the scratch is as large as on a device: not poisoned
pytestmark = [INTERPRETER[0], INTERPRETER[2]]

WIDTH, STRIDE, EMBEDDING, HIDDEN = 151_936, 152_064, 1024, 3584
TABLE_BYTES = 2 * WIDTH * EMBEDDING
RAGGED = 1.02  # the last chunk is shorter than those that are counted for it

# (op, rows, quantity) -> most times its compulsory bytes; partial sums are over the table's bytes.
TARGETS = {
    ("vocab_stats", 2, "logits"): 1.0,
    ("vocab_stats", 2, "outputs"): 1.0,
    ("head_stats", 4, "head"): 1.0,
    ("head_stats", 4, "outputs"): 1.0,
    ("head_stats", 80, "head"): 1.0,
    ("head_stats", 80, "outputs"): 1.0,
    ("expected_embedding", 16, "table"): 1.0,
    ("expected_embedding", 16, "logits"): 4.0,
    ("expected_embedding", 16, "outputs"): 1.0,
    ("expected_embedding", 16, "partial sums"): 0.05,
    ("expected_embedding", 80, "table"): 1.0,
    ("expected_embedding", 80, "logits"): 4.0,
    ("expected_embedding", 80, "outputs"): 1.0,
    ("expected_embedding", 80, "partial sums"): 0.20,
    ("expected_embedding", 160, "table"): 2.0,
}


def vocab_stats_traffic(chip, rows):
    from codila_kernels.kernels.vocab_stats import vocab_stats_triton

    logits = torch.zeros(rows, STRIDE, dtype=torch.bfloat16)
    config = vocab_stats_config(WIDTH, logits.dtype, chip)
    with counted(lambda kernel, program: program[0] == 0) as traffic:
        vocab_stats_triton(logits, 1.0, WIDTH, (), config)
    names = ("lse", "entropy", "top1_id", "top1_prob", "margin")
    assert not traffic.unknown
    return {
        "logits": traffic.reads("logits") / (2 * rows * WIDTH),
        "outputs": sum(map(traffic.writes, names)) / (24 * rows),
    }


def expected_embedding_traffic(chip, rows):
    from codila_kernels.kernels.expected_embedding import expected_embedding_triton

    logits = torch.zeros(rows, STRIDE, dtype=torch.bfloat16)
    table = torch.zeros(WIDTH, EMBEDDING, dtype=torch.bfloat16)
    config = expected_embedding_config(WIDTH, EMBEDDING, table.dtype, chip)

    def chosen(kernel, program):
        return program[2] == program[1] == 0 if "split" in kernel else program[0] == 0

    with counted(chosen) as traffic:
        expected_embedding_triton(logits, table, None, None, 1.0, WIDTH, (), config)
    assert not traffic.unknown
    return {
        "table": traffic.reads("table") / TABLE_BYTES,
        "logits": traffic.reads("logits") / (2 * rows * WIDTH),
        "outputs": traffic.writes("out") / (2 * rows * EMBEDDING),
        "partial sums": (traffic.reads("acc") + traffic.writes("acc")) / TABLE_BYTES,
    }


def head_stats_traffic(chip, rows):
    from codila_kernels.kernels.head_stats import head_stats_triton

    hidden = torch.zeros(rows, HIDDEN, dtype=torch.bfloat16)
    head = torch.zeros(STRIDE, HIDDEN, dtype=torch.bfloat16)
    config = head_stats_config(STRIDE, HIDDEN, head.dtype, chip)

    def chosen(kernel, program):
        return program[1] == 0 if "head_stats_split" in kernel else program[0] == 0

    with counted(chosen) as traffic:
        head_stats_triton(hidden, head, None, 1.0, WIDTH, (), config)
    names = ("logits", "lse", "entropy", "top1_id", "top1_prob", "margin")
    assert not traffic.unknown
    return {
        "head": traffic.reads("head") / (2 * STRIDE * HIDDEN),
        "outputs": sum(map(traffic.writes, names)) / (rows * (2 * STRIDE + 24)),
    }


COUNTS = {
    "vocab_stats": vocab_stats_traffic,
    "head_stats": head_stats_traffic,
    "expected_embedding": expected_embedding_traffic,
}


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("op, rows", sorted({key[:2] for key in TARGETS}))
def test_traffic_of_the_shipped_configs(op, rows, chip):
    measured = COUNTS[op](chip, rows)
    for quantity, found in measured.items():
        print(f"{op} {chip} R={rows} {quantity}: {found:.3f}")
        if (op, rows, quantity) in TARGETS:
            assert found <= TARGETS[op, rows, quantity] * RAGGED, (quantity, found)
            least = 0.0 if quantity == "partial sums" else 0.99
            assert found > least, (quantity, found)  # nothing went uncounted
