"""Batches of (prompt, answer) pairs, laid out as decoding lays its canvas.

Prompts are padded on the left, so that all answers of a batch begin at one column; answers are
padded on the right with end tokens, which are part of the canvas and may be masked. The order is a
pure function of the seed and the batch's index, so that a resumed run sees what the unbroken one
would have seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from codila.training.corpus import Corpus


@dataclass(frozen=True)
class Batch:
    """``ids`` ``[R, prompt_length + answer_length]``; the answers are EOS-padded.

    ``tail`` ``[R, answer_length]`` marks the EOS positions behind each answer's first EOS;
    ``attention_mask`` ``[R, L]`` (bool) is None where no prompt is padded.
    """

    ids: Tensor
    prompt_length: int
    tail: Tensor
    attention_mask: Tensor | None = None

    @property
    def answer(self) -> Tensor:
        return self.ids[:, self.prompt_length :]

    @property
    def padding(self) -> Tensor:
        """``[R]`` columns in front of each prompt that are no tokens."""
        if self.attention_mask is None:
            return torch.zeros(self.ids.shape[0], dtype=torch.int64)
        return (~self.attention_mask).sum(-1)


class Batches:
    """Index -> :class:`Batch`: epochs in random order, pairs of like lengths together.

    Args:
        corpus: encoded pairs; an answer ends with an end token.
        rows: sequences per batch.
        eos_token_id: pads the answers.
        region: longest answer region (the canvas of decoding); None: as long as answers are.
        full_region: share of the batches whose region is ``region`` whatever their answers need.
        extra: up to so many end tokens more than the answers need, drawn per batch.
        multiple: answer regions are a multiple of this.
        seed: decides the order and the regions.
        members: which pairs of the corpus; default all.

    Raises:
        ValueError: fewer pairs than a batch has rows, or an answer longer than the region.
    """

    together = 64  # batches that are sorted by length among themselves

    def __init__(
        self,
        corpus: Corpus,
        rows: int,
        eos_token_id: int,
        *,
        region: int | None = 64,
        full_region: float = 0.0,
        extra: int = 0,
        multiple: int = 8,
        seed: int = 0,
        members: np.ndarray | None = None,
    ) -> None:
        self.members = np.arange(len(corpus.prompts)) if members is None else members
        self.per_epoch = len(self.members) // rows
        if self.per_epoch == 0:
            raise ValueError(f"a corpus of {len(self.members)} pairs gives no batch of {rows}")
        self.corpus, self.rows, self.eos = corpus, rows, eos_token_id
        self.region, self.full_region, self.extra = region, full_region, extra
        self.multiple, self.seed = multiple, seed
        self._prompt = np.diff(corpus.prompts.offsets)
        self._answer = np.diff(corpus.bodies.offsets)
        longest = int(self._answer[self.members].max())
        if region is not None and longest > region:
            raise ValueError(f"an answer of {longest} tokens does not fit a region of {region}")
        self._epoch, self._order = -1, np.empty((0, rows), np.int64)

    def __call__(self, index: int) -> Batch:
        epoch, index_in_epoch = divmod(index, self.per_epoch)
        if epoch != self._epoch:
            self._order, self._epoch = self._epoch_order(epoch), epoch
        members = self._order[index_in_epoch]
        prompt_length, length = int(self._prompt[members].max()), self._length(members, index)
        ids = np.full((self.rows, prompt_length + length), self.eos, np.int64)
        tail = np.zeros((self.rows, length), bool)
        keep = np.ones(ids.shape, bool)
        for row, i in enumerate(members.tolist()):
            prompt, body = self.corpus.prompts[i], self.corpus.bodies[i]
            keep[row, : prompt_length - len(prompt)] = False
            ids[row, prompt_length - len(prompt) : prompt_length] = prompt
            ids[row, prompt_length : prompt_length + len(body)] = body
            tail[row, len(body) :] = True
        mask = None if keep.all() else torch.from_numpy(keep)
        return Batch(torch.from_numpy(ids), prompt_length, torch.from_numpy(tail), mask)

    def _length(self, members: np.ndarray, index: int) -> int:
        rng = np.random.default_rng([self.seed, index])
        full = rng.random() < self.full_region
        needed = int(self._answer[members].max()) + int(rng.integers(self.extra + 1))
        needed = -(-needed // self.multiple) * self.multiple
        if self.region is None:
            return needed
        return self.region if full else min(needed, self.region)

    def _epoch_order(self, epoch: int) -> np.ndarray:
        """Members ``[per_epoch, rows]``: like lengths together, batches in random order."""
        rng = np.random.default_rng([self.seed, epoch, 1])
        order = rng.permutation(self.members)[: self.per_epoch * self.rows]
        chunk = self.together * self.rows
        parts = []
        for start in range(0, len(order), chunk):
            part = order[start : start + chunk]
            parts.append(
                part[np.lexsort((self._answer[part] // self.multiple, self._prompt[part]))]
            )
        batches = np.concatenate(parts).reshape(self.per_epoch, self.rows)
        return batches[rng.permutation(self.per_epoch)]
