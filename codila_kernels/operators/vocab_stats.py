"""``codila_kernels::vocab_stats``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from codila_kernels.operators.common import DEVICES, on_device_of, unit_columns

torch.library.define(
    "codila_kernels::vocab_stats",
    "(Tensor logits, float temperature, SymInt width, int[] banned_ids)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)


def vocab_stats(
    logits: Tensor, temperature: float, width: int, banned_ids: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Call the operator: lse, entropy, top1_id, top1_prob, margin of logits [R, >= width]."""
    return torch.ops.codila_kernels.vocab_stats(logits, float(temperature), width, banned_ids)


@torch.library.impl("codila_kernels::vocab_stats", DEVICES)
def _vocab_stats_device(
    logits: Tensor, temperature: float, width: int, banned_ids: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    from codila_kernels.kernels.vocab_stats import vocab_stats_triton

    with on_device_of(logits):
        return vocab_stats_triton(unit_columns(logits), temperature, width, tuple(banned_ids))


@torch.library.register_fake("codila_kernels::vocab_stats")
def _vocab_stats_fake(
    logits: Tensor, temperature: float, width: int, banned_ids: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    def row(dtype: torch.dtype) -> Tensor:
        return logits.new_empty((logits.shape[0],), dtype=dtype)

    return (
        row(torch.float32),
        row(torch.float32),
        row(torch.int64),
        row(torch.float32),
        row(torch.float32),
    )
