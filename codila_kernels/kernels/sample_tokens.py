"""A token per row of logits [R, V] under temperature, top-k and nucleus, without a sort.

    w_v = floor(2^40 2^((z_v - m) s)),   s = log2(e) / T,   m = max z
    token = min {v kept : sum_{j <= v, j kept} w_j > floor(u sum_{j kept} w_j)}

Weights are integers, so every sum is exact and no order of adding, no chunk and no batch can show
in a token. What is kept is all above an *edge*, a value, and the first `room` columns equal to it.
The edge is the largest value t with enough of the row at or above t: `top_k` columns, or a weight
of ``ceil(p total)``. It is found by bisection on the bit pattern of the logit, 16 steps for
bfloat16, 19 for float16, 32 for float32, whatever the values.

*Max split*: one program owns one row and one chunk of BLOCK_V columns, grid (R, chunks). It reads
the logits once from memory and stores the chunk's maximum and those of every GROUP columns.
*Short list*: one program per row picks the LISTED groups with the largest maxima; they hold all
columns above some value, and at least the LISTED largest. *Edge*: one program per row bisects over
the short list in registers, and only where the edge lies below it over the row, read again each
step. *Sum split*: like the first; weight above the edge and number of columns on it, per chunk.
*Pick*: one program per row finds the chunk, then the column, from the row's own Philox word.

Without truncation three launches: max, sum, pick. With `top_k` five, with a nucleus six, as it
needs the total first. Bytes: the logits once from memory, then V/8 for the groups' maxima, and the
logits once (twice with a nucleus) from L2, 16 to 32 times more where the short list is too short.
"""

from __future__ import annotations

import struct

import torch
import triton
import triton.language as tl
from torch import Tensor

from codila_kernels.configs import ZERO_BITS, SampleTokensConfig, chip_of, next_power_of_two
from codila_kernels.configs import sample_tokens_config as default_config
from codila_kernels.kernels.online_softmax import LOG2_E, banned_bits, finite_shift, is_banned
from codila_kernels.kernels.vocab_stats import vocab_stats_triton

NO_ID = tl.constexpr(2**31 - 1)  # larger than any id, so that a minimum of ids ignores it
WEIGHT_SCALE = tl.constexpr(2.0**40)  # as in the reference; a power of two, so scaling is exact
PHILOX_ROUNDS = tl.constexpr(10)

# Rows of one launch. The maxima of the groups take V/8 bytes a row, so more rows go in several.
ROWS_PER_LAUNCH = 1024


@triton.jit
def usable_logits(row_ptr, banned_ptr, cols, width, HAS_BANNED: tl.constexpr):
    """Logits of the columns in float32, -inf where a column takes no part."""
    in_range = cols < width
    z = tl.load(row_ptr + cols, mask=in_range, other=float("-inf")).to(tl.float32)
    if HAS_BANNED:
        z = tl.where(is_banned(banned_ptr, cols, in_range), float("-inf"), z)
    return z


@triton.jit
def integer_weight(z, m, scale):
    """``2^((z - m) s)`` in units of 2^-40, int64."""
    return (tl.exp2((z - finite_shift(m)) * scale) * WEIGHT_SCALE).to(tl.int64)


@triton.jit
def key_of(z, ZERO_BITS: tl.constexpr):
    """An int64 that orders as the floats do, without the bits that are zero in their dtype."""
    bits = z.to(tl.int32, bitcast=True)
    magnitude = (bits & 0x7FFFFFFF) >> ZERO_BITS
    return tl.where(bits < 0, ~magnitude, magnitude).to(tl.int64)


