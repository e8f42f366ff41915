"""What watches a generation from outside: streamers, and criteria that end a row early.

Both are made for decoders that write from left to right. What they are shown of a canvas is its
*known prefix*: the sequence up to the first position that is still masked.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from codila.canvas import Canvas


class KnownPrefix:
    """How many canvas positions of each row are known from the left."""

    def __init__(self, canvas: Canvas) -> None:
        self.length = _known(canvas)

    def grow(self, canvas: Canvas, row: int, line: int) -> range:
        """The lengths that row ``row`` has reached since the last call; ``line`` of the canvas."""
        before, self.length[row] = self.length[row], _known(canvas, line)[0]
        return range(before + 1, self.length[row] + 1)


def _known(canvas: Canvas, line: int | None = None) -> list[int]:
    masked = canvas.masked[:, : canvas.length]
    masked = masked if line is None else masked[line : line + 1]
    at = torch.arange(masked.shape[1], device=masked.device)
    return torch.where(masked, at, masked.shape[1]).amin(-1).tolist()


class Stopper:
    """Ends rows by transformers' stopping criteria, each asked as a left-to-right decoder would.

    A criterion is called with one row's prefix ``[1, length]``, padding left out, once for every
    length that the prefix takes on: a step that commits four tokens asks four times, so that a stop
    string cannot be jumped over. ``scores`` is None.
    """

    def __init__(self, criteria: Any, canvas: Canvas) -> None:
        self.criteria = criteria if isinstance(criteria, list) else [criteria]
        self.prefix = KnownPrefix(canvas)

    def __call__(self, canvas: Canvas, rows: list[int], step: int) -> None:
        """Fill what is behind the end of a row that stops here with end tokens."""
        for line, row in enumerate(rows):
            front = canvas.ids[line, int(canvas.padding[line]) : canvas.prompt_length]
            for length in self.prefix.grow(canvas, row, line):
                ids = torch.cat([front, canvas.tokens[line, :length]])[None]
                if any(bool(torch.as_tensor(c(ids, None)).all()) for c in self.criteria):
                    _end(canvas, line, length, step)
                    self.prefix.length[row] = canvas.length
                    break


def _end(canvas: Canvas, line: int, length: int, step: int) -> None:
    """What row ``line`` would have written from ``length`` on becomes end tokens."""
    behind = torch.arange(canvas.step_of.shape[1], device=canvas.ids.device) >= length
    behind = behind & ~canvas.given[line]
    canvas.ids[line, canvas.prompt_length :].masked_fill_(behind, canvas.eos_token_ids[0])
    canvas.step_of[line].masked_fill_(behind & (canvas.step_of[line] < 0), step)


class Stream:
    """Feeds one streamer, of a batch of one row.

    One with ``put_draft`` (transformers' ``TextDiffusionStreamer``) is shown the canvas after every
    step and the result at the end; any other (``TextStreamer``) the known prefix as it grows, end
    tokens once.
    """

    def __init__(self, streamer: Any, canvas: Canvas) -> None:
        if canvas.ids.shape[0] != 1:
            raise ValueError(f"a streamer follows one row, the batch has {canvas.ids.shape[0]}")
        self.streamer, self.drafts = streamer, hasattr(streamer, "put_draft")
        self.prefix, self.last = KnownPrefix(canvas), -1
        known = 0 if self.drafts else self.prefix.length[0]
        first = int(canvas.padding[0])
        self.streamer.put(canvas.ids[:, first : canvas.prompt_length + known].cpu())

    def step(self, canvas: Canvas, draft: Tensor) -> None:
        """After a step; ``draft`` ``[1, n]`` has guesses where the canvas is masked."""
        if self.drafts:
            masked = canvas.masked[0, : canvas.length].cpu()
            self.streamer.put_draft(draft[0, : canvas.length].cpu(), masked=masked)
            return
        new = self.prefix.grow(canvas, 0, 0)
        tokens = []
        for token in canvas.tokens[0, new.start - 1 : new.stop - 1].tolist():
            if not (token == self.last and token in canvas.eos_token_ids):
                tokens.append(token)
            self.last = token
        if tokens:
            self.streamer.put(torch.tensor(tokens))

    def end(self, canvas: Canvas) -> None:
        if self.drafts:
            self.streamer.put(canvas.tokens[0, : canvas.length].cpu())
        self.streamer.end()
