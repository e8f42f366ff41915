"""Choice points of the renderer: drawn at random, or walked exhaustively.

A rendering function asks a chooser for every free decision. With :class:`Chooser` the
decisions are random; :func:`enumerate_spellings` walks all of them, which is how the tests
check that every spelling of a piece means the same thing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")


class Chooser:
    """Draws every decision from a random generator."""

    def __init__(self, rng: random.Random) -> None:
        self._random = rng.random

    def spelling(self, options: Sequence[T]) -> T:
        """One of several equivalent spellings."""
        return options[int(self._random() * len(options))]

    def chance(self) -> bool:
        """True one time in three: whether to use the rarer of two forms."""
        return self.spelling((True, False, False))

    def name(self, options: Sequence[str], taken: Collection[str] = ()) -> str:
        """An identifier that is not in ``taken``."""
        choice = options[int(self._random() * len(options))]
        if choice in taken:
            free = [option for option in options if option not in taken]
            choice = free[int(self._random() * len(free))]
        return choice


class _Replay(Chooser):
    """Follows a fixed path of decisions, and takes the first option beyond its end."""

    def __init__(self, path: list[int]) -> None:
        self.path = path
        self.widths: list[int] = []

    def spelling(self, options: Sequence[T]) -> T:
        depth = len(self.widths)
        self.widths.append(len(options))
        if depth == len(self.path):
            self.path.append(0)
        return options[self.path[depth]]

    def name(self, options: Sequence[str], taken: Collection[str] = ()) -> str:
        return next(option for option in options if option not in taken)


def enumerate_spellings(render: Callable[[Chooser], str]) -> Iterator[str]:
    """Every text ``render`` can produce, with identifiers held at their first choice."""
    path: list[int] = []
    while True:
        replay = _Replay(path)
        yield render(replay)
        while path and path[-1] + 1 == replay.widths[len(path) - 1]:
            path.pop()
        if not path:
            return
        path[-1] += 1
