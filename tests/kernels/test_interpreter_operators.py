"""The operators as torch sees them: offsets, empty inputs, contracts, `torch.compile`."""

from __future__ import annotations

import pytest
import torch
from interpreter_checks import INTERPRETER, check_soft, check_stats, rows_of

import codila_kernels as ck

pytestmark = INTERPRETER


def test_offsets_beyond_32_bits(generator):
    """Three rows a gigaelement apart (virtual memory, of which only the rows are touched)."""
    stride, width = 2**30, 64
    try:
        storage = torch.ops.aten.empty.memory_format([2 * stride + width], dtype=torch.float16)
    except RuntimeError:
        pytest.xfail("this machine does not lend 4 GB of untouched address space")
    logits = storage.as_strided((3, width), (stride, 1))
    logits.copy_(torch.randn(3, width, generator=generator))
    rows = rows_of(logits, 1.0)
    check_stats(ck.vocab_stats(logits, impl="triton"), rows, 1.0)
    table = torch.randn(width, 4, generator=generator)
    picked = torch.tensor([2], dtype=torch.int32)
    check_soft(ck.expected_embedding(logits, table, rows=picked, impl="triton"), [rows[2]], table)
    check_soft(ck.expected_embedding(logits, table, impl="triton"), rows, table)
    tall = storage.as_strided((3, 4), (stride, 1))  # a table whose rows are as far apart
    few = torch.randn(2, 3, generator=generator).half()
    check_soft(ck.expected_embedding(few, tall, impl="triton"), rows_of(few, 1.0), tall)


def test_no_rows():
    assert ck.vocab_stats(torch.zeros(0, 9), impl="triton").entropy.shape == (0,)
    soft = ck.expected_embedding(torch.zeros(0, 9), torch.zeros(9, 4), impl="triton")
    assert soft.shape == (0, 4)


def operator_samples(generator):
    logits = torch.randn(3, 40, generator=generator)
    table = torch.randn(36, 8, generator=generator)
    rows = torch.tensor([1, 0])
    top1 = logits[:, :36].argmax(-1)
    both = (logits.clone().requires_grad_(), table.clone().requires_grad_())
    operators = torch.ops.codila_kernels
    return [
        (operators.vocab_stats, (logits, 1.0, 40, [])),
        (operators.vocab_stats, (logits, 0.0, 36, [1, 2])),
        (operators.expected_embedding, (logits, table, None, None, 1.0, 36, [])),
        (operators.expected_embedding, (logits, table, rows, top1, 0.5, 36, [1])),
        (operators.expected_embedding, (*both, rows, None, 0.5, 30, [])),
        (operators.expected_embedding_top_k, (*both, rows, None, 3, 0.5, 30, [1])),
        (operators.expected_embedding_top_k, (logits, table, rows, top1, 1, 1.0, 36, [])),
    ]


@pytest.mark.parametrize("index", range(7))
def test_operator_contracts(index, generator, monkeypatch):
    monkeypatch.undo()  # opcheck compares outputs of repeated calls, and traces torch.empty
    ck.vocab_stats  # noqa: B018  (registers the operators)
    operator, arguments = operator_samples(generator)[index]
    torch.library.opcheck(operator.default, arguments)


def test_compiles_without_a_graph_break(generator, monkeypatch):
    monkeypatch.undo()
    logits = torch.randn(3, 40, generator=generator)
    table = torch.randn(36, 8, generator=generator)

    def step(z, e):
        stats = ck.vocab_stats(z, valid_vocab=36, banned_ids=(1,), impl="triton")
        soft = ck.expected_embedding(
            z, e, stats=stats, valid_vocab=36, banned_ids=(1,), impl="triton"
        )
        return stats.entropy * 2, soft + 1

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for got, want in zip(compiled(logits, table), step(logits, table), strict=True):
        assert torch.equal(got, want)
    compiled(torch.randn(5, 40, generator=generator), table)  # another number of rows
