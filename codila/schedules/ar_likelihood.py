"""Draft first, commit what the AR model itself finds likely.

The AR model's weights are read once however many blocks it writes, so all blocks within scope are
drafted in one batch. A draft's *joint* is the product of the AR model's probabilities (untempered)
of its tokens: what the DLM's marginals cannot tell, whether the tokens fit together.

* ``ar_likelihood`` commits the draft of highest joint, and every other whose joint reaches
  ``joint_threshold`` (at 1, only those that the model is sure of).
* ``ar_frontier`` drafts the frontier's block only and commits its longest prefix whose joint
  reaches the threshold, at least one token; elsewhere every token whose DLM confidence exceeds
  ``confidence_threshold``.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from codila.schedules.base import Choice, Drafts, Statistics

if TYPE_CHECKING:
    from codila.config import GenerationConfig


def every_block(stats: Statistics, config: GenerationConfig) -> Choice:
    """All blocks within scope, in full."""
    length = stats.masked.sum(-1)
    block = torch.arange(length.shape[1], device=length.device).expand_as(length)
    return Choice(block.masked_fill(length == 0, -1), length, length.new_zeros((len(length), 0)))


def most_likely(drafts: Drafts, config: GenerationConfig) -> Tensor:
    """Lengths ``[N, m]``: whole blocks, or nothing of them."""
    count = drafts.masked.sum(-1)
    joint = drafts.log_prob.sum(-1).masked_fill(count == 0, -torch.inf)
    commit = joint >= math.log(config.joint_threshold)
    commit = commit.scatter(1, joint.argmax(-1, keepdim=True), True)
    return count * commit


def frontier_block(stats: Statistics, config: GenerationConfig) -> Choice:
    """The leftmost block that holds a mask, and confident slots of the others."""
    length = stats.masked.sum(-1)
    block = (length > 0).to(torch.uint8).argmax(-1, keepdim=True)
    at = torch.arange(length.shape[1], device=length.device)
    elsewhere = stats.masked & (at != block)[..., None]
    sure = elsewhere & (stats.confidence > config.confidence_threshold)
    slot = torch.arange(sure[0].numel(), device=length.device)
    slots = torch.where(sure.flatten(1), slot, -1)
    length = length.gather(1, block)
    return Choice(block.masked_fill(length == 0, -1), length, slots)


def likely_prefix(drafts: Drafts, config: GenerationConfig) -> Tensor:
    """Lengths ``[N, m]``: the longest prefix whose joint reaches the threshold, one at least."""
    # what is known has probability 1 and no place in the count
    reaches = drafts.log_prob.cumsum(-1) >= math.log(config.joint_threshold)
    fits = (reaches & drafts.masked).sum(-1)
    return torch.minimum(fits.clamp_min(1), drafts.masked.sum(-1))
