"""What the softmax kernels share: the shifted exponent and the columns that take no part.

The state of a row over part of the vocabulary is (m, l, t), for acc alike:

    m = max z          (unscaled)
    l = sum 2^((z - m) s)                with s = log2(e) / T
    t = sum (z - m)/T * 2^((z - m) s)

and two parts merge to M = max(m1, m2) by ``c = 2^((m - M) s)``, ``l <- c l`` and
``t <- c (t + (m - M)/T l)``, summed over the parts. Two rules keep -inf out of the arithmetic:
the shift is 0 where the maximum is -inf (`finite_shift`), and a factor that is 0 drops the term it
multiplies. A NaN or +inf makes l NaN, through every merge: that is how a broken row is known.
"""

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = 1.4426950408889634


@triton.jit
def finite_shift(m):
    """The maximum to subtract; 0 where there is none, so that -inf - shift stays -inf."""
    return tl.where(m == float("-inf"), 0.0, m)


@triton.jit
def shifted_product(x, weight):
    """``x * weight`` where a weight of 0 wins over any x, -inf included."""
    return tl.where(weight == 0.0, 0.0, x * weight)


@triton.jit
def is_banned(bits_ptr, cols, in_range):
    """Whether each column's bit is set in the packed list of banned ids."""
    word = tl.load(bits_ptr + (cols >> 5), mask=in_range, other=0)
    return ((word >> (cols & 31)) & 1) != 0


@functools.cache  # never evicted: a captured CUDA graph keeps reading the tensor
def banned_bits(banned_ids: tuple[int, ...], width: int, device: torch.device) -> Tensor:
    """Banned ids below `width` as a bit per column, packed in int32 words."""
    words = [0] * -(-width // 32)
    for token in banned_ids:
        if token < width:
            words[token >> 5] |= 1 << (token & 31)
    signed = [word - (1 << 32) if word >= 1 << 31 else word for word in words]
    return torch.tensor(signed, dtype=torch.int32, device=device)
