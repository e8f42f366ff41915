"""A training corpus as token ids: prompts and answers in two flat arrays."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import overload

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True)
class Ragged:
    """Sequences of different lengths: one flat int32 array of ids, and where each one starts.

    ``ids`` has shape (total,), ``offsets`` shape (n + 1,); sequence i is
    ``ids[offsets[i]:offsets[i + 1]]``. Both may be memory-mapped.
    """

    ids: npt.NDArray[np.int32]
    offsets: npt.NDArray[np.int64]

    @classmethod
    def of(cls, sequences: Iterable[list[int]]) -> Ragged:
        """Pack lists of ids."""
        sequences = list(sequences)
        lengths = np.fromiter(map(len, sequences), np.int64, len(sequences))
        offsets = np.zeros(len(sequences) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        flat = itertools.chain.from_iterable(sequences)
        return cls(np.fromiter(flat, np.int32, int(offsets[-1])), offsets)

    @classmethod
    def concatenate(cls, parts: list[Ragged]) -> Ragged:
        """One after the other."""
        starts = np.cumsum([0] + [part.ids.size for part in parts])
        offsets = [part.offsets[:-1] + start for part, start in zip(parts, starts, strict=False)]
        return cls(
            np.concatenate([np.empty(0, np.int32), *(part.ids for part in parts)]),
            np.concatenate([*offsets, starts[-1:]]).astype(np.int64),
        )

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, i: int) -> npt.NDArray[np.int32]: ...
    @overload
    def __getitem__(self, i: slice) -> list[npt.NDArray[np.int32]]: ...
    def __getitem__(self, i: int | slice) -> npt.NDArray[np.int32] | list[npt.NDArray[np.int32]]:
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

    def sha256(self) -> str:
        """A digest of all ids, in order: of the data, the tokenizer and the filters at once."""
        digest = hashlib.sha256()
        for part in (self.prompts, self.bodies):
            for array in (part.offsets, part.ids):
                for start in range(0, len(array), _PIECE):
                    digest.update(array[start : start + _PIECE].tobytes())
        return digest.hexdigest()


_PIECE = 1 << 22
