"""``codila_kernels::expected_embedding_top_k``, the hard token included, and its gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from codila_kernels.operators.common import DEVICES, on_device_of, unit_columns

torch.library.define(
    "codila_kernels::expected_embedding_top_k",
    "(Tensor logits, Tensor table, Tensor? rows, Tensor? top1_id, int top_k, float temperature,"
    " SymInt width, int[] banned_ids) -> (Tensor, Tensor, Tensor)",
)
torch.library.define(
    "codila_kernels::expected_embedding_top_k_backward",
    "(Tensor grad, Tensor ids, Tensor weights, Tensor logits, Tensor table, Tensor? rows,"
    " float temperature, bool needs_logits, bool needs_table) -> (Tensor, Tensor)",
)


def expected_embedding_top_k(
    logits: Tensor,
    table: Tensor,
    rows: Tensor | None,
    top1_id: Tensor | None,
    top_k: int,
    temperature: float,
    width: int,
    banned_ids: Sequence[int],
) -> Tensor:
    """Call the operator: tokens [N or R, D] of the `top_k` largest logits.

    1 is the hard token, at any temperature; it has no gradient to the logits.
    """
    if top_k == 1:
        logits, temperature = logits.detach(), 1.0
    return torch.ops.codila_kernels.expected_embedding_top_k(
        logits, table, rows, top1_id, top_k, float(temperature), width, banned_ids
    )[0]


@torch.library.impl("codila_kernels::expected_embedding_top_k", DEVICES)
def _top_k_device(
    logits: Tensor,
    table: Tensor,
    rows: Tensor | None,
    top1_id: Tensor | None,
    top_k: int,
    temperature: float,
    width: int,
    banned_ids: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    from codila_kernels.kernels.expected_embedding_top_k import top_k_triton

    with on_device_of(logits):
        return top_k_triton(
            unit_columns(logits),
            unit_columns(table),
            None if rows is None else rows.contiguous(),
            None if top1_id is None else top1_id.contiguous(),
            top_k,
            temperature,
            width,
            tuple(banned_ids),
        )


@torch.library.register_fake("codila_kernels::expected_embedding_top_k")
def _top_k_fake(
    logits: Tensor,
    table: Tensor,
    rows: Tensor | None,
    top1_id: Tensor | None,
    top_k: int,
    temperature: float,
    width: int,
    banned_ids: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor]:
    count = logits.shape[0] if rows is None else rows.shape[0]
    return (
        table.new_empty((count, table.shape[1])),
        logits.new_empty((count, top_k), dtype=torch.int64),
        logits.new_empty((count, top_k), dtype=torch.float32),
    )


@torch.library.impl("codila_kernels::expected_embedding_top_k_backward", DEVICES)
def _backward_device(
    grad: Tensor,
    ids: Tensor,
    weights: Tensor,
    logits: Tensor,
    table: Tensor,
    rows: Tensor | None,
    temperature: float,
    needs_logits: bool,
    needs_table: bool,
) -> tuple[Tensor, Tensor]:
    from codila_kernels.kernels.expected_embedding_backward import top_k_backward_triton

    with on_device_of(logits):
        return top_k_backward_triton(
            grad.contiguous(),
            ids,
            weights,
            logits,
            unit_columns(table),
            rows,
            temperature,
            (needs_logits, needs_table),
        )


@torch.library.register_fake("codila_kernels::expected_embedding_top_k_backward")
def _backward_fake(
    grad: Tensor,
    ids: Tensor,
    weights: Tensor,
    logits: Tensor,
    table: Tensor,
    rows: Tensor | None,
    temperature: float,
    needs_logits: bool,
    needs_table: bool,
) -> tuple[Tensor, Tensor]:
    return (
        logits.new_empty(logits.shape if needs_logits else (0,)),
        table.new_empty(table.shape if needs_table else (0,)),
    )


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    logits, table, rows, _, _, ctx.temperature, _, _ = inputs
    _, ids, weights = output
    ctx.mark_non_differentiable(ids, weights)
    ctx.save_for_backward(ids, weights, logits, table, rows)


def _backward(ctx: Any, grad: Tensor, *_: Tensor | None) -> tuple[Tensor | None, ...]:
    needs = ctx.needs_input_grad[:2]
    grad_logits, grad_table = torch.ops.codila_kernels.expected_embedding_top_k_backward(
        grad, *ctx.saved_tensors, ctx.temperature, *needs
    )
    return (
        grad_logits if needs[0] else None,
        grad_table if needs[1] else None,
        *(None,) * 6,
    )


torch.library.register_autograd(
    "codila_kernels::expected_embedding_top_k", _backward, setup_context=_setup_context
)
