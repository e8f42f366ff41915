"""The baselines: the K masked candidates that rank highest, each sampled on its own.

Dream's ``entropy``, ``maskgit_plus`` (here ``confidence``) and ``topk_margin`` (here ``margin``).
Ties go to the lowest position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from codila.schedules.base import Choice, Statistics

if TYPE_CHECKING:
    from codila.config import GenerationConfig


def highest(score: Tensor, masked: Tensor, count: int) -> Tensor:
    """Flat indices ``[N, count]`` of the highest scores ``[N, C, B]`` among masked; -1: no more."""
    flat = masked.flatten(1)
    score = torch.where(flat, score.flatten(1).nan_to_num(nan=-torch.inf), -torch.inf)
    # masked positions first, whatever their score; both sorts are stable, so ties stay in order
    order = score.argsort(dim=-1, descending=True, stable=True)
    known_last = (~flat.gather(1, order)).to(torch.uint8).argsort(dim=-1, stable=True)
    slots = order.gather(1, known_last)[:, :count]
    return slots.masked_fill(~flat.gather(1, slots), -1)


def slots_only(slots: Tensor) -> Choice:
    """A choice without blocks."""
    none = slots.new_zeros((slots.shape[0], 0))
    return Choice(none, none, slots)


def entropy(stats: Statistics, config: GenerationConfig) -> Choice:
    """Lowest entropy first."""
    return slots_only(highest(-stats.entropy, stats.masked, config.tokens_per_step))


def confidence(stats: Statistics, config: GenerationConfig) -> Choice:
    """Highest probability first."""
    return slots_only(highest(stats.confidence, stats.masked, config.tokens_per_step))


def margin(stats: Statistics, config: GenerationConfig) -> Choice:
    """Largest difference between the two highest probabilities first."""
    return slots_only(highest(stats.margin, stats.masked, config.tokens_per_step))
