"""The state of a generation: token ids, what is masked, the block grid, what was committed when.

The canvas is everything from the first masked column on: the masks behind the prompt, and where a
prompt has masks of its own (infilling) also what stands between and behind them. Blocks of B
positions cover the masks of a row: one starts at its first masked position, the next at the first
masked position behind that block, and so on. Behind a prompt without masks that is the grid
``[P + i * B, P + (i + 1) * B)``; a hole's last block runs over the known tokens behind it.

Every method works on all rows at once with fixed shapes; indices that mean "nothing" are -1 and are
dropped when written.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import torch
from torch import Tensor

from codila.replay import constant


class Candidates(NamedTuple):
    """The candidate blocks of every row: N rows, C blocks, B positions each.

    ``position`` ``[N, C, B]`` is counted on the canvas; ``masked`` is False for known positions and
    for blocks past the last one; ``ids`` holds the tokens as they stand.
    """

    position: Tensor
    masked: Tensor
    ids: Tensor


@dataclasses.dataclass
class Canvas:
    """``ids`` ``[N, P + n]``: P columns of left-padded prompts, then the canvas.

    ``length`` is how many of its n columns the DLM sees and the caller gets; the others hold end
    tokens and complete the last blocks. ``attention_mask`` ``[N, P + length]`` is None where
    nothing is padded; ``padding`` ``[N]`` counts the padding in front of each prompt; ``step_of``
    ``[N, n]`` holds the step at which a position was committed (-1: given, or not yet); ``starts``
    ``[N, M]`` is where each block begins (n: the row has no such block).
    """

    ids: Tensor
    attention_mask: Tensor | None
    padding: Tensor
    step_of: Tensor
    starts: Tensor
    prompt_length: int
    length: int
    block_size: int
    mask_token_id: int
    eos_token_ids: tuple[int, ...]

    @classmethod
    def start(
        cls,
        input_ids: Tensor,
        attention_mask: Tensor | None,
        *,
        length: int,
        block_size: int,
        mask_token_id: int,
        eos_token_ids: tuple[int, ...],
    ) -> Canvas:
        """A canvas of ``length`` masks behind the prompts ``[N, P]`` (padded on either side).

        Masks in a prompt are decoded in place.

        Raises:
            TypeError: ids or mask that are no tensors, ids that are not int64.
            ValueError: no prompt, a prompt without a real token, padding inside a prompt, or
                nothing to decode.
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
        ids, keep = left_padded(input_ids, attention_mask)
        rows = ids.shape[0]
        ids = torch.cat([ids, ids.new_full((rows, length), mask_token_id)], dim=1)
        keep = torch.cat([keep, keep.new_ones((rows, length))], dim=1)
        columns = (ids.eq(mask_token_id) & keep).any(0).nonzero().flatten()
        if columns.numel() == 0:
            raise ValueError(
                f"nothing to decode: max_new_tokens is 0, and no prompt holds the mask token "
                f"{mask_token_id}"
            )
        first = int(columns[0])
        if not length and not bool((ids.eq(mask_token_id) & keep).any(-1).all()):
            empty = (~(ids.eq(mask_token_id) & keep).any(-1)).nonzero().flatten().tolist()
            raise ValueError(f"nothing to decode in prompts {empty}: they hold no mask token")
        canvas = cls(
            ids=ids,
            attention_mask=None if bool(keep.all()) else keep,
            padding=(~keep).sum(-1),
            step_of=torch.full((rows, ids.shape[1] - first), -1, device=ids.device).int(),
            starts=ids.new_empty((rows, 0)),
            prompt_length=first,
            length=ids.shape[1] - first,
            block_size=block_size,
            mask_token_id=mask_token_id,
            eos_token_ids=eos_token_ids,
        )
        # padding in front of a shorter prompt may hold anything, the mask token too
        canvas.ids.masked_fill_(~keep & canvas.ids.eq(mask_token_id), eos_token_ids[0])
        canvas.lay_grid()
        return canvas

    def lay_grid(self) -> None:
        """Cover the masks of every row with blocks; complete the last ones with end tokens."""
        rows, size = self.ids.shape[0], self.block_size
        ids, step_of = self.seen_ids, self.step_of[:, : self.length]
        masked = ids[:, self.prompt_length :] == self.mask_token_id
        at = torch.arange(self.length, device=ids.device)
        if bool(masked.all()):
            starts = at[::size].expand(rows, -1)
        else:
            starts = masked.new_empty((rows, 0), dtype=torch.int64)
            left = masked
            while bool(left.any()):
                start = torch.where(left, at, self.length).amin(-1, keepdim=True)
                starts = torch.cat([starts, start], dim=1)
                left = left & (at >= start + size)
        last = torch.where(starts < self.length, starts + size, 0).flatten().tolist()
        extra = max([self.length, *last]) - self.length
        end = ids.new_full((rows, extra), self.eos_token_ids[0])
        self.ids = torch.cat([ids, end], dim=1)
        self.step_of = torch.cat([step_of, torch.full_like(end, -1, dtype=step_of.dtype)], dim=1)
        self.starts = starts.masked_fill(starts == self.length, self.length + extra)

    @property
    def seen_ids(self) -> Tensor:
        """What the DLM reads, ``[N, P + length]``."""
        return self.ids[:, : self.prompt_length + self.length]

    @property
    def tokens(self) -> Tensor:
        """The canvas part of ``ids``, a view ``[N, n]``."""
        return self.ids[:, self.prompt_length :]

    @property
    def masked(self) -> Tensor:
        """``[N, n]`` bool."""
        return self.tokens == self.mask_token_id

    @property
    def given(self) -> Tensor:
        """``[N, n]`` bool: known from the start."""
        return ~self.masked & (self.step_of < 0)

    @property
    def unfinished(self) -> Tensor:
        """``[N]`` bool: a position is masked."""
        return self.masked.any(-1)

    def is_eos(self) -> Tensor:
        """``[N, n]`` bool: an end token stands there, whoever put it."""
        return torch.isin(self.tokens, constant(self.eos_token_ids, self.tokens.device))

    def candidates(self, scope: int) -> Candidates:
        """The ``scope`` blocks from each row's frontier on; 0 is every block of the canvas.

        The frontier is the leftmost block that holds a mask.
        """
        n, blocks = self.starts.shape
        columns = self.step_of.shape[1]
        offset = torch.arange(self.block_size, device=self.ids.device)
        position = (self.starts[..., None] + offset).clamp_max(columns - 1)  # [N, M, B]
        exists = (self.starts < columns)[..., None]
        count = blocks if scope == 0 else min(scope, blocks)
        if count < blocks:
            masked = self.masked.gather(1, position.flatten(1)).view_as(position) & exists
            frontier = masked.any(-1).to(torch.uint8).argmax(-1, keepdim=True)
            block = frontier + torch.arange(count, device=self.ids.device)
            exists = exists.gather(1, block.clamp_max(blocks - 1)[..., None])
            exists = exists & (block < blocks)[..., None]
            index = block.clamp_max(blocks - 1)[..., None].expand(-1, -1, self.block_size)
            position = position.gather(1, index)
        ids = self.tokens.gather(1, position.flatten(1)).view_as(position)
        return Candidates(position, ids.eq(self.mask_token_id) & exists, ids)

    def commit(self, position: Tensor, ids: Tensor, write: Tensor, step: int) -> None:
        """Write ``ids`` at canvas ``position`` (all ``[N, S]``) where ``write`` and masked."""
        n = self.step_of.shape[1]
        allowed = write & self.masked.gather(1, position.clamp(0, n - 1))
        target = torch.where(allowed, position, n)  # a scratch column takes what is not written
        tokens = torch.cat([self.tokens, self.tokens[:, :1]], dim=1)
        self.ids[:, self.prompt_length :] = tokens.scatter(1, target, ids)[:, :n]
        steps = torch.cat([self.step_of, self.step_of[:, :1]], dim=1)
        self.step_of.copy_(steps.scatter(1, target, steps.new_full(target.shape, step))[:, :n])

    def fill_after_eos(self, step: int) -> None:
        """Fill a run of masks once everything left of its first committed EOS is known.

        A run ends at the next given token: an end in one hole says nothing of the next.
        """
        n = self.step_of.shape[1]
        at = torch.arange(n, device=self.ids.device)
        run = self.given.cumsum(-1)
        shape = (self.ids.shape[0], n + 1)

        def first(flags: Tensor) -> Tensor:
            leftmost = run.new_full(shape, n).scatter_reduce(
                1, run, torch.where(flags, at, n), "amin"
            )
            return leftmost.gather(1, run)

        ends = self.is_eos() & (self.step_of >= 0)
        fill = (first(ends) < first(self.masked)) & self.masked
        self.ids[:, self.prompt_length :].masked_fill_(fill, self.eos_token_ids[0])
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
            starts=self.starts[rows],
        )


def left_padded(input_ids: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, Tensor]:
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
