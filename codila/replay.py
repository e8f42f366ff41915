"""Functions of tensors that are recorded once and replayed: CUDA graphs.

A recording repeats the kernels that ran while it was made, on the same addresses; no Python runs.
What is recorded must therefore be a function of its tensors alone, of fixed shapes, that asks the
device for nothing and brings nothing from the host (see :func:`constant`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Recorder = Callable[[Callable[[], Any]], tuple[Any, Callable[[], None]]]
"""Runs or captures a call; gives its result and what repeats it, into that same result."""


def cuda_graph(call: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
    """Capture a call as a CUDA graph. It is not run: replay it for the first result."""
    graph = torch.cuda.CUDAGraph()
    # other threads may go on using the device meanwhile
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        result = call()
    return result, graph.replay


class Replayed:
    """A function that is recorded when it is called with the same shapes a second time.

    The first call runs as it is: kernels are compiled, libraries set up their workspaces. Only the
    last shapes are kept, as what a generation calls changes its shapes seldom and never back.

    Args:
        function: of tensors (or None in their place), and of keywords that belong to the shapes.
        recorder: :func:`cuda_graph`; None never records.
    """

    def __init__(self, function: Callable[..., Any], recorder: Recorder | None) -> None:
        self.function, self.recorder = function, recorder
        self.shapes: Any = None
        self.recording: tuple[tuple[Tensor | None, ...], Any, Callable[[], None]] | None = None

    def __call__(self, *inputs: Tensor | None, **static: Any) -> Any:
        """The function's result; a replayed one is overwritten by the next call."""
        if self.recorder is None:
            return self.function(*inputs, **static)
        shapes = ([None if x is None else (x.shape, x.dtype, x.device) for x in inputs], static)
        if shapes != self.shapes:
            self.shapes, self.recording = shapes, None
            return self.function(*inputs, **static)
        if self.recording is None:
            held = tuple(None if x is None else x.clone() for x in inputs)
            result, replay = self.recorder(lambda: self.function(*held, **static))
            self.recording = held, result, replay
        held, result, replay = self.recording
        for kept, new in zip(held, inputs, strict=True):
            if kept is not None and new is not None:
                kept.copy_(new)
        replay()
        return result


@functools.cache  # never evicted: a recording goes on reading the tensor
def constant(values: tuple[int, ...], device: torch.device) -> Tensor:
    """``values`` as int64 on a device, brought there once."""
    with torch.inference_mode(False):  # it may be met by autograd later
        return torch.tensor(values, dtype=torch.int64, device=device)
