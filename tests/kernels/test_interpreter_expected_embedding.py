"""`expected_embedding` in the interpreter, against the definition within an error budget."""

from __future__ import annotations

import math

import pytest
import torch
from interpreter_checks import INTERPRETER, check_soft, rows_of

import codila_kernels as ck
from codila_kernels.configs import ExpectedEmbeddingConfig
from codila_kernels.configs import expected_embedding_config as soft_config

pytestmark = INTERPRETER


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


@pytest.mark.parametrize(
    "logits_dtype, table_dtype",
    [
        (torch.float32, torch.bfloat16),
        (torch.float32, torch.float16),
        (torch.bfloat16, torch.float32),
    ],
    ids=str,
)
def test_logits_and_table_of_different_dtypes(logits_dtype, table_dtype, generator):
    logits = (torch.randn(2, 100, generator=generator) * 3).to(logits_dtype)
    table = torch.randn(100, 20, generator=generator).to(table_dtype)
    check_soft(ck.expected_embedding(logits, table, impl="triton"), rows_of(logits, 1.0), table)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_row_has_the_same_bits_in_any_batch(transposed, generator):
    """1, 2, 5 and 6 tiles of 16 rows, in one group and two; and other neighbours."""
    from codila_kernels.kernels.expected_embedding import expected_embedding_triton

    logits = torch.randn(81, 70, generator=generator) * 3
    table = torch.randn(70, 20, generator=generator)
    config = ExpectedEmbeddingConfig(16, 32, 32, 64, 2, 4, 1, transposed)
    whole = expected_embedding_triton(logits, table, None, None, 0.7, 70, (), config)
    check_soft(whole, rows_of(logits, 0.7), table)
    for rows in (1, 16, 17, 80):
        part = expected_embedding_triton(logits[:rows], table, None, None, 0.7, 70, (), config)
        assert torch.equal(part, whole[:rows])
    # places in a tile stay what they were: numpy's product may round by place, a device's does not
    picked = torch.tensor([80, *range(17, 31), 80])
    logits[50:] = math.nan
    logits[80] = -math.inf
    part = expected_embedding_triton(logits, table, picked, None, 0.7, 70, (), config)
    assert torch.equal(part[1:15], whole[17:31])
    assert part[[0, 15]].isnan().all()
