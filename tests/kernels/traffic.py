"""Memory traffic of a launch, counted in the interpreter: bytes requested by argument name.

The interpreter's load and store are wrapped, and each access is attributed to the kernel argument
whose tensor holds the address. Unmasked lanes count, whether or not a cache would have served
them: what is counted is what the programs ask for. Where the true grid takes too long, some of its
programs run and their bytes are scaled to all of them; that is exact as far as programs are alike
(all chunks are but the last).
"""

from __future__ import annotations

import contextlib
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np

Program = tuple[int, int, int]


class Traffic:
    """Bytes by (kernel, argument); argument names are those of the kernel, less ``_ptr``."""

    def __init__(self) -> None:
        self.loaded: dict[tuple[str, str], float] = defaultdict(float)
        self.stored: dict[tuple[str, str], float] = defaultdict(float)
        self.unknown = 0
        self._kernel = ""
        self._ranges: list[tuple[str, int, int]] = []
        self._scale = 1.0

    def reads(self, argument: str) -> float:
        return sum(n for (_, name), n in self.loaded.items() if name == argument)

    def writes(self, argument: str) -> float:
        return sum(n for (_, name), n in self.stored.items() if name == argument)

    def begin(self, kernel: str, arguments: dict[str, Any], scale: float) -> None:
        """From here on accesses belong to `kernel`, and each counts `scale` times."""
        spans = {}  # a tensor that stands in for an absent one comes first; its own name is last
        for name, tensor in arguments.items():
            if hasattr(tensor, "data_ptr") and tensor.numel():
                steps = zip(tensor.shape, tensor.stride(), strict=True)
                extent = 1 + sum((size - 1) * stride for size, stride in steps)
                start = tensor.data_ptr()
                spans[start] = (name.removesuffix("_ptr"), start + extent * tensor.element_size())
        self._kernel, self._scale = kernel, scale
        self._ranges = [(name, start, stop) for start, (name, stop) in spans.items()]

    def record(self, into: dict[tuple[str, str], float], pointers: Any, mask: Any) -> None:
        addresses, lanes = np.broadcast_arrays(pointers.data, mask.data)
        used = addresses[lanes]
        size = pointers.get_element_ty().primitive_bitwidth // 8
        left = used.size
        for name, start, stop in self._ranges:
            hits = int(np.count_nonzero((used >= start) & (used < stop)))
            into[self._kernel, name] += hits * size * self._scale
            left -= hits
        self.unknown += left


@contextlib.contextmanager
def counted(
    chosen: Callable[[str, Program], bool] = lambda kernel, program: True,
) -> Iterator[Traffic]:
    """Count what kernels launched inside move, running only the programs that are `chosen`."""
    from triton.runtime import interpreter

    traffic = Traffic()
    builder = interpreter.interpreter_builder
    execute = interpreter.GridExecutor.__call__
    load, store = builder.create_masked_load, builder.create_masked_store

    def counting_load(pointers: Any, mask: Any, *rest: Any) -> Any:
        traffic.record(traffic.loaded, pointers, mask)
        return load(pointers, mask, *rest)

    def counting_store(pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        traffic.record(traffic.stored, pointers, mask)
        return store(pointers, value, mask, *rest)

    class Some:
        """The kernel's function, which returns at once for programs that are not chosen."""

        def __init__(self, fn: Any) -> None:
            self.fn, self.__globals__, self.__name__ = fn, fn.__globals__, fn.__name__
            self.__signature__ = inspect.signature(fn)

        def __call__(self, **arguments: Any) -> None:
            if chosen(self.__name__, builder.grid_idx):
                self.fn(**arguments)

    def counting_execute(executor: Any, *arguments: Any, **keywords: Any) -> Any:
        assert not arguments, "the launchers name every argument"
        fn = executor.fn
        grid = (*executor.grid, 1, 1)[:3]
        count = sum(chosen(fn.__name__, program) for program in np.ndindex(*grid))
        assert count, f"no program of {fn.__name__} was chosen from {grid}"
        traffic.begin(fn.__name__, keywords, np.prod(grid) / count)
        executor.fn = Some(fn)
        try:
            return execute(executor, **keywords)
        finally:
            executor.fn = fn

    with (
        mock.patch.object(builder, "create_masked_load", counting_load),
        mock.patch.object(builder, "create_masked_store", counting_store),
        mock.patch.object(interpreter.GridExecutor, "__call__", counting_execute),
    ):
        yield traffic
