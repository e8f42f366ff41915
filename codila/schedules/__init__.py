"""Schedules: which positions to commit next. One file per rule, pure functions of tensors.

A schedule sees the statistics of the candidate positions and answers with a :class:`Choice`:
blocks (and how many of their masked positions) for the AR model, slots for the DLM's own sampler.
"""

from codila.schedules.ar_likelihood import (
    every_block,
    frontier_block,
    likely_prefix,
    most_likely,
)
from codila.schedules.base import Choice, Drafts, Schedule, Statistics
from codila.schedules.dynamic import dynamic
from codila.schedules.ranked import confidence, entropy, margin
from codila.schedules.static import static
from codila.schedules.threshold import threshold

_CONDITIONED = frozenset({"conditioning", "conditioning_temperature"})
_CERTAIN = frozenset({"skip_certain"})
_JUDGED = frozenset({"joint_threshold"})
_RANKED = frozenset({"tokens_per_step"})

SCHEDULES: dict[str, Schedule] = {
    "static": Schedule(static, True, _CONDITIONED | {"blocks_per_step", "block_gap"} | _CERTAIN),
    "dynamic": Schedule(dynamic, True, _CONDITIONED | {"entropy_threshold"} | _CERTAIN),
    "ar_likelihood": Schedule(every_block, True, _CONDITIONED | _JUDGED, most_likely),
    "ar_frontier": Schedule(
        frontier_block, True, _CONDITIONED | _JUDGED | {"confidence_threshold"}, likely_prefix
    ),
    "entropy": Schedule(entropy, False, _RANKED),
    "confidence": Schedule(confidence, False, _RANKED),
    "margin": Schedule(margin, False, _RANKED),
    "threshold": Schedule(threshold, False, frozenset({"confidence_threshold"})),
}
"""Every schedule by the name that ``GenerationConfig.schedule`` takes."""

__all__ = ["SCHEDULES", "Choice", "Drafts", "Schedule", "Statistics"]
