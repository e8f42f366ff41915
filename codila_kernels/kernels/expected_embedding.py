"""Soft tokens ``softmax(z / T) @ E`` of logits [R, V] and a table [Va, D], no probabilities stored.

    out = sum_v 2^((z_v - m) s) E_v / sum_v 2^((z_v - m) s),   s = log2(e) / T

*Split*: one program owns up to five tiles of BLOCK_R = 16 rows, BLOCK_D columns of the table and
one chunk of ids, grid (row groups, column tiles, chunks) with the row groups adjacent, so that they
share the table's tile in cache. It walks its chunk in tiles [BLOCK_V, BLOCK_D] of the table, each
loaded once and multiplied with every row tile, with an online softmax per row tile. A row meets the
same instructions in the same order however many tiles stand beside it. Where a matrix instruction
has 64 rows or more (sm_90, sm_100) the product is TRANSPOSED, ``out^T = E^T p^T``: the columns are
its long side and 16 rows its short one, so that few rows waste nothing. It stores the unscaled sum
[chunks, R, D] in float32; the programs of the first column tile also store (m, l) [2, chunks, R].
*Combine*: one program per row and column tile merges the chunks, BLOCK_C at a time, ascending, and
divides. It also stores (m, l) of the whole row, [2, R], which is what the backward pass needs.
Bytes: the table ceil(R / 80) times, the logits once per column tile (after the first from cache),
and 8 chunks R D for the partial sums, written and read.
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
    combine_chunks,
    expected_embedding_config,
    row_groups,
)
from codila_kernels.kernels.online_softmax import LOG2_E, banned_bits, finite_shift, is_banned

# Rows of one launch. The partial sums take 4 * chunks * D bytes a row (270 kB for 66 chunks and
# D = 1024), so more rows go in several launches, of whole groups of 80. The reduction tree of a row
# is the same in each.
ROWS_PER_LAUNCH = 640


@triton.jit
def _row_tile(rows_ptr, top1_ptr, logits_ptr, logits_stride, r, rows, HAS_ROWS, HAS_TOP1):
    """Pointers [BLOCK_R] to a tile's rows of logits, and its maxima as far as they are known."""
    here = r < rows
    source = r
    if HAS_ROWS:
        source = tl.load(rows_ptr + r, mask=here, other=0).to(tl.int64)
    logits_row = logits_ptr + source * logits_stride
    m = tl.full(r.shape, float("-inf"), tl.float32)
    if HAS_TOP1:  # the maximum is known: no running maximum, no rescaling
        top1 = tl.load(top1_ptr + source, mask=here, other=-1)
        known = tl.load(logits_row + tl.maximum(top1, 0), mask=top1 >= 0, other=0.0)
        m = tl.where(top1 >= 0, known.to(tl.float32), float("nan"))
    return logits_row, m


@triton.jit
def _add_tile(
    acc, m, l, e, logits_row, r_here, cols, v_here, banned, scale,  # noqa: E741
    HAS_TOP1, HAS_BANNED, DOT_IN_FP32, TRANSPOSED,
):  # fmt: skip
    """Online update of (acc [BLOCK_R, BLOCK_D], or transposed, m, l) by e [BLOCK_V, BLOCK_D]."""
    z = tl.load(
        logits_row[:, None] + cols[None, :],
        mask=r_here[:, None] & v_here[None, :],
        other=float("-inf"),
    ).to(tl.float32)  # [BLOCK_R, BLOCK_V]
    if HAS_BANNED:
        z = tl.where(banned[None, :], float("-inf"), z)
    if not HAS_TOP1:
        higher = tl.maximum(m, tl.max(z, axis=1))
        c = tl.exp2((m - finite_shift(higher)) * scale)
        l = l * c  # noqa: E741
        acc = acc * (c[None, :] if TRANSPOSED else c[:, None])
        m = higher
    p = tl.exp2((z - finite_shift(m)[:, None]) * scale)
    l += tl.sum(p, axis=1)  # noqa: E741
    p = p.to(e.dtype)
    if DOT_IN_FP32:  # the interpreter multiplies the bit patterns of bfloat16
        p, e = p.to(tl.float32), e.to(tl.float32)
    if TRANSPOSED:
        acc = tl.dot(tl.trans(e), tl.trans(p), acc, input_precision="ieee")
    else:
        acc = tl.dot(p, e, acc, input_precision="ieee")
    return acc, m, l


