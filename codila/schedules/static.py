"""Static parallelism: the m candidate blocks of lowest mean entropy, each in full (paper, 3.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from codila.schedules.base import Choice, Statistics
from codila_kernels import block_entropy

if TYPE_CHECKING:
    from codila.config import GenerationConfig


def static(stats: Statistics, config: GenerationConfig) -> Choice:
    """K = m * B tokens per step, fewer where a block is partly known."""
    chosen = block_entropy(
        stats.entropy, stats.masked, mode="static", blocks=config.blocks_per_step
    )
    none = chosen.block.new_full((chosen.block.shape[0], 0), -1)
    return Choice(chosen.block.long(), chosen.length.long(), none.long())
