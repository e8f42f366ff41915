"""Optimizers and the learning-rate schedule of the from-scratch recipes.

Muon on the matrices inside the layers, AdamW on everything else (embeddings, head, norms, biases).
``torch.optim.Muon`` orthogonalises one matrix at a time in bfloat16, which CPUs without bf16
arithmetic emulate at a hundredth of their speed; this one works in the gradient's dtype and
batches matrices of the same shape.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

# Quintic Newton-Schulz coefficients of Muon (Jordan et al., 2024): steepest slope at zero.
_NS_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalize(matrices: Tensor, steps: int = 5) -> Tensor:
    """Newton-Schulz approximation of ``U V^T`` for a batch of matrices ``[n, rows, cols]``.

    Singular values end up within about [0.7, 1.2], which serves as well as exactly 1.
    """
    a, b, c = _NS_COEFFICIENTS
    x = matrices
    transposed = x.shape[-2] > x.shape[-1]
    if transposed:
        x = x.mT
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp_min(1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if transposed else x


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised per matrix, with Nesterov look-ahead and decoupled weight decay.

    The update of a ``[rows, cols]`` matrix is scaled by ``sqrt(max(1, rows / cols))``, so that one
    learning rate serves all shapes.
    """

    def __init__(
        self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    by_shape[p.shape].append(p)
            for shape, params in by_shape.items():
                updates = []
                for p in params:
                    state = self.state[p]
                    if not state:
                        state["momentum"] = torch.zeros_like(p)
                    assert p.grad is not None
                    state["momentum"].lerp_(p.grad, 1 - group["momentum"])
                    updates.append(p.grad.lerp(state["momentum"], group["momentum"]))
                scale = max(1.0, shape[0] / shape[1]) ** 0.5
                for p, update in zip(params, orthogonalize(torch.stack(updates)), strict=True):
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.add_(update, alpha=-group["lr"] * scale)


def build_optimizers(
    model: nn.Module,
    *,
    optimizer: str = "muon",
    lr: float,
    adam_lr: float,
    weight_decay: float = 0.0,
) -> list[torch.optim.Optimizer]:
    """AdamW for all (``adamw``), or Muon for the 2-D weights of the layers and AdamW for the rest.

    ``lr`` is that of the named one; base rates are in ``initial_lr``.
    """
    matrices: list[Tensor] = []
    rest: list[Tensor] = []
    for name, p in model.named_parameters():
        if p.requires_grad:
            is_matrix = optimizer == "muon" and p.ndim == 2 and ".layers." in name
            (matrices if is_matrix else rest).append(p)
    optimizers: list[torch.optim.Optimizer] = []
    if matrices:
        optimizers.append(Muon(matrices, lr=lr, weight_decay=weight_decay))
    if rest and optimizer == "muon":
        optimizers.append(torch.optim.AdamW(rest, lr=adam_lr, betas=(0.9, 0.98), weight_decay=0.0))
    elif rest:
        optimizers.append(
            torch.optim.AdamW(rest, lr=lr, betas=(0.9, 0.999), weight_decay=weight_decay)
        )
    for each in optimizers:
        for group in each.param_groups:
            group["initial_lr"] = group["lr"]
    return optimizers


def learning_rate_factor(
    schedule: str, step: int, steps: int, *, warmup: int, decay_fraction: float
) -> float:
    """Linear warm-up, then ``cosine`` to zero, or ``wsd``: constant, linear to zero at the end.

    ``decay_fraction`` is the share of ``steps`` that wsd's decay takes.
    """
    if step < warmup:
        return (step + 1) / warmup
    if schedule == "cosine":
        done = (step - warmup) / max(1, steps - warmup)
        return 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
    remaining = (steps - step) / max(1.0, steps * decay_fraction)
    return min(1.0, max(remaining, 0.0))
