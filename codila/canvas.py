"""The state of a generation: token ids, what is masked, the block grid, what was committed when.

Block i of a row covers canvas positions ``[i * B, (i + 1) * B)``; the canvas starts at the end of
the prompt. Every method works on all rows at once with fixed shapes; indices that mean "nothing"
are -1 and are dropped when written.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor


class Candidates(NamedTuple):
    """The candidate blocks of every row: N rows, C blocks, B positions each.

    ``position`` ``[N, C, B]`` is counted on the canvas; ``masked`` is False for known positions and
    for blocks past the end; ``wanted`` is ``masked`` without the positions that only pad the grid;
    ``ids`` holds the tokens as they stand.
    """

    position: Tensor
    masked: Tensor
    wanted: Tensor
    ids: Tensor


@dataclasses.dataclass
class Canvas:
    """``ids`` ``[N, P + n]``: left-padded prompts, then the canvas of n = blocks * B positions.

    ``length`` is what the caller asked for (<= n); ``attention_mask`` is None where nothing is
    padded; ``padding`` ``[N]`` counts the padding in front of each prompt; ``step_of``
    ``[N, n]`` holds the step at which a position was committed (-1: not yet).
    """

    ids: Tensor
    attention_mask: Tensor | None
    padding: Tensor
    step_of: Tensor
    prompt_length: int
    length: int
    block_size: int
    mask_token_id: int
    eos_token_id: int

    @classmethod
    def start(
        cls,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        *,
        length: int,
        block_size: int,
        mask_token_id: int,
        eos_token_id: int,
    ) -> Canvas:
        """A canvas of masks behind the prompts ``[N, P]`` (padded on either side).

        Raises:
            TypeError: ids or mask that are no tensors, ids that are not int64.
            ValueError: no prompt, a prompt without a real token, padding inside a prompt, or a
                mask token in a prompt.
        """
        for name, value in (("input_ids", input_ids), ("attention_mask", attention_mask)):
            if not isinstance(value, Tensor) and (name == "input_ids" or value is not None):
                raise TypeError(f"{name} is a {type(value).__name__}, expected a tensor")
        if input_ids.dtype != torch.int64:
            raise TypeError(f"input_ids are {input_ids.dtype}, expected torch.int64")
        if input_ids.ndim != 2 or input_ids.shape[0] == 0 or input_ids.shape[1] == 0:
            raise ValueError(
                f"input_ids are {list(input_ids.shape)}, expected [rows, prompt length] with at "
                "least one token: an empty prompt gives the model nothing to continue"
            )
        if attention_mask is not None and attention_mask.shape != input_ids.shape:
            raise ValueError(
                f"attention_mask is {list(attention_mask.shape)}, input_ids are "
                f"{list(input_ids.shape)}: they must agree"
            )
        ids, keep = _left_padded(input_ids, attention_mask)
        if bool((ids.eq(mask_token_id) & keep).any()):
            raise ValueError(
                f"a prompt contains the mask token {mask_token_id}; only the canvas behind the "
                "prompt is decoded"
            )
        rows, blocks = ids.shape[0], -(-length // block_size)
        blank = ids.new_full((rows, blocks * block_size), mask_token_id)
        mask = None
        if not bool(keep.all()):
            mask = torch.cat([keep, torch.ones_like(blank, dtype=torch.bool)], dim=1)
        return cls(
            ids=torch.cat([ids, blank], dim=1),
            attention_mask=mask,
            padding=(~keep).sum(-1),
            step_of=torch.full(blank.shape, -1, dtype=torch.int32, device=ids.device),
            prompt_length=ids.shape[1],
            length=length,
            block_size=block_size,
            mask_token_id=mask_token_id,
            eos_token_id=eos_token_id,
        )

    @property
    def tokens(self) -> Tensor:
        """The canvas part of ``ids``, a view ``[N, n]``."""
        return self.ids[:, self.prompt_length :]

    @property
    def masked(self) -> Tensor:
        """``[N, n]`` bool."""
        return self.tokens == self.mask_token_id

    @property
    def unfinished(self) -> Tensor:
        """``[N]`` bool: a position that the caller asked for is masked."""
        return self.masked[:, : self.length].any(-1)

    def candidates(self, scope: int) -> Candidates:
        """The ``scope`` blocks from each row's frontier on; 0 is every block of the canvas.

        The frontier is the leftmost block that holds a mask.
        """
        n, b = self.ids.shape[0], self.block_size
        blocks = self.step_of.shape[1] // b
        count = blocks if scope == 0 else min(scope, blocks)
        masked = self.masked.view(n, blocks, b)
        frontier = masked.any(-1).to(torch.uint8).argmax(-1, keepdim=True)
        if scope == 0:
            frontier = torch.zeros_like(frontier)
        block = frontier + torch.arange(count, device=self.ids.device)
        inside = block < blocks
        block = block.clamp_max(blocks - 1)[..., None]
        position = block * b + torch.arange(b, device=self.ids.device)
        flat = position.flatten(1)
        ids = self.tokens.gather(1, flat).view_as(position)
        masked = ids.eq(self.mask_token_id) & inside[..., None]
        return Candidates(position, masked, masked & (position < self.length), ids)

    def commit(self, position: Tensor, ids: Tensor, write: Tensor, step: int) -> None:
        """Write ``ids`` at canvas ``position`` (all ``[N, S]``) where ``write`` and masked."""
        n = self.step_of.shape[1]
        allowed = write & self.masked.gather(1, position.clamp(0, n - 1))
        target = torch.where(allowed, position, n)  # a scratch column takes what is not written
        tokens = torch.cat([self.tokens, self.tokens[:, :1]], dim=1)
        self.ids[:, self.prompt_length :] = tokens.scatter(1, target, ids)[:, :n]
        steps = torch.cat([self.step_of, self.step_of[:, :1]], dim=1)
        self.step_of = steps.scatter(1, target, steps.new_full(target.shape, step))[:, :n]

    def fill_after_eos(self, step: int) -> None:
        """Fill a row with EOS once everything left of its first committed EOS is known."""
        n = self.step_of.shape[1]
        at = torch.arange(n, device=self.ids.device)
        first_mask = torch.where(self.masked, at, n).amin(-1)
        first_eos = torch.where(self.tokens == self.eos_token_id, at, n).amin(-1)
        fill = (first_eos < first_mask)[:, None] & self.masked
        self.ids[:, self.prompt_length :].masked_fill_(fill, self.eos_token_id)
        self.step_of.masked_fill_(fill, step)

    def select(self, rows: Tensor) -> Canvas:
        """The canvas of some rows (int64 indices), copied."""
        mask = self.attention_mask
        return dataclasses.replace(
            self,
            ids=self.ids[rows],
            attention_mask=None if mask is None else mask[rows],
            padding=self.padding[rows],
            step_of=self.step_of[rows],
        )


def _left_padded(input_ids: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Ids with all padding moved to the left, and which of them are real (bool)."""
    if attention_mask is None:
        return input_ids, torch.ones_like(input_ids, dtype=torch.bool)
    keep = attention_mask.to(torch.bool)
    count = keep.sum(-1)
    if bool((count == 0).any()):
        row = int((count == 0).nonzero()[0])
        raise ValueError(f"prompt {row} is empty: its attention_mask has no 1")
    width = keep.shape[1]
    starts = keep.to(torch.uint8).argmax(-1)
    if bool((width - keep.flip(-1).to(torch.uint8).argmax(-1) - starts != count).any()):
        raise ValueError("attention_mask has zeros inside a prompt: pad on the left or the right")
    shift = width - count - starts  # 0 where padding is on the left already
    source = (torch.arange(width, device=keep.device) - shift[:, None]) % width
    return input_ids.gather(1, source), keep.gather(1, source)
