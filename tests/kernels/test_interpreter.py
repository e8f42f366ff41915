"""The Triton kernels in the interpreter, against the definition within an error budget.

The interpreter shows arithmetic, masks and offsets; it shows neither races nor a device's rounding.
"""

from __future__ import annotations

import math

import pytest
import torch
from kernel_definitions import Budget, distribution, expected_embedding, expected_embedding_budget

import codila_kernels as ck
from codila_kernels.configs import ExpectedEmbeddingConfig, VocabStatsConfig
from codila_kernels.configs import expected_embedding_config as soft_config
from codila_kernels.registration import expected_embedding_backward

pytestmark = [
    pytest.mark.interpret,
    pytest.mark.filterwarnings("ignore:(invalid value|divide by zero):RuntimeWarning"),  # meant
]

# Rounding to bfloat16 truncates in the interpreter: one unit in the last place instead of half.
CAST = {torch.float32: 0.0, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}
STATISTICS = ("lse", "entropy", "top1_prob", "margin")


@pytest.fixture(autouse=True)
def poisoned_scratch(monkeypatch):
    """Memory that a kernel forgets to write, or reads unmasked, shows as NaN or a wild id."""
    empty = torch.empty

    def poisoned(*args, **kwargs):
        out = empty(*args, **kwargs)
        return out.fill_(math.nan) if out.is_floating_point() else out.fill_(2**31 - 5)

    monkeypatch.setattr(torch, "empty", poisoned)


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


