"""What schedules are given and what they answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

if TYPE_CHECKING:
    from codila.config import GenerationConfig


class Statistics(NamedTuple):
    """Of the candidates' distributions, each ``[N, C, B]``; ``masked`` says which count.

    ``entropy`` in nats, ``confidence`` is the probability of the top (or, for
    ``confidence_source="sampled"``, of the drawn) token, ``margin`` top-1 minus top-2.
    """

    entropy: Tensor
    confidence: Tensor
    margin: Tensor
    masked: Tensor


class Choice(NamedTuple):
    """What to commit in this step; -1 and 0 mean "nothing".

    ``block`` ``[N, m]`` indexes the C candidate blocks, ``length`` ``[N, m]`` counts the masked
    positions of each to fill, from the left; ``slots`` ``[N, K]`` are flat ``C * B`` indices.
    """

    block: Tensor
    length: Tensor
    slots: Tensor


class Schedule(NamedTuple):
    """A rule, whether it hands blocks to an AR model, and which options no other kind reads."""

    choose: Callable[[Statistics, GenerationConfig], Choice]
    uses_ar: bool
    reads: frozenset[str]
