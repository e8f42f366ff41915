"""Tokens conditioned on the k largest logits of a row, and the hard token, k = 1.

    out = sum_j w_j E[id_j],   w_j = 2^((z_j - m) s) / sum_i 2^((z_i - m) s),   s = log2(e) / T

with j over the k largest logits by rank, ties to the lowest id. An entry is one int64 key: its
logit, as an integer of the same order, above the complement of its id. So the larger key is the
larger logit, and among equals the lower id; no two keys of a row are equal. NaN counts as +inf,
which makes a row without a distribution known by its largest key.

*Split*: one program owns one row and one chunk of BLOCK_V columns, grid (N, chunks), and stores the
chunk's k largest keys, largest first, [N, chunks, k]. *Merge*: one program per row takes the k
largest of them and stores ids and weights [N, k]. *Gather*: one program per row and column tile
adds the k table rows in order of rank, in float32. The hard token of rows whose arg-max is known is
the gather alone. Bytes: the logits once, 16 chunks k per row for the keys, k table rows per row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from codila_kernels.configs import (
    ceil_div,
    chip_of,
    gather_blocks,
    next_power_of_two,
    top_k_config,
)
from codila_kernels.kernels.online_softmax import LOG2_E, banned_bits, is_banned

_NO_KEY = tl.constexpr(-(2**63))  # below the key of any logit


@triton.jit
def _keys(z, cols, in_range):
    """Keys of logits z: ordered as z, NaN as +inf, ties with the lowest id on top."""
    z = tl.where(z != z, float("inf"), z)
    z = tl.where(z == 0.0, 0.0, z)  # -0.0 equals 0.0, but its bits do not
    bits = z.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)  # negative floats order backwards as integers
    key = (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - cols).to(tl.int64)
    return tl.where(in_range, key, _NO_KEY)


@triton.jit
def _key_logit(key):
    ordered = (key >> 32).to(tl.int32)
    bits = ordered ^ ((ordered >> 31) & 0x7FFFFFFF)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _top_k_split_kernel(
    logits_ptr,
    rows_ptr,
    banned_ptr,
    keys_ptr,
    width,
    chunks,
    top_k,
    logits_stride,
    HAS_ROWS: tl.constexpr,
    HAS_BANNED: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    source = row
    if HAS_ROWS:
        source = tl.load(rows_ptr + row).to(tl.int64)
    cols = chunk * BLOCK_V + tl.arange(0, BLOCK_V)  # [BLOCK_V]
    in_range = cols < width
    z = tl.load(logits_ptr + source * logits_stride + cols, mask=in_range, other=float("-inf"))
    z = z.to(tl.float32)
    if HAS_BANNED:
        z = tl.where(is_banned(banned_ptr, cols, in_range), float("-inf"), z)
    keys = _keys(z, cols, in_range)
    out = keys_ptr + (row * chunks + chunk) * top_k
    for rank in range(top_k):
        best = tl.max(keys, axis=0)
        tl.store(out + rank, best)
        keys = tl.where(keys == best, _NO_KEY, keys)


@triton.jit
def _top_k_merge_kernel(
    keys_ptr,
    ids_ptr,
    weights_ptr,
    candidates,
    top_k,
    scale,
    BLOCK_K: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK_C)  # [BLOCK_C]
    keys = tl.load(keys_ptr + row * candidates + index, mask=index < candidates, other=_NO_KEY)
    slot = tl.arange(0, BLOCK_K)  # [BLOCK_K]
    top = tl.max(keys, axis=0)
    kept = tl.full([BLOCK_K], _NO_KEY, tl.int64)
    for rank in range(top_k):
        best = tl.max(keys, axis=0)
        kept = tl.where(slot == rank, best, kept)
        keys = tl.where(keys == best, _NO_KEY, keys)
    m = _key_logit(top)
    usable = (m > float("-inf")) & (m < float("inf"))
    here = slot < top_k
    z = tl.where(here, _key_logit(kept), float("-inf"))
    p = tl.exp2((z - tl.where(usable, m, 0.0)) * scale)
    weight = tl.where(usable, p / tl.sum(p, axis=0), float("nan"))
    ids = 0x7FFFFFFF - (kept & 0x7FFFFFFF)
    tl.store(ids_ptr + row * top_k + slot, ids, mask=here)
    tl.store(weights_ptr + row * top_k + slot, weight, mask=here)


@triton.jit
def _top_k_gather_kernel(
    table_ptr,
    rows_ptr,
    top1_ptr,
    ids_ptr,
    weights_ptr,
    out_ptr,
    top_k,
    embedding,
    table_stride,
    HAS_ROWS: tl.constexpr,
    HAS_TOP1: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)  # [BLOCK_D]
    d_here = d < embedding
    if HAS_TOP1:  # the hard token of a known arg-max: ids and weights are made here
        source = row
        if HAS_ROWS:
            source = tl.load(rows_ptr + row).to(tl.int64)
        top1 = tl.load(top1_ptr + source)
        if tl.program_id(1) == 0:
            tl.store(ids_ptr + row, tl.maximum(top1, 0))
            tl.store(weights_ptr + row, tl.where(top1 >= 0, 1.0, float("nan")))
        e = tl.load(table_ptr + tl.maximum(top1, 0) * table_stride + d, mask=d_here, other=0.0)
        acc = tl.where(top1 >= 0, e.to(tl.float32), float("nan"))
    else:
        acc = tl.zeros([BLOCK_D], tl.float32)
        for start in range(0, top_k, BLOCK_K):
            slot = start + tl.arange(0, BLOCK_K)  # [BLOCK_K]
            here = slot < top_k
            token = tl.load(ids_ptr + row * top_k + slot, mask=here, other=0)
            w = tl.load(weights_ptr + row * top_k + slot, mask=here, other=0.0)
            e = tl.load(
                table_ptr + (token * table_stride)[:, None] + d[None, :],
                mask=here[:, None] & d_here[None, :],
                other=0.0,
            ).to(tl.float32)  # [BLOCK_K, BLOCK_D]
            # an entry of weight 0 (a logit of -inf) drops out whatever its table row holds
            acc += tl.sum(tl.where(w[:, None] == 0.0, 0.0, w[:, None] * e), axis=0)
    tl.store(out_ptr + row * embedding + d, acc.to(out_ptr.dtype.element_ty), mask=d_here)


def top_k_triton(
    logits: Tensor,
    table: Tensor,
    rows: Tensor | None,
    top1_id: Tensor | None,
    top_k: int,
    temperature: float,
    width: int,
    banned_ids: tuple[int, ...],
) -> tuple[Tensor, Tensor, Tensor]:
    """Launch the kernels: tokens [N, D], ids int64 and weights float32 [N, top_k] by rank.

    T = 0 comes with ``top_k = 1``. `top1_id` is used by the hard token only, in place of logits.
    """
    device, embedding = logits.device, table.shape[1]
    count = logits.shape[0] if rows is None else rows.shape[0]
    out = torch.empty((count, embedding), dtype=table.dtype, device=device)
    ids = torch.empty((count, top_k), dtype=torch.int64, device=device)
    weights = torch.empty((count, top_k), dtype=torch.float32, device=device)
    if count == 0:
        return out, ids, weights
    known = top1_id is not None and top_k == 1
    if not known:
        config = top_k_config(width, logits.dtype, chip_of(device))
        candidates = config.chunks * top_k
        keys = torch.empty((count, candidates), dtype=torch.int64, device=device)
        _top_k_split_kernel[(count, config.chunks)](
            logits_ptr=logits,
            rows_ptr=keys if rows is None else rows,
            banned_ptr=banned_bits(banned_ids, width, device) if banned_ids else keys,
            keys_ptr=keys,
            width=width,
            chunks=config.chunks,
            top_k=top_k,
            logits_stride=logits.stride(0),
            HAS_ROWS=rows is not None,
            HAS_BANNED=bool(banned_ids),
            BLOCK_V=config.block_v,
            num_warps=config.num_warps,
            enable_fp_fusion=False,
        )
        _top_k_merge_kernel[(count,)](
            keys_ptr=keys,
            ids_ptr=ids,
            weights_ptr=weights,
            candidates=candidates,
            top_k=top_k,
            scale=LOG2_E / temperature if top_k > 1 else 1.0,
            BLOCK_K=next_power_of_two(top_k),
            BLOCK_C=next_power_of_two(candidates),
            num_warps=8,
            enable_fp_fusion=False,
        )
    block_k, block_d = gather_blocks(top_k, embedding)
    _top_k_gather_kernel[(count, ceil_div(embedding, block_d))](
        table_ptr=table,
        rows_ptr=ids if rows is None else rows,
        top1_ptr=top1_id if known else ids,
        ids_ptr=ids,
        weights_ptr=weights,
        out_ptr=out,
        top_k=top_k,
        embedding=embedding,
        table_stride=table.stride(0),
        HAS_ROWS=rows is not None,
        HAS_TOP1=known,
        BLOCK_K=block_k,
        BLOCK_D=block_d,
        num_warps=4,
        enable_fp_fusion=False,
    )
    return out, ids, weights
