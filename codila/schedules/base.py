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


class Drafts(NamedTuple):
    """What the AR model wrote into the m chosen blocks, each ``[N, m, B]``.

    ``log_prob`` in nats, of the token under the AR model's untempered distribution; 0 where
    ``masked`` is False.
    """

    log_prob: Tensor
    masked: Tensor


class Schedule(NamedTuple):
    """A rule, whether it hands blocks to an AR model, and which options no other kind reads.

    A ``judge`` looks at what was drafted and says how many of each block's masked positions are
    committed, ``[N, m]``; without one all that was chosen is.
    """

    choose: Callable[[Statistics, GenerationConfig], Choice]
    uses_ar: bool
    reads: frozenset[str]
    judge: Callable[[Drafts, GenerationConfig], Tensor] | None = None
