"""Peak memory of calls whose allocations are known."""

from __future__ import annotations

import torch

from benchmarks.memory import peak_bytes, peak_extra_bytes, tensor_bytes

CPU = torch.device("cpu")


def scratch_then_result() -> torch.Tensor:
    scratch = torch.ones(3000)  # 12,000 bytes, gone before the second
    del scratch
    scratch = torch.ones(5000)  # 20,000 bytes, held together with the result
    return scratch[:100].clone()  # 400 bytes


def test_peak_is_that_of_what_is_held_at_once() -> None:
    peak, out = peak_bytes(scratch_then_result, CPU)
    assert peak - 20_400 in range(64)  # a scalar or two along the way
    assert tensor_bytes((out, [out])) == 800
    assert peak_extra_bytes(scratch_then_result, CPU) - 20_000 in range(64)
    assert peak_extra_bytes(lambda: torch.empty(7), CPU) == 0
