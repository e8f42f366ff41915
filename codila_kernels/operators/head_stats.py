"""``codila_kernels::head_stats`` and the gradient of its logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from codila_kernels.operators.common import DEVICES, on_device_of, unit_columns

torch.library.define(
    "codila_kernels::head_stats",
    "(Tensor hidden, Tensor head, Tensor? bias, float temperature, SymInt width, int[] banned_ids)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
)


def head_stats(
    hidden: Tensor,
    head: Tensor,
    bias: Tensor | None,
    temperature: float,
    width: int,
    banned_ids: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Call the operator: lse, entropy, top1_id, top1_prob, margin, and the logits [R, V]."""
    return torch.ops.codila_kernels.head_stats(
        hidden, head, bias, float(temperature), width, banned_ids
    )


@torch.library.impl("codila_kernels::head_stats", DEVICES)
def _head_stats_device(
    hidden: Tensor,
    head: Tensor,
    bias: Tensor | None,
    temperature: float,
    width: int,
    banned_ids: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    from codila_kernels.kernels.head_stats import head_stats_triton

    with on_device_of(hidden):
        return head_stats_triton(
            unit_columns(hidden),
            unit_columns(head),
            None if bias is None else bias.contiguous(),
            temperature,
            width,
            tuple(banned_ids),
        )


@torch.library.register_fake("codila_kernels::head_stats")
def _head_stats_fake(
    hidden: Tensor,
    head: Tensor,
    bias: Tensor | None,
    temperature: float,
    width: int,
    banned_ids: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    def row(dtype: torch.dtype) -> Tensor:
        return hidden.new_empty((hidden.shape[0],), dtype=dtype)

    return (
        row(torch.float32),
        row(torch.float32),
        row(torch.int64),
        row(torch.float32),
        row(torch.float32),
        hidden.new_empty((hidden.shape[0], head.shape[0])),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    hidden, head, *_ = inputs
    ctx.save_for_backward(hidden, head)
    ctx.mark_non_differentiable(*output[:-1])  # the statistics, as in the reference


def _backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
    """With g the gradient of the logits: ``g W``, ``g^T x`` and the sum of g over the rows."""
    hidden, head = ctx.saved_tensors
    g = grads[-1]
    needs_hidden, needs_head, needs_bias, *_ = ctx.needs_input_grad
    return (
        g @ head if needs_hidden else None,
        g.mT @ hidden if needs_head else None,
        g.sum(0) if needs_bias else None,
        None,
        None,
        None,
    )


torch.library.register_autograd(
    "codila_kernels::head_stats", _backward, setup_context=_setup_context
)