@pytest.mark.parametrize(
    "rows, width, embedding, why",
    [
        (1, 1, 1, "the smallest of everything"),
        (3, 33, 17, "one past a tile of ids"),
        (16, 128, 64, "whole tiles only"),
        (17, 300, 70, "one past a tile of rows; a ragged second tile of columns"),
        (2, 641, 5, "a prime width: the last chunk is not full"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_expected_embedding(rows, width, embedding, why, dtype, generator):
    logits = (torch.randn(rows, width, generator=generator) * 3).to(dtype)
    table = torch.randn(width, embedding, generator=generator).to(dtype)
    out = ck.expected_embedding(logits, table, temperature=0.8, impl="triton")
    check_soft(out, rows_of(logits, 0.8), table)


@pytest.mark.parametrize("chunk, why", [(64, "many chunks"), (192, "a last chunk of one column")])
def test_expected_embedding_over_several_chunks(chunk, why, generator):
    from codila_kernels.kernels.expected_embedding import expected_embedding_triton

    width = 577  # 3 * 192 + 1 and 9 * 64 + 1
    logits = torch.randn(3, width, generator=generator) * 3
    logits[0, 64:320] = -math.inf  # whole chunks, and tiles, of -inf
    logits[1, :576] = -math.inf  # only the last chunk holds anything
    table = torch.randn(width, 20, generator=generator)
    config = ExpectedEmbeddingConfig(16, 32, 32, chunk, -(-width // chunk), 4, 1)
    out = expected_embedding_triton(logits, table, None, None, 1.0, width, (), config)
    check_soft(out, rows_of(logits, 1.0), table)


def test_expected_embedding_with_the_tile_of_the_chips(generator):
    from codila_kernels.kernels.expected_embedding import expected_embedding_triton

    logits = torch.randn(40, 1088, generator=generator).bfloat16()
    table = torch.randn(1088, 192, generator=generator).bfloat16()
    config = soft_config(1088, 192, torch.bfloat16, "sm_90")
    out = expected_embedding_triton(logits, table, None, None, 1.0, 1088, (), config)
    check_soft(out, rows_of(logits, 1.0), table)


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_expected_embedding_options(temperature, generator):
    """Wider logits, banned ids, `rows` that repeat, a table that is a view, given statistics."""
    logits = torch.randn(6, 320, generator=generator) * 2 + 300
    table = torch.randn(290, 80, generator=generator)[:, 3:75]
    columns = dict(valid_vocab=283, banned_ids=(0, 32, 282, 300))
    whole = rows_of(logits, temperature, **columns)
    stats = ck.vocab_stats(logits, temperature=temperature, impl="triton", **columns)
    picked = torch.tensor([5, 0, 5, 2], dtype=torch.int32)
    for rows in (None, picked):
        exact = whole if rows is None else [whole[r] for r in rows.tolist()]
        for given in (None, stats):
            out = ck.expected_embedding(
                logits, table, rows=rows, stats=given, temperature=temperature, impl="triton",
                **columns,
            )  # fmt: skip
            check_soft(out, exact, table)


def test_expected_embedding_of_rows_without_a_distribution(generator):
    logits = torch.randn(6, 300, generator=generator)
    logits[1] = -math.inf
    logits[2, 290] = math.nan
    logits[3, 8] = math.inf
    logits[4] = -math.inf
    logits[4, 200] = math.nan
    table = torch.randn(300, 9, generator=generator)
    rows = rows_of(logits, 1.0)
    assert [row is None for row in rows] == [False, True, True, True, True, False]
    check_soft(ck.expected_embedding(logits, table, impl="triton"), rows, table)
    stats = ck.vocab_stats(logits, impl="triton")
    check_soft(ck.expected_embedding(logits, table, stats=stats, impl="triton"), rows, table)


def test_expected_embedding_in_several_launches(monkeypatch, generator):
    """Rows, statistics and results stay aligned where the rows of a call are cut into launches."""
    from codila_kernels.kernels import expected_embedding as module

    logits = torch.randn(9, 100, generator=generator)
    logits[1] = -math.inf  # statistics of the wrong row would spread its NaN
    table = torch.randn(100, 6, generator=generator)
    stats = ck.vocab_stats(logits, impl="triton")
    rows = torch.tensor([8, 0, 1, 3, 3, 5, 2])
    for options in (dict(), dict(rows=rows), dict(stats=stats), dict(rows=rows, stats=stats)):
        monkeypatch.setattr(module, "ROWS_PER_LAUNCH", 1024)
        whole = ck.expected_embedding(logits, table, impl="triton", **options)
        monkeypatch.setattr(module, "ROWS_PER_LAUNCH", 4)
        cut = ck.expected_embedding(logits, table, impl="triton", **options)
        torch.testing.assert_close(cut, whole, rtol=1e-5, atol=1e-6, equal_nan=True)
        nan = logits[rows if "rows" in options else slice(None)].isinf().all(-1)
        assert torch.equal(cut.isnan().all(-1), nan) and cut[~nan].isfinite().all()


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


@pytest.mark.parametrize("with_rows", [False, True])
def test_gradients(with_rows, generator):
    logits = torch.randn(4, 90, generator=generator).requires_grad_()
    table = torch.randn(90, 6, generator=generator).requires_grad_()
    rows = torch.tensor([3, 1, 3]) if with_rows else None
    options = dict(rows=rows, temperature=0.7, valid_vocab=85, banned_ids=(4,))
    grad = torch.randn(3 if with_rows else 4, 6, generator=generator)
    out = ck.expected_embedding(logits, table, impl="triton", **options)
    got = torch.autograd.grad(out, (logits, table), grad)
    exact = [tensor.detach().double().requires_grad_() for tensor in (logits, table)]
    want = torch.autograd.grad(ck.expected_embedding(*exact, **options), exact, grad.double())
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-6)


def test_only_the_needed_gradient_is_computed(generator):
    logits = torch.randn(2, 9, generator=generator)
    table = torch.randn(9, 3, generator=generator)
    out = ck.expected_embedding(logits, table, impl="triton")
    arguments = (torch.ones_like(out), out, logits, table, None, 1.0, 9, ())
    assert expected_embedding_backward(*arguments, needs=(False, True))[0] is None
    assert expected_embedding_backward(*arguments, needs=(True, False))[1] is None


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
    ]


@pytest.mark.parametrize("index", range(5))
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
