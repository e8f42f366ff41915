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
    seeds, counters = torch.arange(3), torch.zeros(3, 2, dtype=torch.int32)
    far = ck.sample_tokens(logits, seeds, counters, top_k=9, impl="triton")
    near = ck.sample_tokens(logits.clone(), seeds, counters, top_k=9, impl="triton")
    assert torch.equal(far[0], near[0]) and torch.equal(far[1], near[1])
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
    hidden, head, bias = (
        torch.randn(*shape, generator=generator).requires_grad_()
        for shape in ((3, 8), (40, 8), (40,))
    )
    operators = torch.ops.codila_kernels
    return [
        (operators.vocab_stats, (logits, 1.0, 40, [])),
        (operators.vocab_stats, (logits, 0.0, 36, [1, 2])),
        (operators.expected_embedding, (logits, table, None, None, 1.0, 36, [])),
        (operators.expected_embedding, (logits, table, rows, top1, 0.5, 36, [1])),
        (operators.expected_embedding, (*both, rows, None, 0.5, 30, [])),
        (operators.head_stats, (hidden.detach(), head.detach(), None, 0.0, 40, [])),
        (operators.head_stats, (hidden, head, bias, 0.5, 36, [1])),
        (operators.expected_embedding_top_k, (*both, rows, None, 3, 0.5, 30, [1])),
        (operators.expected_embedding_top_k, (logits, table, rows, top1, 1, 1.0, 36, [])),
        *sampling_samples(logits[:1]),
    ]


def sampling_samples(logits):
    operators = torch.ops.codila_kernels
    seeds, counters = torch.tensor([5]), torch.tensor([[1, 2]], dtype=torch.int32)
    entropy, masked = torch.rand(1, 2, 3), torch.tensor([[[True, False, True], [False] * 3]])
    return [
        (operators.block_entropy, (entropy, masked, True, 3, 0.5)),
        (operators.sample_tokens, (logits, seeds, counters, 0.7, 0.9, 5, 36, [1])),
    ]


@pytest.mark.parametrize("index", range(11))
def test_operator_contracts(index, generator, monkeypatch):
    monkeypatch.undo()  # opcheck compares outputs of repeated calls, and traces torch.empty
    ck.vocab_stats  # noqa: B018  (registers the operators)
    operator, arguments = operator_samples(generator)[index]
    torch.library.opcheck(operator.default, arguments)


def test_sampling_compiles_without_a_graph_break(generator, monkeypatch):
    monkeypatch.undo()
    logits = torch.randn(2, 20, generator=generator)
    seeds, counters = torch.tensor([5, 6]), torch.zeros(2, 2, dtype=torch.int32)
    masked = torch.ones(1, 2, 3, dtype=torch.bool)

    def step(z, entropy):
        choice = ck.block_entropy(entropy, masked, mode="dynamic", threshold=0.5, impl="triton")
        ids, probs = ck.sample_tokens(z, seeds, counters, top_p=0.9, impl="triton")
        return *choice, ids + 1, probs * 2

    entropy = torch.rand(1, 2, 3, generator=generator)
    compiled = torch.compile(step, fullgraph=True, dynamic=True, backend="aot_eager")
    for got, want in zip(compiled(logits, entropy), step(logits, entropy), strict=True):
        assert torch.equal(got, want)


def test_compiles_without_a_graph_break(generator, monkeypatch):
    monkeypatch.undo()
    logits = torch.randn(3, 40, generator=generator)
    table = torch.randn(36, 8, generator=generator)
    hidden, head = torch.randn(2, 8, generator=generator), torch.randn(40, 8, generator=generator)

    def step(z, e, x):
        stats = ck.vocab_stats(z, valid_vocab=36, banned_ids=(1,), impl="triton")
        of_head, logits = ck.head_stats(x, head, valid_vocab=36, impl="triton")
        soft = ck.expected_embedding(
            z, e, stats=stats, valid_vocab=36, banned_ids=(1,), impl="triton"
        )
        return stats.entropy * 2, soft + 1, of_head.entropy * 2, logits + 1

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    arguments = (logits, table, hidden)
    for got, want in zip(compiled(*arguments), step(*arguments), strict=True):
        assert torch.equal(got, want)
    more = [torch.cat((tensor, tensor)) for tensor in (logits, hidden)]  # another number of rows
    for got, want in zip(
        compiled(more[0], table, more[1]), step(more[0], table, more[1]), strict=True
    ):
        assert torch.equal(got, want)
