"""``codila_kernels::block_entropy``."""

from __future__ import annotations

import torch
from torch import Tensor

from codila_kernels.operators.common import DEVICES, on_device_of

torch.library.define(
    "codila_kernels::block_entropy",
    "(Tensor entropy, Tensor masked, bool dynamic, SymInt blocks, float threshold)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
)


def block_entropy(
    entropy: Tensor, masked: Tensor, dynamic: bool, blocks: int, threshold: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Call the operator: prefix_mean, block, length, fallback_slot of entropy [N, C, B]."""
    return torch.ops.codila_kernels.block_entropy(
        entropy, masked, dynamic, blocks, float(threshold)
    )


@torch.library.impl("codila_kernels::block_entropy", DEVICES)
def _block_entropy_device(
    entropy: Tensor, masked: Tensor, dynamic: bool, blocks: int, threshold: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    from codila_kernels.kernels.block_entropy import block_entropy_triton

    with on_device_of(entropy):
        return block_entropy_triton(entropy, masked, dynamic, blocks, threshold)


@torch.library.register_fake("codila_kernels::block_entropy")
def _block_entropy_fake(
    entropy: Tensor, masked: Tensor, dynamic: bool, blocks: int, threshold: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    n, c, b = entropy.shape
    return (
        entropy.new_empty((n, c, b), dtype=torch.float32),
        entropy.new_empty((n, blocks), dtype=torch.int32),
        entropy.new_empty((n, blocks), dtype=torch.int32),
        entropy.new_empty((n,), dtype=torch.int32),
    )
