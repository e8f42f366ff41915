"""Batches of (prompt, answer) pairs for the tiny recipes: equal prompt lengths, no padding.

The order is a pure function of the seed and the step, so that a resumed run sees what the unbroken
one would have seen.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from codila.toy.corpus import Corpus


@dataclass(frozen=True)
class Batch:
    """``ids`` ``[rows, prompt_length + answer_length]``; the answers are EOS-padded.

    ``tail`` ``[rows, answer_length]`` marks the EOS positions behind each answer's first EOS.
    """

    ids: Tensor
    prompt_length: int
    tail: Tensor

    @property
    def answer(self) -> Tensor:
        return self.ids[:, self.prompt_length :]


class Batches:
    """Step -> :class:`Batch`, over a corpus grouped by prompt length and answer length.

    Args:
        corpus: encoded pairs.
        rows: sequences per batch.
        eos_token_id: pads the answers.
        region: longest answer region (the canvas of decoding).
        full_region: share of the batches whose region is ``region`` whatever their answers need.
        seed: decides the order and the regions.
    """

    def __init__(
        self,
        corpus: Corpus,
        rows: int,
        eos_token_id: int,
        *,
        region: int = 64,
        full_region: float = 0.5,
        seed: int = 0,
    ) -> None:
        if len(corpus.prompts) < rows:
            raise ValueError(f"a corpus of {len(corpus.prompts)} pairs gives no batch of {rows}")
        self.corpus, self.rows, self.eos = corpus, rows, eos_token_id
        self.region, self.full_region, self.seed = region, full_region, seed
        self._epoch = -1
        self._order: list[np.ndarray] = []
        prompt = np.diff(corpus.prompts.offsets)
        body = np.diff(corpus.bodies.offsets)
        self._needed = np.minimum(-(-body // 8) * 8, region)
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for i, key in enumerate(zip(prompt.tolist(), (self._needed // 16).tolist(), strict=True)):
            groups[key].append(i)
        self._groups = [np.array(members) for _, members in sorted(groups.items())]
        self.per_epoch = sum(len(g) // rows for g in self._groups)
        if self.per_epoch == 0:
            raise ValueError(f"no prompt length has {rows} pairs: give more pairs or fewer rows")

    def __call__(self, step: int) -> Batch:
        epoch, index = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._order, self._epoch = self._epoch_order(epoch), epoch
        members = self._order[index]
        rng = np.random.default_rng([self.seed, step])
        needed = int(self._needed[members].max())
        length = self.region if rng.random() < self.full_region else needed
        prompt_length = len(self.corpus.prompts[int(members[0])])
        ids = np.full((self.rows, prompt_length + length), self.eos, np.int64)
        tail = np.zeros((self.rows, length), bool)
        for row, i in enumerate(members.tolist()):
            body = self.corpus.bodies[i]
            ids[row, :prompt_length] = self.corpus.prompts[i]
            ids[row, prompt_length : prompt_length + len(body)] = body
            tail[row, len(body) :] = True
        return Batch(torch.from_numpy(ids), prompt_length, torch.from_numpy(tail))

    def _epoch_order(self, epoch: int) -> list[np.ndarray]:
        rng = np.random.default_rng([self.seed, epoch, 1])
        batches = []
        for group in self._groups:
            shuffled = rng.permutation(group)
            usable = len(group) // self.rows * self.rows
            batches += list(shuffled[:usable].reshape(-1, self.rows))
        return [batches[i] for i in rng.permutation(len(batches))]
