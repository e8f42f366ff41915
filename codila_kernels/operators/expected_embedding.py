"""``codila_kernels::expected_embedding`` and its gradient, ``..._backward``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from codila_kernels.operators.common import DEVICES, on_device_of, unit_columns

torch.library.define(
    "codila_kernels::expected_embedding",
    "(Tensor logits, Tensor table, Tensor? rows, Tensor? top1_id, float temperature,"
    " SymInt width, int[] banned_ids) -> (Tensor, Tensor)",
)
torch.library.define(
    "codila_kernels::expected_embedding_backward",
    "(Tensor grad, Tensor output, Tensor state, Tensor logits, Tensor table, Tensor? rows,"
    " float temperature, SymInt width, int[] banned_ids, bool needs_logits, bool needs_table)"
    " -> (Tensor, Tensor)",
)


def expected_embedding(
    logits: Tensor,
    table: Tensor,
    rows: Tensor | None,
    top1_id: Tensor | None,
    temperature: float,
    width: int,
    banned_ids: Sequence[int],
) -> Tensor:
    """Call the operator: soft tokens [N or R, D]."""
    return torch.ops.codila_kernels.expected_embedding(
        logits, table, rows, top1_id, float(temperature), width, banned_ids
    )[0]


@torch.library.impl("codila_kernels::expected_embedding", DEVICES)
def _expected_embedding_device(
    logits: Tensor,
    table: Tensor,
    rows: Tensor | None,
    top1_id: Tensor | None,
    temperature: float,
    width: int,
    banned_ids: Sequence[int],
) -> tuple[Tensor, Tensor]:
    from codila_kernels.kernels.expected_embedding import expected_embedding_triton

    count = logits.shape[0] if rows is None else rows.shape[0]
    state = torch.empty((2, count), dtype=torch.float32, device=logits.device)
    with on_device_of(logits):
        soft = expected_embedding_triton(
            unit_columns(logits),
            unit_columns(table),
            None if rows is None else rows.contiguous(),
            None if top1_id is None else top1_id.contiguous(),
            temperature,
            width,
            tuple(banned_ids),
            whole=state,
        )
    return soft, state


@torch.library.register_fake("codila_kernels::expected_embedding")
def _expected_embedding_fake(
    logits: Tensor,
    table: Tensor,
    rows: Tensor | None,
    top1_id: Tensor | None,
    temperature: float,
    width: int,
    banned_ids: Sequence[int],
) -> tuple[Tensor, Tensor]:
    count = logits.shape[0] if rows is None else rows.shape[0]
    state = logits.new_empty((2, count), dtype=torch.float32)
    return table.new_empty((count, table.shape[1])), state


@torch.library.impl("codila_kernels::expected_embedding_backward", DEVICES)
def _backward_device(
    grad: Tensor,
    output: Tensor,
    state: Tensor,
    logits: Tensor,
    table: Tensor,
    rows: Tensor | None,
    temperature: float,
    width: int,
    banned_ids: Sequence[int],
    needs_logits: bool,
    needs_table: bool,
) -> tuple[Tensor, Tensor]:
    from codila_kernels.kernels.expected_embedding_backward import soft_backward_triton

    with on_device_of(logits):
        return soft_backward_triton(
            grad.contiguous(),
            output,
            state,
            unit_columns(logits),
            unit_columns(table),
            None if rows is None else rows.contiguous(),
            temperature,
            width,
            tuple(banned_ids),
            (needs_logits, needs_table),
        )


@torch.library.register_fake("codila_kernels::expected_embedding_backward")
def _backward_fake(
    grad: Tensor,
    output: Tensor,
    state: Tensor,
    logits: Tensor,
    table: Tensor,
    rows: Tensor | None,
    temperature: float,
    width: int,
    banned_ids: Sequence[int],
    needs_logits: bool,
    needs_table: bool,
) -> tuple[Tensor, Tensor]:
    return (
        logits.new_empty(logits.shape if needs_logits else (0,)),
        table.new_empty(table.shape if needs_table else (0,)),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    logits, table, rows, _, ctx.temperature, ctx.width, ctx.banned_ids = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(logits, table, rows, *output)


def _backward(ctx: Any, grad: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    logits, table, rows, output, state = ctx.saved_tensors
    needs = ctx.needs_input_grad[:2]
    grad_logits, grad_table = torch.ops.codila_kernels.expected_embedding_backward(
        grad, output, state, logits, table, rows,
        ctx.temperature, ctx.width, ctx.banned_ids, *needs,
    )  # fmt: skip
    return (
        grad_logits if needs[0] else None,
        grad_table if needs[1] else None,
        *(None,) * 5,
    )


torch.library.register_autograd(
    "codila_kernels::expected_embedding", _backward, setup_context=_setup_context
)
