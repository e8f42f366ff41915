"""Soft tokens ``softmax(z / T) @ E`` of logits [R, V] and a table [Va, D], no probabilities stored.

    out = sum_v 2^((z_v - m) s) E_v / sum_v 2^((z_v - m) s),   s = log2(e) / T

*Split*: one program owns BLOCK_R rows, BLOCK_D columns of the table and one chunk of ids, grid
(row tiles, column tiles, chunks) with the row tiles adjacent, so that they share the table's tile
in cache. It walks its chunk in tiles of BLOCK_V with an online softmax and stores the unscaled sum
[chunks, R, D] in float32; the programs of the first column tile also store (m, l) [2, chunks, R].
*Combine*: one program per row and column tile adds the chunks in ascending order and divides.
Bytes: the table once, the logits once per column tile (after the first from cache), and
8 chunks R D for the partial sums, written and read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from codila_kernels.configs import (
    ExpectedEmbeddingConfig,
    ceil_div,
    chip_of,
    combine_block,
    expected_embedding_config,
)
from codila_kernels.kernels.online_softmax import LOG2_E, banned_bits, finite_shift, is_banned

# Rows of one launch. The partial sums take 4 * chunks * D bytes a row (131 kB for 32 chunks and
# D = 1024), so more rows go in several launches. The reduction tree of a row is the same in each.
ROWS_PER_LAUNCH = 1024


@triton.jit
def _expected_embedding_split_kernel(
    logits_ptr,
    table_ptr,
    rows_ptr,
    top1_ptr,
    banned_ptr,
    acc_ptr,
    state_ptr,
    rows,
    width,
    chunk,
    embedding,
    logits_stride,
    table_stride,
    scale,
    HAS_ROWS: tl.constexpr,
    HAS_TOP1: tl.constexpr,
    HAS_BANNED: tl.constexpr,
    DOT_IN_FP32: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    r = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)  # [BLOCK_R]
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)  # [BLOCK_D]
    part = tl.program_id(2).to(tl.int64)
    r_here = r < rows
    d_here = d < embedding
    source = r
    if HAS_ROWS:
        source = tl.load(rows_ptr + r, mask=r_here, other=0).to(tl.int64)
    logits_row = logits_ptr + source * logits_stride  # [BLOCK_R]

    m = tl.full([BLOCK_R], float("-inf"), tl.float32)
    if HAS_TOP1:  # the maximum is known: no running maximum, no rescaling
        top1 = tl.load(top1_ptr + source, mask=r_here, other=-1)
        known = tl.load(logits_row + tl.maximum(top1, 0), mask=top1 >= 0, other=0.0)
        m = tl.where(top1 >= 0, known.to(tl.float32), float("nan"))
    l = tl.zeros([BLOCK_R], tl.float32)  # noqa: E741
    acc = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    first = (part * chunk).to(tl.int32)
    last = tl.minimum(first + chunk, width)
    for start in range(first, last, BLOCK_V):
        cols = start + tl.arange(0, BLOCK_V)  # [BLOCK_V]
        v_here = cols < last
        z = tl.load(
            logits_row[:, None] + cols[None, :],
            mask=r_here[:, None] & v_here[None, :],
            other=float("-inf"),
        ).to(tl.float32)  # [BLOCK_R, BLOCK_V]
        e_row = table_ptr + cols.to(tl.int64) * table_stride
        e = tl.load(
            e_row[:, None] + d[None, :], mask=v_here[:, None] & d_here[None, :], other=0.0
        )  # [BLOCK_V, BLOCK_D]
        if HAS_BANNED:
            z = tl.where(is_banned(banned_ptr, cols, v_here)[None, :], float("-inf"), z)
        if not HAS_TOP1:
            higher = tl.maximum(m, tl.max(z, axis=1))
            c = tl.exp2((m - finite_shift(higher)) * scale)
            l = l * c  # noqa: E741
            acc = acc * c[:, None]
            m = higher
        p = tl.exp2((z - finite_shift(m)[:, None]) * scale)
        l += tl.sum(p, axis=1)  # noqa: E741
        if DOT_IN_FP32:  # the interpreter multiplies the bit patterns of bfloat16
            acc += tl.dot(p.to(e.dtype).to(tl.float32), e.to(tl.float32))
        else:
            acc = tl.dot(p.to(e.dtype), e, acc, input_precision="ieee")

    out = (part * rows + r) * embedding
    tl.store(acc_ptr + out[:, None] + d[None, :], acc, mask=r_here[:, None] & d_here[None, :])
    if tl.program_id(1) == 0:
        state = state_ptr + part * rows + r
        tl.store(state, m, mask=r_here)
        tl.store(state + tl.num_programs(2).to(tl.int64) * rows, l, mask=r_here)


@triton.jit
def _expected_embedding_combine_kernel(
    acc_ptr,
    state_ptr,
    out_ptr,
    rows,
    chunks,
    embedding,
    scale,
    BLOCK_D: tl.constexpr,
):
    r = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)  # [BLOCK_D]
    d_here = d < embedding
    stride = tl.cast(rows, tl.int64)
    top = tl.full([], float("-inf"), tl.float32)
    for part in range(chunks):
        top = tl.maximum(top, tl.load(state_ptr + part * stride + r))
    shift = finite_shift(top)
    total = tl.full([], 0.0, tl.float32)
    acc = tl.zeros([BLOCK_D], tl.float32)
    for part in range(chunks):
        at = part * stride + r
        c = tl.exp2((tl.load(state_ptr + at) - shift) * scale)
        total += c * tl.load(state_ptr + chunks * stride + at)
        acc += c * tl.load(acc_ptr + at * embedding + d, mask=d_here, other=0.0)
    soft = tl.where(total > 0.0, acc / total, float("nan"))
    tl.store(out_ptr + r * embedding + d, soft.to(out_ptr.dtype.element_ty), mask=d_here)


def expected_embedding_triton(
    logits: Tensor,
    table: Tensor,
    rows: Tensor | None,
    top1_id: Tensor | None,
    temperature: float,
    width: int,
    banned_ids: tuple[int, ...],
    config: ExpectedEmbeddingConfig | None = None,
) -> Tensor:
    """Launch both kernels on logits [R, >= width] and a table whose last strides are 1."""
    device, embedding = logits.device, table.shape[1]
    chip = chip_of(device)
    config = config or expected_embedding_config(width, embedding, table.dtype, chip)
    count = logits.shape[0] if rows is None else rows.shape[0]
    out = torch.empty((count, embedding), dtype=table.dtype, device=device)
    held = min(count, ROWS_PER_LAUNCH)
    acc = torch.empty((config.chunks, held, embedding), dtype=torch.float32, device=device)
    state = torch.empty((2, config.chunks, held), dtype=torch.float32, device=device)
    scale = LOG2_E / temperature
    block_d = combine_block(embedding)
    for start in range(0, count, ROWS_PER_LAUNCH):
        span = slice(start, start + ROWS_PER_LAUNCH)
        piece = out[span]
        n = piece.shape[0]
        grid = (ceil_div(n, config.block_r), ceil_div(embedding, config.block_d), config.chunks)
        _expected_embedding_split_kernel[grid](
            logits_ptr=logits if rows is not None else logits[span],
            table_ptr=table,
            rows_ptr=state if rows is None else rows[span],
            top1_ptr=state if top1_id is None else top1_id if rows is not None else top1_id[span],
            banned_ptr=banned_bits(banned_ids, width, device) if banned_ids else state,
            acc_ptr=acc,
            state_ptr=state,
            rows=n,
            width=width,
            chunk=config.chunk,
            embedding=embedding,
            logits_stride=logits.stride(0),
            table_stride=table.stride(0),
            scale=scale,
            HAS_ROWS=rows is not None,
            HAS_TOP1=top1_id is not None,
            HAS_BANNED=bool(banned_ids),
            DOT_IN_FP32=chip == "interpreter",
            BLOCK_R=config.block_r,
            BLOCK_V=config.block_v,
            BLOCK_D=config.block_d,
            num_warps=config.num_warps,
            num_stages=config.num_stages,
            enable_fp_fusion=False,
        )
        _expected_embedding_combine_kernel[(n, ceil_div(embedding, block_d))](
            acc_ptr=acc,
            state_ptr=state,
            out_ptr=piece,
            rows=n,
            chunks=config.chunks,
            embedding=embedding,
            scale=scale,
            BLOCK_D=block_d,
            num_warps=1,
            enable_fp_fusion=False,
        )
    return out