@triton.jit
def _store_tile(
    acc_ptr, state_ptr, acc, m, l, r, d, part, rows, embedding, FIRST,  # noqa: E741
    TRANSPOSED,
):  # fmt: skip
    """Store a tile's partial sum and, from the first column tile, its state."""
    here = r < rows
    out = (part * rows + r) * embedding
    if TRANSPOSED:
        acc = tl.trans(acc)
    tl.store(
        acc_ptr + out[:, None] + d[None, :], acc, mask=here[:, None] & (d < embedding)[None, :]
    )
    if FIRST:
        state = state_ptr + part * rows + r
        tl.store(state, m, mask=here)
        tl.store(state + tl.num_programs(2).to(tl.int64) * rows, l, mask=here)


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
    TRANSPOSED: tl.constexpr,
    ROW_TILES: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    # The row tiles are spelled out, not indexed: loop-carried tensors cannot stand in a list.
    r0 = tl.program_id(0).to(tl.int64) * (ROW_TILES * BLOCK_R) + tl.arange(0, BLOCK_R)  # [BLOCK_R]
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)  # [BLOCK_D]
    part = tl.program_id(2).to(tl.int64)
    d_here = d < embedding
    if TRANSPOSED:
        zero = tl.zeros([BLOCK_D, BLOCK_R], tl.float32)
    else:
        zero = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    none = tl.zeros([BLOCK_R], tl.float32)
    row0, m0 = _row_tile(
        rows_ptr, top1_ptr, logits_ptr, logits_stride, r0, rows, HAS_ROWS, HAS_TOP1
    )
    acc0, l0 = zero, none
    if ROW_TILES > 1:
        r1 = r0 + 1 * BLOCK_R
        row1, m1 = _row_tile(
            rows_ptr, top1_ptr, logits_ptr, logits_stride, r1, rows, HAS_ROWS, HAS_TOP1
        )
        acc1, l1 = zero, none
    if ROW_TILES > 2:
        r2 = r0 + 2 * BLOCK_R
        row2, m2 = _row_tile(
            rows_ptr, top1_ptr, logits_ptr, logits_stride, r2, rows, HAS_ROWS, HAS_TOP1
        )
        acc2, l2 = zero, none
    if ROW_TILES > 3:
        r3 = r0 + 3 * BLOCK_R
        row3, m3 = _row_tile(
            rows_ptr, top1_ptr, logits_ptr, logits_stride, r3, rows, HAS_ROWS, HAS_TOP1
        )
        acc3, l3 = zero, none
    if ROW_TILES > 4:
        r4 = r0 + 4 * BLOCK_R
        row4, m4 = _row_tile(
            rows_ptr, top1_ptr, logits_ptr, logits_stride, r4, rows, HAS_ROWS, HAS_TOP1
        )
        acc4, l4 = zero, none
    first = (part * chunk).to(tl.int32)
    last = tl.minimum(first + chunk, width)
    for start in range(first, last, BLOCK_V):
        cols = start + tl.arange(0, BLOCK_V)  # [BLOCK_V]
        v_here = cols < last
        e_row = table_ptr + cols.to(tl.int64) * table_stride
        e = tl.load(
            e_row[:, None] + d[None, :], mask=v_here[:, None] & d_here[None, :], other=0.0
        )  # [BLOCK_V, BLOCK_D]
        banned = v_here
        if HAS_BANNED:
            banned = is_banned(banned_ptr, cols, v_here)
        acc0, m0, l0 = _add_tile(
            acc0, m0, l0, e, row0, r0 < rows, cols, v_here, banned, scale,
            HAS_TOP1, HAS_BANNED, DOT_IN_FP32, TRANSPOSED,
        )  # fmt: skip
        if ROW_TILES > 1:
            acc1, m1, l1 = _add_tile(
                acc1, m1, l1, e, row1, r1 < rows, cols, v_here, banned, scale,
                HAS_TOP1, HAS_BANNED, DOT_IN_FP32, TRANSPOSED,
            )  # fmt: skip
        if ROW_TILES > 2:
            acc2, m2, l2 = _add_tile(
                acc2, m2, l2, e, row2, r2 < rows, cols, v_here, banned, scale,
                HAS_TOP1, HAS_BANNED, DOT_IN_FP32, TRANSPOSED,
            )  # fmt: skip
        if ROW_TILES > 3:
            acc3, m3, l3 = _add_tile(
                acc3, m3, l3, e, row3, r3 < rows, cols, v_here, banned, scale,
                HAS_TOP1, HAS_BANNED, DOT_IN_FP32, TRANSPOSED,
            )  # fmt: skip
        if ROW_TILES > 4:
            acc4, m4, l4 = _add_tile(
                acc4, m4, l4, e, row4, r4 < rows, cols, v_here, banned, scale,
                HAS_TOP1, HAS_BANNED, DOT_IN_FP32, TRANSPOSED,
            )  # fmt: skip

    first_column = tl.program_id(1) == 0
    _store_tile(
        acc_ptr, state_ptr, acc0, m0, l0, r0, d, part, rows, embedding, first_column,
        TRANSPOSED,
    )  # fmt: skip
    if ROW_TILES > 1:
        _store_tile(
            acc_ptr, state_ptr, acc1, m1, l1, r1, d, part, rows, embedding, first_column,
            TRANSPOSED,
        )  # fmt: skip
    if ROW_TILES > 2:
        _store_tile(
            acc_ptr, state_ptr, acc2, m2, l2, r2, d, part, rows, embedding, first_column,
            TRANSPOSED,
        )  # fmt: skip
    if ROW_TILES > 3:
        _store_tile(
            acc_ptr, state_ptr, acc3, m3, l3, r3, d, part, rows, embedding, first_column,
            TRANSPOSED,
        )  # fmt: skip
    if ROW_TILES > 4:
        _store_tile(
            acc_ptr, state_ptr, acc4, m4, l4, r4, d, part, rows, embedding, first_column,
            TRANSPOSED,
        )  # fmt: skip


