"""Logits ``z = x W^T + b`` of hidden rows x [R, H] and a head W [V, H], and their statistics.

Statistics as in `vocab_stats`, of the logits *as stored*: rounded to their dtype, then up again.

*Split*: one program owns BLOCK_V rows of the head and up to five tiles of 16 hidden rows, grid
(row groups, chunks of V) with the row groups adjacent, so that they share the head's tile in cache.
The product is ``W x^T``: the head, whose rows are many, is the long side of the matrix
instruction, and 16 hidden rows are the short one. Each slab [BLOCK_V, BLOCK_H] of the head is
loaded once and multiplied with every tile of rows. The epilogue adds the bias, stores the logits
[R, V] and the state of the chunk, as the split kernel of `vocab_stats` does. *Combine*: that of
`vocab_stats`.

Tiles, instructions and order of the sums are the same for any R; only how many tiles a program
holds is not. So a row's bits do not depend on its batch. Bytes: the head ceil(R/80) times; R V
logits written; the hidden rows once per chunk, from cache; 20 bytes per chunk and row written and
read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from codila_kernels.configs import HeadStatsConfig, ceil_div, chip_of, head_stats_config
from codila_kernels.kernels.online_softmax import LOG2_E, banned_bits, is_banned
from codila_kernels.kernels.vocab_stats import chunk_state, combine_chunks, inverse_temperature

# Hidden rows of a tile: the least short side that the matrix instructions of all chips share.
BLOCK_R = tl.constexpr(16)
# Tiles of a program: 80 rows in all. The sums take 80 registers of each of 128 threads.
MAX_TILES = 5


@triton.jit
def _add_product(acc, w, hidden_ptr, r, rows, h, h_here, hidden_stride, DOT_IN_FP32: tl.constexpr):
    """``acc + w x^T`` for the tile of hidden rows r; acc is [BLOCK_V, BLOCK_R]."""
    x_row = hidden_ptr + r * hidden_stride  # [BLOCK_R]
    x = tl.load(
        x_row[None, :] + h[:, None], mask=h_here[:, None] & (r < rows)[None, :], other=0.0
    )  # [BLOCK_H, BLOCK_R]
    if DOT_IN_FP32:  # the interpreter multiplies the bit patterns of bfloat16
        return acc + tl.dot(w.to(tl.float32), x.to(tl.float32))
    return tl.dot(w, x, acc, input_precision="ieee")


@triton.jit
def _finish_tile(
    acc, offset, out_of_play, v, vocabulary, r, rows, logits_ptr, state_ptr, ids_ptr,
    inv_temperature, scale,
):  # fmt: skip
    """Store the logits of a tile [BLOCK_V, BLOCK_R], and the states of its rows."""
    r_here = r < rows
    stored = (acc + offset[:, None]).to(logits_ptr.dtype.element_ty)
    tl.store(
        (logits_ptr + r * vocabulary)[None, :] + v[:, None],
        stored,
        mask=(v < vocabulary)[:, None] & r_here[None, :],
    )
    z = tl.where(out_of_play[:, None], float("-inf"), stored.to(tl.float32))
    m, l, t, second, top1 = chunk_state(z, v[:, None], inv_temperature, scale)  # noqa: E741
    chunks = tl.num_programs(1)
    state = state_ptr + r * 4 * chunks + tl.program_id(1)
    tl.store(state, m, mask=r_here)
    tl.store(state + chunks, l, mask=r_here)
    tl.store(state + 2 * chunks, t, mask=r_here)
    tl.store(state + 3 * chunks, second, mask=r_here)
    tl.store(ids_ptr + r * chunks + tl.program_id(1), top1, mask=r_here)


@triton.jit
def _head_stats_split_kernel(
    hidden_ptr,
    head_ptr,
    bias_ptr,
    banned_ptr,
    logits_ptr,
    state_ptr,
    ids_ptr,
    rows,
    vocabulary,
    width,
    hidden_size,
    hidden_stride,
    head_stride,
    inv_temperature,
    scale,
    HAS_BIAS: tl.constexpr,
    HAS_BANNED: tl.constexpr,
    DOT_IN_FP32: tl.constexpr,
    TILES: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    r0 = tl.program_id(0).to(tl.int64) * (TILES * BLOCK_R) + tl.arange(0, BLOCK_R)  # [BLOCK_R]
    r1, r2, r3, r4 = r0 + BLOCK_R, r0 + 2 * BLOCK_R, r0 + 3 * BLOCK_R, r0 + 4 * BLOCK_R
    v = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)  # [BLOCK_V]
    v_here = v < vocabulary
    w_row = head_ptr + v.to(tl.int64) * head_stride  # [BLOCK_V]

    # Named one by one, as a loop cannot carry a list; those beyond TILES cost nothing.
    acc0 = tl.zeros([BLOCK_V, BLOCK_R], tl.float32)
    acc1 = tl.zeros([BLOCK_V, BLOCK_R], tl.float32)
    acc2 = tl.zeros([BLOCK_V, BLOCK_R], tl.float32)
    acc3 = tl.zeros([BLOCK_V, BLOCK_R], tl.float32)
    acc4 = tl.zeros([BLOCK_V, BLOCK_R], tl.float32)
    for start in range(0, hidden_size, BLOCK_H):
        h = start + tl.arange(0, BLOCK_H)  # [BLOCK_H]
        h_here = h < hidden_size
        w = tl.load(
            w_row[:, None] + h[None, :], mask=v_here[:, None] & h_here[None, :], other=0.0
        )  # [BLOCK_V, BLOCK_H]
        acc0 = _add_product(
            acc0, w, hidden_ptr, r0, rows, h, h_here, hidden_stride, DOT_IN_FP32
        )  # fmt: skip
        if TILES > 1:
            acc1 = _add_product(
                acc1, w, hidden_ptr, r1, rows, h, h_here, hidden_stride, DOT_IN_FP32
            )  # fmt: skip
        if TILES > 2:
            acc2 = _add_product(
                acc2, w, hidden_ptr, r2, rows, h, h_here, hidden_stride, DOT_IN_FP32
            )  # fmt: skip
        if TILES > 3:
            acc3 = _add_product(
                acc3, w, hidden_ptr, r3, rows, h, h_here, hidden_stride, DOT_IN_FP32
            )  # fmt: skip
        if TILES > 4:
            acc4 = _add_product(
                acc4, w, hidden_ptr, r4, rows, h, h_here, hidden_stride, DOT_IN_FP32
            )  # fmt: skip

    offset = tl.zeros([BLOCK_V], tl.float32)
    if HAS_BIAS:
        offset = tl.load(bias_ptr + v, mask=v_here, other=0.0).to(tl.float32)
    out_of_play = v >= width
    if HAS_BANNED:
        out_of_play = out_of_play | is_banned(banned_ptr, v, v < width)
    _finish_tile(
        acc0, offset, out_of_play, v, vocabulary, r0, rows, logits_ptr, state_ptr, ids_ptr,
        inv_temperature, scale,
    )  # fmt: skip
    if TILES > 1:
        _finish_tile(
            acc1, offset, out_of_play, v, vocabulary, r1, rows, logits_ptr, state_ptr, ids_ptr,
            inv_temperature, scale,
        )  # fmt: skip
    if TILES > 2:
        _finish_tile(
            acc2, offset, out_of_play, v, vocabulary, r2, rows, logits_ptr, state_ptr, ids_ptr,
            inv_temperature, scale,
        )  # fmt: skip
    if TILES > 3:
        _finish_tile(
            acc3, offset, out_of_play, v, vocabulary, r3, rows, logits_ptr, state_ptr, ids_ptr,
            inv_temperature, scale,
        )  # fmt: skip
    if TILES > 4:
        _finish_tile(
            acc4, offset, out_of_play, v, vocabulary, r4, rows, logits_ptr, state_ptr, ids_ptr,
            inv_temperature, scale,
        )  # fmt: skip


def head_stats_triton(
    hidden: Tensor,
    head: Tensor,
    bias: Tensor | None,
    temperature: float,
    width: int,
    banned_ids: tuple[int, ...],
    config: HeadStatsConfig | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Launch both kernels on hidden [R, H] and head [V, H] whose last strides are 1."""
    device, chip = hidden.device, chip_of(hidden.device)
    rows, (vocabulary, hidden_size) = hidden.shape[0], head.shape
    config = config or head_stats_config(vocabulary, hidden_size, head.dtype, chip)
    logits = torch.empty((rows, vocabulary), dtype=hidden.dtype, device=device)
    state = torch.empty((rows, 4, config.chunks), dtype=torch.float32, device=device)
    ids = torch.empty((rows, config.chunks), dtype=torch.int32, device=device)
    if rows:
        tiles = ceil_div(rows, BLOCK_R.value)
        groups = ceil_div(tiles, MAX_TILES)
        inv_temperature = inverse_temperature(temperature)
        _head_stats_split_kernel[(groups, config.chunks)](
            hidden_ptr=hidden,
            head_ptr=head,
            bias_ptr=hidden if bias is None else bias,
            banned_ptr=banned_bits(banned_ids, width, device) if banned_ids else ids,
            logits_ptr=logits,
            state_ptr=state,
            ids_ptr=ids,
            rows=rows,
            vocabulary=vocabulary,
            width=width,
            hidden_size=hidden_size,
            hidden_stride=hidden.stride(0),
            head_stride=head.stride(0),
            inv_temperature=inv_temperature,
            scale=LOG2_E * inv_temperature,
            HAS_BIAS=bias is not None,
            HAS_BANNED=bool(banned_ids),
            DOT_IN_FP32=chip == "interpreter",
            TILES=ceil_div(tiles, groups),
            BLOCK_V=config.block_v,
            BLOCK_H=config.block_h,
            **config.launch,
            enable_fp_fusion=False,
        )
    return *combine_chunks(state, ids, temperature), logits
