"""Every masked candidate whose confidence exceeds a threshold, and at least the highest one.

The rule most parallel decoders use (Fast-dLLM's default at 0.9).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from codila.schedules.base import Choice, Statistics
from codila.schedules.ranked import highest, slots_only

if TYPE_CHECKING:
    from codila.config import GenerationConfig


def threshold(stats: Statistics, config: GenerationConfig) -> Choice:
    """As many tokens per step as are confident."""
    flat = stats.confidence.flatten(1)
    slots = highest(stats.confidence, stats.masked, flat.shape[1])
    sure = flat.gather(1, slots.clamp_min(0)) > config.confidence_threshold
    sure[:, :1].fill_(True)
    return slots_only(slots.masked_fill(~sure, -1))
