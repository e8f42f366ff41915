"""Dynamic parallelism: the longest prefix of a block whose mean entropy is within tau (paper, 3.3).

Where no prefix of two or more fits, the single candidate position of lowest entropy is left to the
DLM's sampler: a single token has no coherence to lose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from codila.schedules.base import Choice, Statistics
from codila_kernels import block_entropy

if TYPE_CHECKING:
    from codila.config import GenerationConfig


def dynamic(stats: Statistics, config: GenerationConfig) -> Choice:
    """One block per step."""
    chosen = block_entropy(
        stats.entropy, stats.masked, mode="dynamic", threshold=config.entropy_threshold
    )
    return Choice(
        chosen.block.long(), chosen.length.long(), chosen.fallback_slot.long().unsqueeze(1)
    )
