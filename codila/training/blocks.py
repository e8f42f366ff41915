"""Masked blocks of a batch, as the AR model meets them: marginals, tokens, weights, windows.

The corruption (:mod:`codila.training.corruption`) masks units of M tokens; the AR model is trained
on blocks of B tokens, B a divisor of M. What a block is conditioned on is what decoding conditions
on: the DLM's logits at masked positions, the tokens themselves at known ones, an end token where
the sequence has no position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from codila.conditioning import window_columns
from codila.training.corruption import mask_units, nelbo_weight
from codila.training.data import Batch


@dataclass(frozen=True)
class MaskedRows:
    """A corrupted batch after the DLM's forward.

    Attributes:
        logits: ``[n, Vd]`` of the n masked positions that are read, already shifted.
        row_of: ``[R, L]`` int64, which row of ``logits`` a column has; -1 where it has none.
        ids: ``[R, L]`` the batch as it was before the corruption; seen: as the DLM read it.
        padding: ``[R]`` columns in front of each prompt that are no tokens.
        eligible: ``[R, U]`` units that are trained on, masked or not.
        masked: ``[R, U]`` units that are masked.
        first: column of the first unit.
        unit: M.
        weight: ``[R]`` the NELBO's weight of each row.
        eos_token_id: stands for what lies outside of the sequence.
    """

    logits: Tensor
    row_of: Tensor
    ids: Tensor
    seen: Tensor
    padding: Tensor
    eligible: Tensor
    masked: Tensor
    first: int
    unit: int
    weight: Tensor
    eos_token_id: int


@dataclass(frozen=True)
class MaskedBlocks:
    """n masked blocks of B tokens with windows of W positions.

    Attributes:
        ids: ``[n, B]`` the tokens to be written.
        rows: ``[n, B]`` rows of the logits.
        window_ids: ``[n, W]`` tokens beside the block; read where ``window_rows`` is -1.
        window_rows: ``[n, W]`` rows of the logits, -1 where the token is known.
        weight: ``[n]``.
        tokens: answer tokens that the batch stands for, the NELBO's denominator.
    """

    ids: Tensor
    rows: Tensor
    window_ids: Tensor
    window_rows: Tensor
    weight: Tensor
    tokens: int


@torch.no_grad()
def corrupt(
    dlm: Any,
    batch: Batch,
    unit: int,
    t: Tensor,
    generator: torch.Generator,
    *,
    weight_floor: float = 0.0,
    eos_block_share: float = 1.0,
    offset: int = 0,
    beside: bool = False,
) -> MaskedRows:
    """Mask whole units of a batch's answers and run the DLM; its head on masked positions only.

    Args:
        dlm: the frozen DLM.
        unit: M, tokens masked together.
        t: ``[R]`` masking probability of each row.
        weight_floor: see :func:`nelbo_weight`.
        eos_block_share: of the units that hold nothing but padding behind the end, how many are
            trained on: they are most of a padded canvas and teach nothing after the first few.
        offset: tokens in front of the first unit; they are masked together too, and not trained on.
        beside: also the logits of masked positions that are not trained on, for windows.

    Raises:
        ValueError: an answer region that holds no whole unit.
    """
    rows, length = batch.answer.shape
    units = (length - offset) // unit
    if units < 1:
        raise ValueError(
            f"a batch of answers of {length} tokens holds no unit of {unit} tokens behind an "
            f"offset of {offset}: choose a smaller mask_unit, or pad answers further"
        )
    masked = mask_units(rows, length, unit, t, generator, offset=offset)
    inside = slice(offset, offset + units * unit)
    tail = batch.tail[:, inside].view(rows, units, unit).all(-1)
    eligible = ~tail | (torch.rand((rows, units), generator=generator) < eos_block_share)
    chosen = masked[:, inside].view(rows, units, unit).all(-1)
    if not bool((chosen & eligible).any()):  # chance left nothing to train on
        masked[0, offset : offset + unit] = chosen[0, 0] = eligible[0, 0] = True
    seen = batch.ids.clone()
    seen[:, batch.prompt_length :][masked] = dlm.mask_token_id
    device, mask = dlm.device, batch.attention_mask
    hidden = dlm.body(seen.to(device), None if mask is None else mask.to(device))
    if not beside:
        masked = torch.zeros_like(masked)
        masked[:, inside] = (chosen & eligible).repeat_interleave(unit, dim=1)
    holes = torch.zeros_like(seen, dtype=torch.bool)
    holes[:, batch.prompt_length :] = masked
    row_of = torch.where(holes, holes.flatten().cumsum(0).view_as(holes) - 1, -1)
    predicts = holes.roll(-dlm.shift, dims=1).to(device)  # the rows whose outputs are of holes
    logits = dlm.lm_head(hidden[predicts])
    return MaskedRows(
        logits=logits,
        row_of=row_of.to(device),
        ids=batch.ids.to(device),
        seen=seen.to(device),
        padding=batch.padding.to(device),
        eligible=eligible.to(device),
        masked=chosen.to(device),
        first=batch.prompt_length + offset,
        unit=unit,
        weight=nelbo_weight(t, weight_floor).to(device),
        eos_token_id=dlm.eos_token_id,
    )


def blocks_of(rows: MaskedRows, size: int, window: tuple[int, int] = (0, 0)) -> MaskedBlocks:
    """The masked blocks of ``size`` tokens, in row-major order.

    Raises:
        ValueError: a size that does not divide the unit that was masked.
    """
    if rows.unit % size:
        raise ValueError(f"blocks of {size} tokens do not divide the mask unit of {rows.unit}")
    per_unit = rows.unit // size
    kept = (rows.masked & rows.eligible).repeat_interleave(per_unit, dim=1)
    row, block = kept.nonzero().unbind(-1)
    columns = rows.first + block[:, None] * size
    columns = columns + torch.arange(size, device=columns.device)
    beside = window_columns(columns, window)
    inside = (beside >= rows.padding[row][:, None]) & (beside < rows.ids.shape[1])
    at = (row[:, None], beside.clamp(0, rows.ids.shape[1] - 1))
    return MaskedBlocks(
        ids=rows.ids[row[:, None], columns],
        rows=rows.row_of[row[:, None], columns],
        window_ids=torch.where(inside, rows.ids[at], rows.eos_token_id),
        window_rows=torch.where(inside, rows.row_of[at], -1),
        weight=rows.weight[row],
        tokens=int(rows.eligible.sum()) * rows.unit,
    )
