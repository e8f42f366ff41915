"""Running entropy means of C candidate blocks of B positions, and which of them to decode.

    h_i(k) = (1/k) sum_{j<=k} H[R_i(j)],   R_i: masked positions of block i, ascending

One program owns one batch row, grid (N): it holds the row's tile [BLOCK_C, BLOCK_B], sums along the
blocks in float64 (exact for entropies, so that the shape of the scan cannot show), stores the means
and then takes the best block, m times over. The result stays on the device: whoever conditions on
the choice reads it there. Bytes: 5 C B read, 4 C B and 8 m + 4 written per row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from codila_kernels.configs import BlockEntropyConfig, block_entropy_config

NO_INDEX = tl.constexpr(2**31 - 1)  # larger than any index, so that a minimum ignores it
LARGEST = tl.constexpr(3.4028234663852886e38)  # of float32: stands in for +inf where +inf is absent


@triton.jit
def _block_entropy_kernel(
    entropy_ptr,
    masked_ptr,
    prefix_mean_ptr,
    block_ptr,
    length_ptr,
    fallback_ptr,
    candidates,
    block_size,
    blocks,
    entropy_stride_n,
    entropy_stride_c,
    entropy_stride_b,
    masked_stride_n,
    masked_stride_c,
    masked_stride_b,
    threshold,
    DYNAMIC: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, BLOCK_C)  # [BLOCK_C]
    b = tl.arange(0, BLOCK_B)  # [BLOCK_B]
    here = (c < candidates)[:, None] & (b < block_size)[None, :]  # [BLOCK_C, BLOCK_B]
    c_wide, b_wide = c[:, None].to(tl.int64), b[None, :].to(tl.int64)
    masked = tl.load(
        masked_ptr + n * masked_stride_n + c_wide * masked_stride_c + b_wide * masked_stride_b,
        mask=here,
        other=0,
    )
    masked = (masked != 0) & here
    h = tl.load(
        entropy_ptr + n * entropy_stride_n + c_wide * entropy_stride_c + b_wide * entropy_stride_b,
        mask=masked,
        other=0.0,
    ).to(tl.float32)
    h = tl.where(h == h, h, float("inf"))  # NaN: decoded last, but decoded

    k = tl.cumsum(masked.to(tl.int32), axis=1)  # the rank of each masked position, from 1
    running = tl.cumsum(h.to(tl.float64), axis=1)
    mean = (running / tl.maximum(k, 1).to(tl.float64)).to(tl.float32)
    count = tl.max(k, axis=1)  # [BLOCK_C]
    # ranks are distinct, and the tail takes the places that no rank takes: no address twice
    row = prefix_mean_ptr + (n * candidates + c_wide) * block_size
    tl.store(row + (k - 1), mean, mask=masked)
    tl.store(row + b_wide, float("inf"), mask=here & (b[None, :] >= count[:, None]))

    if DYNAMIC:
        length = tl.max(tl.where(masked & (mean <= threshold), k, 0), axis=1)
    else:
        length = count
    at_length = masked & (k == length[:, None])
    key = tl.min(tl.where(at_length, mean, float("inf")), axis=1)
    key = tl.minimum(key, LARGEST)

    open_blocks = length > 0
    if DYNAMIC:
        falls_back = tl.max(length, axis=0) <= 1
        cost = tl.where(masked, tl.minimum(h, LARGEST), float("inf"))
        least = tl.min(tl.min(cost, axis=1), axis=0)
        slot = c[:, None] * block_size + b[None, :]
        slot = tl.where(masked & (cost == least), slot, NO_INDEX)
        slot = tl.min(tl.min(slot, axis=1), axis=0)
        tl.store(fallback_ptr + n, tl.where(falls_back & (slot != NO_INDEX), slot, -1))
        open_blocks = open_blocks & (falls_back == 0)
    else:
        tl.store(fallback_ptr + n, -1)

    for rank in range(blocks):
        best = open_blocks
        if DYNAMIC:
            longest = tl.max(tl.where(best, length, 0), axis=0)
            best = best & (length == longest)
        least = tl.min(tl.where(best, key, float("inf")), axis=0)
        chosen = tl.min(tl.where(best & (key == least), c, NO_INDEX), axis=0)
        taken = c == chosen
        tl.store(block_ptr + n * blocks + rank, tl.where(chosen == NO_INDEX, -1, chosen))
        tl.store(length_ptr + n * blocks + rank, tl.sum(tl.where(taken, length, 0), axis=0))
        open_blocks = open_blocks & (c != chosen)


def block_entropy_triton(
    entropy: Tensor,
    masked: Tensor,
    dynamic: bool,
    blocks: int,
    threshold: float,
    config: BlockEntropyConfig | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Launch the kernel on entropy and masked [N, C, B], any strides."""
    n, c, b = entropy.shape
    config = config or block_entropy_config(c, b)
    device = entropy.device
    prefix_mean = torch.empty((n, c, b), dtype=torch.float32, device=device)
    block = torch.empty((n, blocks), dtype=torch.int32, device=device)
    length = torch.empty((n, blocks), dtype=torch.int32, device=device)
    fallback_slot = torch.empty((n,), dtype=torch.int32, device=device)
    if n > 0:
        _block_entropy_kernel[(n,)](
            entropy_ptr=entropy,
            masked_ptr=masked,
            prefix_mean_ptr=prefix_mean,
            block_ptr=block,
            length_ptr=length,
            fallback_ptr=fallback_slot,
            candidates=c,
            block_size=b,
            blocks=blocks,
            entropy_stride_n=entropy.stride(0),
            entropy_stride_c=entropy.stride(1),
            entropy_stride_b=entropy.stride(2),
            masked_stride_n=masked.stride(0),
            masked_stride_c=masked.stride(1),
            masked_stride_b=masked.stride(2),
            threshold=threshold,
            DYNAMIC=dynamic,
            BLOCK_C=config.block_c,
            BLOCK_B=config.block_b,
            num_warps=config.num_warps,
            enable_fp_fusion=False,
        )
    return prefix_mean, block, length, fallback_slot
