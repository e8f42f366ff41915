"""Static parallelism: the m candidate blocks of lowest mean entropy, each in full (paper, 3.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from codila.schedules.base import Choice, Statistics
from codila_kernels import block_entropy

if TYPE_CHECKING:
    from codila.config import GenerationConfig


def static(stats: Statistics, config: GenerationConfig) -> Choice:
    """K = m * B tokens per step, fewer where a block is partly known.

    With a ``block_gap`` the blocks of a step are taken one by one, the lowest mean first, each at
    least so many blocks from those before: what clashes is mostly what is adjacent.
    """
    if config.block_gap and config.blocks_per_step > 1:
        return _spread(stats, config)
    chosen = block_entropy(
        stats.entropy, stats.masked, mode="static", blocks=config.blocks_per_step
    )
    none = chosen.block.new_full((chosen.block.shape[0], 0), -1)
    return Choice(chosen.block.long(), chosen.length.long(), none.long())


def _spread(stats: Statistics, config: GenerationConfig) -> Choice:
    masked, blocks, lengths = stats.masked, [], []
    at = torch.arange(masked.shape[1], device=masked.device)
    for _ in range(min(config.blocks_per_step, masked.shape[1])):
        chosen = block_entropy(stats.entropy, masked, mode="static")
        block = chosen.block.long()
        blocks.append(block)
        lengths.append(chosen.length.long())
        near = (at - block).abs() <= config.block_gap
        masked = masked & ~(near & (block >= 0))[..., None]
    block = torch.cat(blocks, dim=1)
    return Choice(block, torch.cat(lengths, dim=1), block.new_zeros((len(block), 0)))
