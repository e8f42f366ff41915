"""The training corpus as token ids."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from codila.toy.problem import pairs
from codila.toy.tokenizer import END

_BATCH = 10_000


@dataclass(frozen=True)
class Ragged:
    """Sequences of different lengths: one flat int16 array of ids, and where each one starts.

    ``ids`` has shape (total,), ``offsets`` shape (n + 1,); sequence i is
    ``ids[offsets[i]:offsets[i + 1]]``.
    """

    ids: npt.NDArray[np.int16]
    offsets: npt.NDArray[np.int64]

    @classmethod
    def of(cls, sequences: Iterable[list[int]]) -> Ragged:
        """Pack lists of ids, all below 32768."""
        sequences = list(sequences)
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        offsets = np.zeros(len(sequences) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        flat = itertools.chain.from_iterable(sequences)
        return cls(np.fromiter(flat, np.int16, int(offsets[-1])), offsets)

    @classmethod
    def concatenate(cls, parts: list[Ragged]) -> Ragged:
        """One after the other."""
        starts = np.cumsum([0] + [part.ids.size for part in parts])
        offsets = [part.offsets[:-1] + start for part, start in zip(parts, starts, strict=False)]
        return cls(
            np.concatenate([np.empty(0, np.int16), *(part.ids for part in parts)]),
            np.concatenate([*offsets, starts[-1:]]).astype(np.int64),
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, i: int) -> npt.NDArray[np.int16]: ...
    @overload
    def __getitem__(self, i: slice) -> list[npt.NDArray[np.int16]]: ...
    def __getitem__(self, i: int | slice) -> npt.NDArray[np.int16] | list[npt.NDArray[np.int16]]:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(f"sequence {i} of {len(self)}")
        i %= len(self)
        return self.ids[self.offsets[i] : self.offsets[i + 1]]


@dataclass(frozen=True)
class Corpus:
    """Encoded prompts and bodies, row by row; a body ends with the end token.

    ``dropped`` counts the pairs that were over the limits and are not in it.
    """

    prompts: Ragged
    bodies: Ragged
    dropped: int


def encode_corpus(
    tokenizer: Tokenizer,
    n: int,
    seed: int,
    split: str = "train",
    max_prompt: int = 64,
    max_body: int = 64,
) -> Corpus:
    """Draw ``n`` pairs and encode them; those over ``max_prompt`` or ``max_body`` are dropped.

    ``tokenizer`` is a ``tokenizers.Tokenizer``, with the end token added or (straight from
    ``train_tokenizer``) without, in which case the end token is the first id behind the base.
    """
    end = tokenizer.token_to_id(END)
    end = tokenizer.get_vocab_size() if end is None else end
    prompts: list[Ragged] = []
    bodies: list[Ragged] = []
    drawn = pairs(split, n, seed)
    while batch := list(itertools.islice(drawn, _BATCH)):
        heads = tokenizer.encode_batch_fast([prompt for prompt, _ in batch])
        tails = tokenizer.encode_batch_fast([solution for _, solution in batch])
        kept = [
            (head.ids, [*tail.ids, end])
            for head, tail in zip(heads, tails, strict=True)
            if len(head) <= max_prompt and len(tail) < max_body
        ]
        prompts.append(Ragged.of(head for head, _ in kept))
        bodies.append(Ragged.of(tail for _, tail in kept))
    packed = Ragged.concatenate(prompts)
    return Corpus(packed, Ragged.concatenate(bodies), n - len(packed))
