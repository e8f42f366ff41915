"""Schedules: which positions to commit next. One file per rule, pure functions of tensors.

A schedule sees the statistics of the candidate positions and answers with a :class:`Choice`:
blocks (and how many of their masked positions) for the AR model, slots for the DLM's own sampler.
"""

from codila.schedules.base import Choice, Schedule, Statistics
from codila.schedules.dynamic import dynamic
from codila.schedules.ranked import confidence, entropy, margin
from codila.schedules.static import static
from codila.schedules.threshold import threshold

SCHEDULES: dict[str, Schedule] = {
    "static": Schedule(static, uses_ar=True),
    "dynamic": Schedule(dynamic, uses_ar=True),
    "entropy": Schedule(entropy, uses_ar=False),
    "confidence": Schedule(confidence, uses_ar=False),
    "margin": Schedule(margin, uses_ar=False),
    "threshold": Schedule(threshold, uses_ar=False),
}
"""Every schedule by the name that ``GenerationConfig.schedule`` takes."""

__all__ = ["SCHEDULES", "Choice", "Schedule", "Statistics"]
