"""Gradients of soft and top-k tokens, probabilities recomputed tile by tile, without atomics.

Soft, with g the gradient [N, D], o the output and p = 2^((z - m) s) / l of the forward's (m, l):

    dE_v  = sum_r p_rv g_r                       one program owns [BLOCK_V, BLOCK_D] of the table
    dz_rv = p_rv / T * (g_r . E_v - g_r . o_r)   one program owns [BLOCK_R, BLOCK_V] of the logits

The first walks the rows, the second the columns of the table, both ascending. Top-k, weights w:

    dE_v = sum over (r, j) with id_rj = v of w_rj g_r,   dz_rj = w_rj / T * (g_r . E_j - sum_i ...)

Sums over repeats (of an id, or of a row that `rows` names twice) are over runs of sorted keys: the
program of a run's first entry adds the run in order, in float32; the other programs end at once.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from codila_kernels.configs import (
    BackwardConfig,
    backward_config,
    ceil_div,
    chip_of,
    gather_blocks,
)
from codila_kernels.kernels.online_softmax import LOG2_E, banned_bits, finite_shift, is_banned


@triton.jit
def _probabilities(
    logits_ptr, owner_ptr, banned_ptr, state_ptr, r, cols, rows, width, logits_stride, scale,
    HAS_ROWS, HAS_BANNED,
):  # fmt: skip
    """p [BLOCK_R, BLOCK_V] of given rows and columns, 0 out of range and for repeats of a row."""
    here = r < rows
    v_here = cols < width
    source = r
    if HAS_ROWS:
        source = tl.load(owner_ptr + r, mask=here, other=-1)
        here = source >= 0
    z = tl.load(
        logits_ptr + (source * logits_stride)[:, None] + cols[None, :],
        mask=here[:, None] & v_here[None, :],
        other=float("-inf"),
    ).to(tl.float32)
    if HAS_BANNED:
        z = tl.where(is_banned(banned_ptr, cols, v_here)[None, :], float("-inf"), z)
    m = tl.load(state_ptr + r, mask=here, other=0.0)
    l = tl.load(state_ptr + rows + r, mask=here, other=1.0)  # noqa: E741
    return tl.exp2((z - finite_shift(m)[:, None]) * scale) / l[:, None], source, here


@triton.jit
def _soft_table_gradient_kernel(
    grad_ptr,
    logits_ptr,
    owner_ptr,
    banned_ptr,
    state_ptr,
    out_ptr,
    rows,
    width,
    embedding,
    logits_stride,
    scale,
    HAS_ROWS: tl.constexpr,
    HAS_BANNED: tl.constexpr,
    DOT_IN_FP32: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    cols = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)  # [BLOCK_V]
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)  # [BLOCK_D]
    d_here = d < embedding
    acc = tl.zeros([BLOCK_V, BLOCK_D], tl.float32)
    for start in range(0, rows, BLOCK_R):
        r = start + tl.arange(0, BLOCK_R).to(tl.int64)  # [BLOCK_R]
        p, _, _ = _probabilities(
            logits_ptr, owner_ptr, banned_ptr, state_ptr, r, cols, rows, width, logits_stride,
            scale, HAS_ROWS, HAS_BANNED,
        )  # fmt: skip
        g = tl.load(
            grad_ptr + (r * embedding)[:, None] + d[None, :],
            mask=(r < rows)[:, None] & d_here[None, :],
            other=0.0,
        )  # [BLOCK_R, BLOCK_D]
        p = p.to(g.dtype)
        if DOT_IN_FP32:  # the interpreter multiplies the bit patterns of bfloat16
            p, g = p.to(tl.float32), g.to(tl.float32)
        acc = tl.dot(tl.trans(p), g, acc, input_precision="ieee")
    out = out_ptr + (cols.to(tl.int64) * embedding)[:, None] + d[None, :]
    mask = (cols < width)[:, None] & d_here[None, :]
    tl.store(out, acc.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit
def _soft_logits_gradient_kernel(
    grad_ptr,
    along_ptr,
    logits_ptr,
    table_ptr,
    owner_ptr,
    banned_ptr,
    state_ptr,
    out_ptr,
    rows,
    width,
    embedding,
    logits_stride,
    table_stride,
    out_stride,
    inv_temperature,
    scale,
    HAS_ROWS: tl.constexpr,
    HAS_BANNED: tl.constexpr,
    DOT_IN_FP32: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    r = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)  # [BLOCK_R]
    cols = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)  # [BLOCK_V]
    v_here = cols < width
    acc = tl.zeros([BLOCK_R, BLOCK_V], tl.float32)
    for start in range(0, embedding, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)  # [BLOCK_D]
        d_here = d < embedding
        g = tl.load(
            grad_ptr + (r * embedding)[:, None] + d[None, :],
            mask=(r < rows)[:, None] & d_here[None, :],
            other=0.0,
        )  # [BLOCK_R, BLOCK_D]
        e = tl.load(
            table_ptr + (cols.to(tl.int64) * table_stride)[:, None] + d[None, :],
            mask=v_here[:, None] & d_here[None, :],
            other=0.0,
        )  # [BLOCK_V, BLOCK_D]
        if DOT_IN_FP32:
            g, e = g.to(tl.float32), e.to(tl.float32)
        acc = tl.dot(g, tl.trans(e), acc, input_precision="ieee")
    p, source, here = _probabilities(
        logits_ptr, owner_ptr, banned_ptr, state_ptr, r, cols, rows, width, logits_stride,
        scale, HAS_ROWS, HAS_BANNED,
    )  # fmt: skip
    along = tl.load(along_ptr + r, mask=r < rows, other=0.0)
    dz = p * inv_temperature * (acc - along[:, None])
    if HAS_BANNED:  # no gradient, also where the row is NaN
        dz = tl.where(is_banned(banned_ptr, cols, v_here)[None, :], 0.0, dz)
    tl.store(
        out_ptr + (source * out_stride)[:, None] + cols[None, :],
        dz.to(out_ptr.dtype.element_ty),
        mask=here[:, None] & v_here[None, :],
    )


@triton.jit
def _run_sum_kernel(
    keys_ptr,
    order_ptr,
    target_ptr,
    weights_ptr,
    source_ptr,
    out_ptr,
    count,
    fan_out,
    embedding,
    BLOCK_D: tl.constexpr,
):
    entry = tl.program_id(0).to(tl.int64)
    key = tl.load(keys_ptr + entry)
    before = tl.load(keys_ptr + entry - 1, mask=entry > 0, other=-1)
    if key != before:
        d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)  # [BLOCK_D]
        d_here = d < embedding
        acc = tl.zeros([BLOCK_D], tl.float32)
        target = tl.load(target_ptr + entry)
        here = key
        while here == key:
            at = tl.load(order_ptr + entry)
            w = tl.load(weights_ptr + at)
            x = tl.load(source_ptr + (at // fan_out) * embedding + d, mask=d_here, other=0.0)
            acc += w * x.to(tl.float32)
            entry += 1
            here = tl.load(keys_ptr + entry, mask=entry < count, other=-1)
        tl.store(out_ptr + target * embedding + d, acc.to(out_ptr.dtype.element_ty), mask=d_here)


@triton.jit
def _top_k_product_kernel(
    grad_ptr,
    table_ptr,
    ids_ptr,
    out_ptr,
    top_k,
    embedding,
    table_stride,
    BLOCK_D: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    at = row * top_k + tl.program_id(1)
    e_row = table_ptr + tl.load(ids_ptr + at) * table_stride
    acc = tl.zeros([BLOCK_D], tl.float32)
    for start in range(0, embedding, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)  # [BLOCK_D]
        g = tl.load(grad_ptr + row * embedding + d, mask=d < embedding, other=0.0)
        e = tl.load(e_row + d, mask=d < embedding, other=0.0)
        acc += g.to(tl.float32) * e.to(tl.float32)
    tl.store(out_ptr + at, tl.sum(acc, axis=0))


def _run_sums(
    keys: Tensor, weights: Tensor, source: Tensor, out: Tensor, fan_out: int, by_key: bool
) -> None:
    """``out[t] = sum of weights[i] source[i // fan_out]`` over the entries i of each key.

    t is the key itself, or the first entry that has it. Rows of `out` without a key stay.
    """
    ordered, order = keys.sort(stable=True)
    embedding = out.shape[1]
    block_d = gather_blocks(1, embedding)[1]
    _run_sum_kernel[(keys.shape[0], ceil_div(embedding, block_d))](
        keys_ptr=ordered,
        order_ptr=order,
        target_ptr=ordered if by_key else order,
        weights_ptr=weights,
        source_ptr=source,
        out_ptr=out,
        count=keys.shape[0],
        fan_out=fan_out,
        embedding=embedding,
        BLOCK_D=block_d,
        num_warps=1,
        enable_fp_fusion=False,
    )


def _fold_repeats(rows: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients added up at the first mention of each row, 0 at the others; and who is first.

    A row that is named twice has the same probabilities both times. Returns grad [N, D] and the
    row of logits that each entry owns, -1 for repeats.
    """
    folded = torch.zeros_like(grad, memory_format=torch.contiguous_format)
    keys = rows.long()
    ones = torch.ones(keys.shape, dtype=torch.float32, device=grad.device)
    _run_sums(keys, ones, grad, folded, 1, by_key=False)
    ordered, order = keys.sort(stable=True)
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    owner = torch.empty_like(keys).scatter_(0, order, ordered.masked_fill(~first, -1))
    return folded, owner


def _zeros(like: Tensor, needed: bool) -> Tensor:
    return like.new_zeros(like.shape if needed else (0,))


def soft_backward_triton(
    grad: Tensor,
    output: Tensor,
    state: Tensor,
    logits: Tensor,
    table: Tensor,
    rows: Tensor | None,
    temperature: float,
    width: int,
    banned_ids: tuple[int, ...],
    needs: tuple[bool, bool],
    config: BackwardConfig | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradients [R, V] and [Va, D] of soft tokens; an empty tensor for one that is not needed.

    `state` is (m, l) [2, N] of the forward pass; grad and output are contiguous.
    """
    device, count, embedding = logits.device, grad.shape[0], table.shape[1]
    chip = chip_of(device)
    config = config or backward_config(width, embedding, table.dtype, chip)
    grad_logits, grad_table = _zeros(logits, needs[0]), _zeros(table, needs[1])
    owner = state
    if rows is not None and count:
        grad, owner = _fold_repeats(rows, grad)
    common: dict[str, Any] = dict(
        grad_ptr=grad,
        logits_ptr=logits,
        owner_ptr=owner,
        banned_ptr=banned_bits(banned_ids, width, device) if banned_ids else state,
        state_ptr=state,
        rows=count,
        width=width,
        embedding=embedding,
        logits_stride=logits.stride(0),
        scale=LOG2_E / temperature,
        HAS_ROWS=rows is not None,
        HAS_BANNED=bool(banned_ids),
        DOT_IN_FP32=chip == "interpreter",
        num_warps=config.num_warps,
        num_stages=config.num_stages,
        enable_fp_fusion=False,
        BLOCK_R=config.block_r,
        BLOCK_V=config.block_v,
    )
    tiles = ceil_div(width, config.block_v)
    if needs[1] and count:
        _soft_table_gradient_kernel[(tiles, ceil_div(embedding, config.block_d))](
            out_ptr=grad_table, BLOCK_D=config.block_d, **common
        )
    if needs[0] and count:
        _soft_logits_gradient_kernel[(ceil_div(count, config.block_r), tiles)](
            along_ptr=(grad.float() * output.float()).sum(-1),
            table_ptr=table,
            out_ptr=grad_logits,
            table_stride=table.stride(0),
            out_stride=grad_logits.stride(0),
            inv_temperature=1.0 / temperature,
            BLOCK_D=config.block_k,
            **common,
        )
    return grad_logits, grad_table


def top_k_backward_triton(
    grad: Tensor,
    ids: Tensor,
    weights: Tensor,
    logits: Tensor,
    table: Tensor,
    rows: Tensor | None,
    temperature: float,
    needs: tuple[bool, bool],
) -> tuple[Tensor, Tensor]:
    """As `soft_backward_triton`, of tokens given by their ids and weights [N, k]."""
    top_k, embedding = ids.shape[1], table.shape[1]
    grad_logits, grad_table = _zeros(logits, needs[0]), _zeros(table, needs[1])
    if needs[1] and ids.numel():
        _run_sums(ids.flatten(), weights, grad, grad_table, top_k, by_key=True)
    if needs[0] and ids.numel():
        product = torch.empty_like(weights)
        _top_k_product_kernel[tuple(ids.shape)](
            grad_ptr=grad,
            table_ptr=table,
            ids_ptr=ids,
            out_ptr=product,
            top_k=top_k,
            embedding=embedding,
            table_stride=table.stride(0),
            BLOCK_D=gather_blocks(1, embedding)[1],
            num_warps=1,
            enable_fp_fusion=False,
        )
        product = product.masked_fill(weights == 0, 0.0)
        dz = weights / temperature * (product - (weights * product).sum(-1, keepdim=True))
        if rows is None:  # the ids of a row differ: nothing is written twice
            grad_logits.scatter_(1, ids, dz.to(logits.dtype))
        else:
            keys = (rows.long().unsqueeze(-1) * logits.shape[1] + ids).flatten()
            ones = torch.ones_like(dz)
            _run_sums(keys, ones, dz.view(-1, 1), grad_logits.view(-1, 1), 1, by_key=True)
    return grad_logits, grad_table
