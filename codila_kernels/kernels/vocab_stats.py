"""Softmax statistics of each row of logits [R, V] in one read.

    lse = m/T + log l,   entropy = log l - t/l,   top1_prob = 1/l,   margin = (1 - e2)/l

with (m, l, t) as in `online_softmax` and e2 the second largest exponential.

*Split*: one program owns one row and one chunk of BLOCK_V columns, grid (R, chunks). It reads its
logits once and stores m, l, t and the second largest logit [R, 4, chunks] and the arg-max
[R, chunks]. *Combine*: one program per row merges the chunks, in a tree that depends on their
number only. Bytes: R V logits read; 20 bytes per chunk and row written and read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from codila_kernels.configs import (
    VocabStatsConfig,
    chip_of,
    combine_warps,
    next_power_of_two,
    vocab_stats_config,
)
from codila_kernels.kernels.online_softmax import (
    LOG2_E,
    banned_bits,
    finite_shift,
    is_banned,
    shifted_product,
)

NO_ID = tl.constexpr(2**31 - 1)  # larger than any id, so that a minimum of ids ignores it


@triton.jit
def chunk_state(z, cols, inv_temperature, scale):
    """(m, l, t, second, arg-max) over the first axis of logits z, whose ids are `cols`."""
    m = tl.max(z, axis=0)
    top1 = tl.min(tl.where(z == m, cols, NO_ID), axis=0)
    second = tl.max(tl.where(cols == top1, float("-inf"), z), axis=0)
    x = z - finite_shift(m)
    e = tl.exp2(x * scale)
    l = tl.sum(e, axis=0)  # noqa: E741
    t = tl.sum(shifted_product(x * inv_temperature, e), axis=0)
    return m, l, t, second, top1


@triton.jit
def _vocab_stats_split_kernel(
    logits_ptr,
    banned_ptr,
    state_ptr,
    ids_ptr,
    width,
    chunks,
    logits_stride,
    inv_temperature,
    scale,
    HAS_BANNED: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    cols = chunk * BLOCK_V + tl.arange(0, BLOCK_V)  # [BLOCK_V]
    in_range = cols < width
    z = tl.load(logits_ptr + row * logits_stride + cols, mask=in_range, other=float("-inf"))
    z = z.to(tl.float32)
    if HAS_BANNED:
        z = tl.where(is_banned(banned_ptr, cols, in_range), float("-inf"), z)

    m, l, t, second, top1 = chunk_state(z, cols, inv_temperature, scale)  # noqa: E741
    state = state_ptr + row * 4 * chunks + chunk
    tl.store(state, m)
    tl.store(state + chunks, l)
    tl.store(state + 2 * chunks, t)
    tl.store(state + 3 * chunks, second)
    tl.store(ids_ptr + row * chunks + chunk, top1)


@triton.jit
def _vocab_stats_combine_kernel(
    state_ptr,
    ids_ptr,
    lse_ptr,
    entropy_ptr,
    top1_id_ptr,
    top1_prob_ptr,
    margin_ptr,
    chunks,
    inv_temperature,
    scale,
    ARG_MAX: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK_C)  # [BLOCK_C]
    here = index < chunks
    state = state_ptr + row * 4 * chunks + index
    m = tl.load(state, mask=here, other=float("-inf"))
    l = tl.load(state + chunks, mask=here, other=0.0)  # noqa: E741
    t = tl.load(state + 2 * chunks, mask=here, other=0.0)
    second = tl.load(state + 3 * chunks, mask=here, other=float("-inf"))
    ids = tl.load(ids_ptr + row * chunks + index, mask=here, other=NO_ID)

    top = tl.max(m, axis=0)
    top1 = tl.min(tl.where(m == top, ids, NO_ID), axis=0)
    second = tl.max(tl.where(ids == top1, second, m), axis=0)
    shift = finite_shift(top)
    x = m - shift
    c = tl.exp2(x * scale)
    total = tl.sum(c * l, axis=0)
    moment = t + shifted_product(x * inv_temperature, l)
    weighted = tl.sum(shifted_product(moment, c), axis=0)

    usable = total > 0.0  # false for NaN and for a row that is all -inf
    if ARG_MAX:
        lse = top
        entropy = 0.0
        top1_prob = 1.0
        margin = 1.0
    else:
        log_total = tl.log(total)
        lse = top * inv_temperature + log_total
        entropy = tl.maximum(log_total - weighted / total, 0.0)
        top1_prob = 1.0 / total
        margin = (1.0 - tl.exp2((second - shift) * scale)) / total
    nan = float("nan")
    tl.store(lse_ptr + row, tl.where(usable, lse, nan))
    tl.store(entropy_ptr + row, tl.where(usable, entropy, nan))
    tl.store(top1_id_ptr + row, tl.where(usable, top1, -1).to(tl.int64))
    tl.store(top1_prob_ptr + row, tl.where(usable, top1_prob, nan))
    tl.store(margin_ptr + row, tl.where(usable, margin, nan))


def vocab_stats_triton(
    logits: Tensor,
    temperature: float,
    width: int,
    banned_ids: tuple[int, ...],
    config: VocabStatsConfig | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Launch both kernels on logits [R, >= width] whose last stride is 1."""
    config = config or vocab_stats_config(width, logits.dtype, chip_of(logits.device))
    rows, device, chunks = logits.shape[0], logits.device, config.chunks
    state = torch.empty((rows, 4, chunks), dtype=torch.float32, device=device)
    ids = torch.empty((rows, chunks), dtype=torch.int32, device=device)
    if rows:
        inv_temperature = inverse_temperature(temperature)
        _vocab_stats_split_kernel[(rows, chunks)](
            logits_ptr=logits,
            banned_ptr=banned_bits(banned_ids, width, device) if banned_ids else ids,
            state_ptr=state,
            ids_ptr=ids,
            width=width,
            chunks=chunks,
            logits_stride=logits.stride(0),
            inv_temperature=inv_temperature,
            scale=LOG2_E * inv_temperature,
            HAS_BANNED=bool(banned_ids),
            BLOCK_V=config.block_v,
            num_warps=config.num_warps,
            enable_fp_fusion=False,
        )
    return combine_chunks(state, ids, temperature)


def combine_chunks(
    state: Tensor, ids: Tensor, temperature: float
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Merge the states [R, 4, chunks] and arg-maxima [R, chunks] of chunks in ascending order."""
    rows, chunks = ids.shape
    lse, entropy, top1_prob, margin = (
        torch.empty(rows, dtype=torch.float32, device=ids.device) for _ in range(4)
    )
    top1_id = torch.empty(rows, dtype=torch.int64, device=ids.device)
    if rows:
        inv_temperature = inverse_temperature(temperature)
        _vocab_stats_combine_kernel[(rows,)](
            state_ptr=state,
            ids_ptr=ids,
            lse_ptr=lse,
            entropy_ptr=entropy,
            top1_id_ptr=top1_id,
            top1_prob_ptr=top1_prob,
            margin_ptr=margin,
            chunks=chunks,
            inv_temperature=inv_temperature,
            scale=LOG2_E * inv_temperature,
            ARG_MAX=temperature == 0,
            BLOCK_C=next_power_of_two(chunks),
            num_warps=combine_warps(chunks),
            enable_fp_fusion=False,
        )
    return lse, entropy, top1_id, top1_prob, margin


def inverse_temperature(temperature: float) -> float:
    """1/T; 1 where T = 0, whose arg-max no scale changes."""
    return 1.0 / temperature if temperature else 1.0
