"""``codila_kernels::sample_tokens``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from codila_kernels.operators.common import DEVICES, on_device_of, unit_columns

torch.library.define(
    "codila_kernels::sample_tokens",
    "(Tensor logits, Tensor seeds, Tensor counters, float temperature, float top_p, SymInt top_k,"
    " SymInt width, int[] banned_ids) -> (Tensor, Tensor)",
)


def sample_tokens(
    logits: Tensor,
    seeds: Tensor,
    counters: Tensor,
    temperature: float,
    top_p: float | None,
    top_k: int | None,
    width: int,
    banned_ids: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Call the operator: ids and probabilities of logits [R, >= width]."""
    return torch.ops.codila_kernels.sample_tokens(
        logits,
        seeds,
        counters,
        float(temperature),
        1.0 if top_p is None else float(top_p),
        top_k or 0,
        width,
        banned_ids,
    )


@torch.library.impl("codila_kernels::sample_tokens", DEVICES)
def _sample_tokens_device(
    logits: Tensor,
    seeds: Tensor,
    counters: Tensor,
    temperature: float,
    top_p: float,
    top_k: int,
    width: int,
    banned_ids: Sequence[int],
) -> tuple[Tensor, Tensor]:
    from codila_kernels.kernels.sample_tokens import sample_tokens_triton

    with on_device_of(logits):
        return sample_tokens_triton(
            unit_columns(logits),
            seeds.contiguous(),
            counters.contiguous(),
            temperature,
            top_p,
            top_k,
            width,
            tuple(banned_ids),
        )


@torch.library.register_fake("codila_kernels::sample_tokens")
def _sample_tokens_fake(
    logits: Tensor,
    seeds: Tensor,
    counters: Tensor,
    temperature: float,
    top_p: float,
    top_k: int,
    width: int,
    banned_ids: Sequence[int],
) -> tuple[Tensor, Tensor]:
    rows = (logits.shape[0],)
    return (
        logits.new_empty(rows, dtype=torch.int64),
        logits.new_empty(rows, dtype=torch.float32),
    )
