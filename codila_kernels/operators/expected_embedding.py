"""``codila_kernels::expected_embedding`` and its gradient, ``..._backward``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from codila_kernels.operators.common import DEVICES, on_device_of, unit_columns
from codila_kernels.reference import usable_logits

# Vocabulary columns whose probabilities the backward pass holds at a time.
_BACKWARD_CHUNK = 16384

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


def expected_embedding_backward(
    grad: Tensor,
    output: Tensor,
    logits: Tensor,
    table: Tensor,
    rows: Tensor | None,
    temperature: float,
    width: int,
    banned_ids: Sequence[int],
    needs: tuple[bool, bool],
) -> tuple[Tensor | None, Tensor | None]:
    """The gradients in plain torch, float64 included: the specification of the kernels' ones.

    With g the gradient [N, D], p the probabilities and o the output:

        dE_v  = sum_r p_rv g_r
        dz_rv = p_rv / T * (g_r . E_v - g_r . o_r)

    The probabilities are recomputed piece by piece of the vocabulary, in float32: memory is that
    of one piece, [N, 16384], beside the gradients themselves. Where `rows` repeats a row of
    logits its gradients are added up, on a GPU in no fixed order.
    """

    def piece(start: int) -> Tensor:
        stop = min(start + _BACKWARD_CHUNK, width)
        part = logits[:, start:stop] if rows is None else logits[:, start:stop][rows]
        return usable_logits(part, None, [i - start for i in banned_ids if start <= i < stop])

    starts = range(0, width, _BACKWARD_CHUNK)
    m = torch.stack([piece(start).amax(-1) for start in starts]).amax(0).unsqueeze(-1)

    def exponentials(start: int) -> Tensor:
        return ((piece(start) - m) / temperature).exp()

    total = torch.stack([exponentials(start).sum(-1) for start in starts]).sum(0).unsqueeze(-1)
    g = grad.to(total.dtype)
    along = (g * output).sum(-1, keepdim=True)
    grad_table = torch.zeros_like(table) if needs[1] else None
    grad_logits = torch.zeros_like(logits) if needs[0] else None
    for start in starts:
        p = exponentials(start) / total
        part = slice(start, start + p.shape[-1])
        if grad_table is not None:
            grad_table[part] = (p.mT @ g).to(table.dtype)
        if grad_logits is not None:
            dz = p / temperature * (g @ table[part].to(g.dtype).mT - along)
            if rows is None:
                grad_logits[:, part] = dz.to(logits.dtype)
            else:
                grad_logits[:, part].index_add_(0, rows, dz.to(logits.dtype))
    return grad_logits, grad_table