@triton.jit
def float_of(key, ZERO_BITS: tl.constexpr):
    """The float32 of a key."""
    magnitude = tl.where(key < 0, ~key, key).to(tl.int32) << ZERO_BITS
    bits = tl.where(key < 0, magnitude | -2147483648, magnitude)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def row_maximum(maxima_ptr, row, chunks, BLOCK_C: tl.constexpr):
    """Maximum of a row from those of its chunks; +inf where the row holds NaN or +inf."""
    chunk = tl.arange(0, BLOCK_C)
    m = tl.load(maxima_ptr + row * chunks + chunk, mask=chunk < chunks, other=float("-inf"))
    return tl.max(m, axis=0)


@triton.jit
def _sample_tokens_max_split_kernel(
    logits_ptr,
    banned_ptr,
    maxima_ptr,
    group_maxima_ptr,
    width,
    groups,
    logits_stride,
    HAS_BANNED: tl.constexpr,
    TRUNCATED: tl.constexpr,
    BLOCK_V: tl.constexpr,
    GROUP: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    group = chunk * (BLOCK_V // GROUP) + tl.arange(0, BLOCK_V // GROUP)  # [BLOCK_V // GROUP]
    cols = group[:, None] * GROUP + tl.arange(0, GROUP)[None, :]  # [BLOCK_V // GROUP, GROUP]
    z = usable_logits(logits_ptr + row * logits_stride, banned_ptr, cols, width, HAS_BANNED)
    group_max = tl.max(z, axis=1)
    if TRUNCATED:
        tl.store(group_maxima_ptr + row * groups + group, group_max, mask=group < groups)
    has_nan = tl.max(tl.max((z != z).to(tl.int32), axis=1), axis=0)
    m = tl.max(group_max, axis=0)
    m = tl.where(has_nan != 0, float("inf"), m)  # a maximum of floats may lose a NaN, but no +inf
    tl.store(maxima_ptr + row * tl.num_programs(1) + chunk, m)


@triton.jit
def _sample_tokens_short_list_kernel(
    maxima_ptr,
    group_maxima_ptr,
    list_ptr,
    floor_ptr,
    chunks,
    groups,
    ZERO_BITS: tl.constexpr,
    LISTED: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_G: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    group = tl.arange(0, BLOCK_G)  # [BLOCK_G]
    # groups past the last come out -inf: if they get on the list, all others have room there too
    maximum = tl.load(
        group_maxima_ptr + row * groups + group, mask=group < groups, other=float("-inf")
    )
    # the least value that at most LISTED groups reach: none reaches more than the row's maximum
    low = key_of(tl.full([], float("-inf"), tl.float32), ZERO_BITS) - 1
    high = key_of(row_maximum(maxima_ptr, row, chunks, BLOCK_C), ZERO_BITS) + 1
    while high - low > 1:
        middle = (low + high) >> 1
        reached = maximum >= float_of(middle, ZERO_BITS)
        fits = tl.sum(reached.to(tl.int32), axis=0) <= LISTED
        low = tl.where(fits, low, middle)
        high = tl.where(fits, middle, high)
    chosen = maximum >= float_of(high, ZERO_BITS)
    place = tl.cumsum(chosen.to(tl.int32), axis=0) - 1
    tl.store(list_ptr + row * (LISTED + 1) + 1 + place, group, mask=chosen & (place < LISTED))
    tl.store(list_ptr + row * (LISTED + 1), tl.sum(chosen.to(tl.int32), axis=0))
    tl.store(floor_ptr + row, high)


@triton.jit
def _reached(z, t, m, scale, BY_WEIGHT: tl.constexpr):
    """Columns at or above t, or their weight: an int64 for each column, to be summed."""
    if BY_WEIGHT:
        return tl.where(z >= t, integer_weight(z, m, scale), 0)
    else:
        return (z >= t).to(tl.int64)


@triton.jit
def _edge_in_tile(z, low, high, wanted, m, scale, BY_WEIGHT: tl.constexpr, ZERO_BITS: tl.constexpr):
    """Largest key in [low, high) that `wanted` reach, given that they reach low and not high."""
    while high - low > 1:
        middle = (low + high) >> 1
        t = float_of(middle, ZERO_BITS)
        enough = tl.sum(_reached(z, t, m, scale, BY_WEIGHT), axis=0) >= wanted
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    return low


@triton.jit
def _edge_in_row(
    row_ptr,
    banned_ptr,
    width,
    low,
    high,
    wanted,
    m,
    scale,
    HAS_BANNED: tl.constexpr,
    BY_WEIGHT: tl.constexpr,
    ZERO_BITS: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """`_edge_in_tile` over a whole row, read again in each step."""
    while high - low > 1:
        middle = (low + high) >> 1
        t = float_of(middle, ZERO_BITS)
        total = tl.zeros([BLOCK_S], tl.int64)
        for start in range(0, width, BLOCK_S):
            cols = start + tl.arange(0, BLOCK_S)  # [BLOCK_S]
            z = usable_logits(row_ptr, banned_ptr, cols, width, HAS_BANNED)
            total += _reached(z, t, m, scale, BY_WEIGHT)
        enough = tl.sum(total, axis=0) >= wanted
        low = tl.where(enough, middle, low)
        high = tl.where(enough, high, middle)
    return low


@triton.jit
def _at_edge_in_row(
    row_ptr,
    banned_ptr,
    width,
    edge,
    m,
    scale,
    HAS_BANNED: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """Columns above the edge, their weight, and the weight of one column on it."""
    count = tl.zeros([BLOCK_S], tl.int64)
    above = tl.zeros([BLOCK_S], tl.int64)
    each = tl.zeros([BLOCK_S], tl.int64)
    for start in range(0, width, BLOCK_S):
        cols = start + tl.arange(0, BLOCK_S)  # [BLOCK_S]
        z = usable_logits(row_ptr, banned_ptr, cols, width, HAS_BANNED)
        weight = integer_weight(z, m, scale)
        count += (z > edge).to(tl.int64)
        above += tl.where(z > edge, weight, 0)
        each = tl.maximum(each, tl.where(z == edge, weight, 0))
    return tl.sum(count, axis=0), tl.sum(above, axis=0), tl.max(each, axis=0)


@triton.jit
def _edge(
    row_ptr,
    banned_ptr,
    width,
    z,
    floor,
    low,
    wanted,
    m,
    scale,
    HAS_BANNED: tl.constexpr,
    BY_WEIGHT: tl.constexpr,
    ZERO_BITS: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    """The edge at or above key `low`, and what lies above and on it (`_at_edge_in_row`).

    The tile z holds every column at or above key `floor`: it is enough where they reach `wanted`.
    """
    high = key_of(m, ZERO_BITS) + 1
    t = float_of(floor, ZERO_BITS)
    in_tile = tl.sum(_reached(z, t, m, scale, BY_WEIGHT), axis=0) >= wanted
    if in_tile:
        low = tl.maximum(low, floor)
        key = _edge_in_tile(z, low, high, wanted, m, scale, BY_WEIGHT, ZERO_BITS)
        edge = float_of(key, ZERO_BITS)
        weight = integer_weight(z, m, scale)
        count = tl.sum((z > edge).to(tl.int64), axis=0)
        above = tl.sum(tl.where(z > edge, weight, 0), axis=0)
        each = tl.max(tl.where(z == edge, weight, 0), axis=0)
    else:
        key = _edge_in_row(
            row_ptr,
            banned_ptr,
            width,
            low,
            tl.minimum(floor, high),
            wanted,
            m,
            scale,
            HAS_BANNED,
            BY_WEIGHT,
            ZERO_BITS,
            BLOCK_S,
        )
        edge = float_of(key, ZERO_BITS)
        count, above, each = _at_edge_in_row(
            row_ptr, banned_ptr, width, edge, m, scale, HAS_BANNED, BLOCK_S
        )
    return key, count, above, each


@triton.jit(do_not_specialize=["top_p_bits", "top_k"])
def _sample_tokens_edge_kernel(
    logits_ptr,
    banned_ptr,
    maxima_ptr,
    list_ptr,
    floor_ptr,
    above_ptr,
    edge_ptr,
    room_ptr,
    width,
    chunks,
    logits_stride,
    scale,
    top_k,
    top_p_bits,
    HAS_BANNED: tl.constexpr,
    HAS_TOP_K: tl.constexpr,
    HAS_TOP_P: tl.constexpr,
    ZERO_BITS: tl.constexpr,
    LISTED: tl.constexpr,
    GROUP: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_S: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * logits_stride
    m = row_maximum(maxima_ptr, row, chunks, BLOCK_C)
    floor = tl.load(floor_ptr + row)
    listed = tl.load(list_ptr + row * (LISTED + 1))
    slot = tl.arange(0, LISTED * GROUP)  # [LISTED * GROUP]
    here = slot // GROUP < listed
    group = tl.load(list_ptr + row * (LISTED + 1) + 1 + slot // GROUP, mask=here, other=0)
    cols = tl.where(here, group * GROUP + slot % GROUP, width)  # width: a column that is not there
    z = usable_logits(row_ptr, banned_ptr, cols, width, HAS_BANNED)

    lowest = key_of(tl.full([], float("-inf"), tl.float32), ZERO_BITS)
    usable = (m > float("-inf")) & (m < float("inf"))
    low = tl.where(usable, lowest, key_of(m, ZERO_BITS))  # nothing to search in an unusable row
    if HAS_TOP_K:
        wanted = tl.cast(top_k, tl.int64)
        key, count, above, each = _edge(
            row_ptr, banned_ptr, width, z, floor, low, wanted, m, scale,
            HAS_BANNED, False, ZERO_BITS, BLOCK_S,
        )  # fmt: skip
        room = wanted - count
        low = key
        total = above + room * each
    else:
        chunk = tl.arange(0, BLOCK_C)
        part = tl.load(above_ptr + row * chunks + chunk, mask=chunk < chunks, other=0)
        total = tl.sum(part, axis=0)
    if HAS_TOP_P:
        top_p = tl.cast(top_p_bits, tl.int64).to(tl.float64, bitcast=True)
        bound = total.to(tl.float64) * top_p
        wanted = bound.to(tl.int64)
        wanted += (wanted.to(tl.float64) < bound).to(tl.int64)  # ceil
        wanted = tl.minimum(wanted, total)
        key, count, above, each = _edge(
            row_ptr, banned_ptr, width, z, floor, low, wanted, m, scale,
            HAS_BANNED, True, ZERO_BITS, BLOCK_S,
        )  # fmt: skip
        # as many columns on the edge as make up what those above it fall short of
        each_or_one = tl.maximum(each, 1)
        room = (wanted - above + each_or_one - 1) // each_or_one
    tl.store(edge_ptr + row, float_of(key, ZERO_BITS))
    tl.store(room_ptr + row * 2, room)
    tl.store(room_ptr + row * 2 + 1, each)


@triton.jit
def _sample_tokens_sum_split_kernel(
    logits_ptr,
    banned_ptr,
    maxima_ptr,
    edge_ptr,
    above_ptr,
    ties_ptr,
    width,
    chunks,
    logits_stride,
    scale,
    HAS_BANNED: tl.constexpr,
    HAS_EDGE: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    cols = chunk * BLOCK_V + tl.arange(0, BLOCK_V)  # [BLOCK_V]
    z = usable_logits(logits_ptr + row * logits_stride, banned_ptr, cols, width, HAS_BANNED)
    m = row_maximum(maxima_ptr, row, chunks, BLOCK_C)
    weight = integer_weight(z, m, scale)
    if HAS_EDGE:
        edge = tl.load(edge_ptr + row)
        ties = tl.sum(((z == edge) & (cols < width)).to(tl.int32), axis=0)
        tl.store(ties_ptr + row * chunks + chunk, ties)
        weight = tl.where(z > edge, weight, 0)
    tl.store(above_ptr + row * chunks + chunk, tl.sum(weight, axis=0))


@triton.jit
def uniform(seed, position, step):
    """The reference's uniform in [0, 1), float64: first word of Philox-4x32-10 times 2^-32."""
    zero = position * 0
    word, _, _, _ = tl.philox(seed, position, step, zero, zero, PHILOX_ROUNDS)
    return word.to(tl.float64) * (2.0**-32)


@triton.jit
def _sample_tokens_pick_kernel(
    logits_ptr,
    banned_ptr,
    maxima_ptr,
    edge_ptr,
    room_ptr,
    above_ptr,
    ties_ptr,
    seeds_ptr,
    counters_ptr,
    ids_ptr,
    probs_ptr,
    width,
    chunks,
    logits_stride,
    scale,
    HAS_BANNED: tl.constexpr,
    HAS_EDGE: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    index = tl.arange(0, BLOCK_C)  # [BLOCK_C]
    here = index < chunks
    kept = tl.load(above_ptr + row * chunks + index, mask=here, other=0)
    if HAS_EDGE:
        room = tl.load(room_ptr + row * 2)
        each = tl.load(room_ptr + row * 2 + 1)
        ties = tl.load(ties_ptr + row * chunks + index, mask=here, other=0).to(tl.int64)
        ties_before = tl.cumsum(ties, axis=0) - ties
        kept += tl.maximum(tl.minimum(room - ties_before, ties), 0) * each
    total = tl.sum(kept, axis=0)
    u = uniform(
        tl.load(seeds_ptr + row),
        tl.load(counters_ptr + row * 2),
        tl.load(counters_ptr + row * 2 + 1),
    )
    target = (u * total.to(tl.float64)).to(tl.int64)
    reached = tl.cumsum(kept, axis=0)
    chunk = tl.min(tl.where(reached > target, index, chunks - 1), axis=0)
    before = tl.sum(tl.where(index < chunk, kept, 0), axis=0)

    m = row_maximum(maxima_ptr, row, chunks, BLOCK_C)
    cols = chunk * BLOCK_V + tl.arange(0, BLOCK_V)  # [BLOCK_V]
    z = usable_logits(logits_ptr + row * logits_stride, banned_ptr, cols, width, HAS_BANNED)
    weight = integer_weight(z, m, scale)
    if HAS_EDGE:
        edge = tl.load(edge_ptr + row)
        tie = (z == edge).to(tl.int32)
        room -= tl.sum(tl.where(index < chunk, ties, 0), axis=0)
        has_room = tl.cumsum(tie, axis=0).to(tl.int64) <= room
        weight = tl.where((z > edge) | ((tie != 0) & has_room), weight, 0)
    reached = before + tl.cumsum(weight, axis=0)
    token = tl.min(tl.where(reached > target, cols, NO_ID), axis=0)
    chosen = tl.sum(tl.where(cols == token, weight, 0), axis=0)
    prob = (chosen.to(tl.float64) / total.to(tl.float64)).to(tl.float32)
    usable = (m > float("-inf")) & (m < float("inf"))
    tl.store(ids_ptr + row, tl.where(usable, token, -1).to(tl.int64))
    tl.store(probs_ptr + row, tl.where(usable, prob, float("nan")))


def sample_tokens_triton(
    logits: Tensor,
    seeds: Tensor,
    counters: Tensor,
    temperature: float,
    top_p: float,
    top_k: int,
    width: int,
    banned_ids: tuple[int, ...],
    config: SampleTokensConfig | None = None,
) -> tuple[Tensor, Tensor]:
    """Launch the kernels on logits [R, >= width] whose last stride is 1."""
    if temperature == 0:
        statistics = vocab_stats_triton(logits, 0.0, width, banned_ids)
        return statistics[2], statistics[3]  # arg-max or -1, and 1 or NaN
    rows, device = logits.shape[0], logits.device
    config = config or default_config(width, logits.dtype, chip_of(device))
    has_top_k, has_top_p = 0 < top_k < width, top_p < 1.0
    truncated = has_top_k or has_top_p
    ids = torch.empty(rows, dtype=torch.int64, device=device)
    probs = torch.empty(rows, dtype=torch.float32, device=device)
    chunks, held = config.chunks, min(rows, ROWS_PER_LAUNCH)
    maxima, edge, group_maxima = (
        torch.empty((held, n), dtype=torch.float32, device=device)
        for n in (chunks, 1, config.groups if truncated else 0)
    )
    above, room, floor = (
        torch.empty((held, n), dtype=torch.int64, device=device) for n in (chunks, 2, 1)
    )
    ties, short_list = (
        torch.empty((held, n), dtype=torch.int32, device=device)
        for n in (chunks, config.listed + 1)
    )
    banned = banned_bits(banned_ids, width, device) if banned_ids else ties
    block_c = next_power_of_two(chunks)
    common = dict(banned_ptr=banned, maxima_ptr=maxima, width=width,
                  logits_stride=logits.stride(0), HAS_BANNED=bool(banned_ids),
                  enable_fp_fusion=False)  # fmt: skip
    weigh = dict(common, edge_ptr=edge, above_ptr=above, chunks=chunks,
                 scale=LOG2_E / temperature, BLOCK_C=block_c)  # fmt: skip
    sums = dict(weigh, ties_ptr=ties, BLOCK_V=config.block_v, num_warps=config.num_warps)
    pick = dict(sums, num_warps=config.pick_warps)
    zero_bits = ZERO_BITS[logits.dtype]
    for start in range(0, rows, ROWS_PER_LAUNCH):
        span = slice(start, start + ROWS_PER_LAUNCH)
        piece = logits[span]
        n = piece.shape[0]
        _sample_tokens_max_split_kernel[(n, chunks)](
            logits_ptr=piece, group_maxima_ptr=group_maxima, groups=config.groups,
            TRUNCATED=truncated, BLOCK_V=config.block_v, GROUP=config.group,
            num_warps=config.num_warps, **common,
        )  # fmt: skip
        if not has_top_k:
            _sample_tokens_sum_split_kernel[(n, chunks)](logits_ptr=piece, HAS_EDGE=False, **sums)
        if truncated:
            _sample_tokens_short_list_kernel[(n,)](
                maxima_ptr=maxima, group_maxima_ptr=group_maxima, list_ptr=short_list,
                floor_ptr=floor, chunks=chunks, groups=config.groups, ZERO_BITS=zero_bits,
                LISTED=config.listed, BLOCK_C=block_c, BLOCK_G=next_power_of_two(config.groups),
                num_warps=config.list_warps, enable_fp_fusion=False,
            )  # fmt: skip
            _sample_tokens_edge_kernel[(n,)](
                logits_ptr=piece, list_ptr=short_list, floor_ptr=floor, room_ptr=room,
                top_k=top_k, top_p_bits=struct.unpack("<q", struct.pack("<d", top_p))[0],
                HAS_TOP_K=has_top_k, HAS_TOP_P=has_top_p, ZERO_BITS=zero_bits,
                LISTED=config.listed, GROUP=config.group, BLOCK_S=config.block_s,
                **config.search_launch, **weigh,
            )  # fmt: skip
            _sample_tokens_sum_split_kernel[(n, chunks)](logits_ptr=piece, HAS_EDGE=True, **sums)
        _sample_tokens_pick_kernel[(n,)](
            logits_ptr=piece, room_ptr=room, seeds_ptr=seeds[span], counters_ptr=counters[span],
            ids_ptr=ids[span], probs_ptr=probs[span], HAS_EDGE=truncated, **pick,
        )  # fmt: skip
    return ids, probs
