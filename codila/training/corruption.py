"""The forward process: which positions of an answer are masked, and with what weight.

One definition serves training and analysis: every answer is cut into units of ``unit`` contiguous
tokens from the end of its prompt (the grid that decoding uses, see :mod:`codila.canvas`), and each
unit is masked whole with probability ``t``. ``unit = 1`` is the token-wise process that the DLM is
trained with; ``unit = B`` is the block-wise one of CoDiLA (paper, section 3).
"""

from __future__ import annotations

import torch
from torch import Tensor


def stratified_times(rows: int, low: float, high: float, generator: torch.Generator) -> Tensor:
    """One masking probability per row, ``[rows]`` fp32 in ``(low, high]``, evenly spread.

    Stratification (row i draws from the i-th of ``rows`` equal slices, in random order) keeps the
    average over a batch close to the integral over t that the NELBO asks for.
    """
    u = torch.rand(rows, generator=generator)
    slots = torch.randperm(rows, generator=generator)
    return low + (high - low) * (slots + (1 - u)) / rows


def mask_units(
    rows: int, length: int, unit: int, t: Tensor, generator: torch.Generator, *, offset: int = 0
) -> Tensor:
    """Masked positions ``[rows, length]`` (bool): whole units, at least one unit per row.

    Args:
        rows, length: the answer region; the last unit is short where ``unit`` does not divide it.
        unit: contiguous tokens masked together (M).
        t: ``[rows]`` masking probability.
        offset: tokens in front of the first whole unit, a short unit of their own.
    """
    lead = -offset % unit  # the first `offset` tokens are the end of a whole unit
    units = -(-(lead + length) // unit)
    draw = torch.rand(rows, units, generator=generator)
    masked = draw < t[:, None]
    masked |= draw == draw.amin(-1, keepdim=True)  # a row without a masked unit teaches nothing
    return masked.repeat_interleave(unit, dim=1)[:, lead : lead + length]


def nelbo_weight(t: Tensor, floor: float = 0.0) -> Tensor:
    """The NELBO's weight ``1 / t`` of a masked token's cross-entropy (paper, Eq. 2).

    ``floor`` bounds it (``1 / max(t, floor)``): variance against a small bias at small t.
    """
    return 1.0 / t.clamp_min(floor) if floor else 1.0 / t
