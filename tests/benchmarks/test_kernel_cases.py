"""The registry of kernel cases at tiny sizes: the right answer passes its gate, a wrong one not."""

from __future__ import annotations

import pytest
import torch

from benchmarks.kernel_cases import Case, Models, cases

TINY = Models(vocab=70, hidden=16, table_rows=64, width=8)
CASES = list(cases(rows=(2, 8), models=TINY, gemma=None))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op} {case.label}")
def test_every_provider_passes_the_gate_and_nonsense_does_not(case: Case) -> None:
    inputs = case.inputs(torch.device("cpu"))
    for name, provider in case.providers.items():
        out = provider(*inputs)
        assert case.fault(inputs, out) is None, name
        assert case.fault(inputs, spoiled(out)) is not None, name
    assert case.bytes_ > 0 and {"eager", "ours"} <= set(case.providers)


def spoiled(out):
    """Every float a little larger, in tensors of any nesting."""
    if isinstance(out, torch.Tensor):
        return out * 1.5 + 0.5 if out.is_floating_point() else out
    return tuple(spoiled(part) for part in out)