@triton.jit
def _expected_embedding_combine_kernel(
    acc_ptr,
    state_ptr,
    out_ptr,
    whole_ptr,
    rows,
    chunks,
    embedding,
    whole_stride,
    scale,
    BLOCK_C: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    r = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)  # [BLOCK_D]
    d_here = d < embedding
    stride = tl.cast(rows, tl.int64)
    highest = tl.full([BLOCK_C], float("-inf"), tl.float32)
    for start in range(0, chunks, BLOCK_C):
        part = start + tl.arange(0, BLOCK_C)  # [BLOCK_C]
        at = part * stride + r
        m = tl.load(state_ptr + at, mask=part < chunks, other=float("-inf"))
        highest = tl.maximum(highest, m)
    top = tl.max(highest, axis=0)
    shift = finite_shift(top)
    total = tl.full([], 0.0, tl.float32)
    acc = tl.zeros([BLOCK_D], tl.float32)
    for start in range(0, chunks, BLOCK_C):
        part = start + tl.arange(0, BLOCK_C)
        here = part < chunks
        at = part * stride + r
        m = tl.load(state_ptr + at, mask=here, other=float("-inf"))
        l = tl.load(state_ptr + chunks * stride + at, mask=here, other=0.0)  # noqa: E741
        c = tl.exp2((m - shift) * scale)
        sums = tl.load(
            acc_ptr + (at * embedding)[:, None] + d[None, :],
            mask=here[:, None] & d_here[None, :],
            other=0.0,
        )  # [BLOCK_C, BLOCK_D]
        total += tl.sum(c * l, axis=0)
        acc += tl.sum(c[:, None] * sums, axis=0)
    total = tl.where(total > 0.0, total, float("nan"))  # NaN, or a row that is all -inf
    tl.store(out_ptr + r * embedding + d, (acc / total).to(out_ptr.dtype.element_ty), mask=d_here)
    if tl.program_id(1) == 0:
        tl.store(whole_ptr + r, top)
        tl.store(whole_ptr + whole_stride + r, total)


def expected_embedding_triton(
    logits: Tensor,
    table: Tensor,
    rows: Tensor | None,
    top1_id: Tensor | None,
    temperature: float,
    width: int,
    banned_ids: tuple[int, ...],
    config: ExpectedEmbeddingConfig | None = None,
    whole: Tensor | None = None,
) -> Tensor:
    """Launch both kernels on logits [R, >= width] and a table whose last strides are 1.

    `whole` [2, N], contiguous float32, receives (m, l) of each row, l NaN where there is no
    distribution: what the backward pass asks for.
    """
    device, embedding = logits.device, table.shape[1]
    chip = chip_of(device)
    config = config or expected_embedding_config(width, embedding, table.dtype, chip)
    count = logits.shape[0] if rows is None else rows.shape[0]
    out = torch.empty((count, embedding), dtype=table.dtype, device=device)
    if whole is None:
        whole = torch.empty((2, count), dtype=torch.float32, device=device)
    held = min(count, ROWS_PER_LAUNCH)
    acc = torch.empty((config.chunks, held, embedding), dtype=torch.float32, device=device)
    state = torch.empty((2, config.chunks, held), dtype=torch.float32, device=device)
    scale = LOG2_E / temperature
    block_d = combine_block(embedding)
    for start in range(0, count, ROWS_PER_LAUNCH):
        span = slice(start, start + ROWS_PER_LAUNCH)
        piece = out[span]
        n = piece.shape[0]
        groups, tiles = row_groups(n, config.block_r)
        grid = (groups, ceil_div(embedding, config.block_d), config.chunks)
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
            TRANSPOSED=config.transposed,
            ROW_TILES=tiles,
            BLOCK_R=config.block_r,
            BLOCK_V=config.block_v,
            BLOCK_D=config.block_d,
            enable_fp_fusion=False,
            **config.launch,
        )
        _expected_embedding_combine_kernel[(n, ceil_div(embedding, block_d))](
            acc_ptr=acc,
            state_ptr=state,
            out_ptr=piece,
            whole_ptr=whole[:, span],
            rows=n,
            chunks=config.chunks,
            embedding=embedding,
            whole_stride=count,
            scale=scale,
            BLOCK_C=combine_chunks(config.chunks),
            BLOCK_D=block_d,
            num_warps=4,
            enable_fp_fusion=False,
        )
    return out
