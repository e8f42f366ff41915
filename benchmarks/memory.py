"""How much memory a call needs at its peak beyond what was there before it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # a line on stderr per start and stop otherwise


def peak_bytes(call: Callable[[], Any], device: torch.device) -> tuple[int, Any]:
    """Peak of the bytes that a call allocates through torch, its result included; the result.

    On a GPU the allocator's own peak; on a CPU the running sum of the profiler's memory events.
    What a kernel library allocates for itself is seen by neither.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        out = call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before, out
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        out = call()
    events = profiler.profiler.kineto_results.events()
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    held = peak = 0
    for _, change in sorted(changes, key=lambda event: event[0]):
        held += change
        peak = max(peak, held)
    return peak, out


def tensor_bytes(value: Any) -> int:
    """Bytes of the tensors in a result of any nesting."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    return sum(map(tensor_bytes, value)) if isinstance(value, tuple | list) else 0


def peak_extra_bytes(call: Callable[[], Any], device: torch.device) -> int:
    """Peak memory of a call beyond its inputs and its result."""
    peak, out = peak_bytes(call, device)
    return max(0, peak - tensor_bytes(out))
