"""Confidence as Dream's published sampler measures it: after temperature, top-k and nucleus.

At temperature 0.1 most rows become one-hot and tie; ties go to the lowest position, so the
published rule is close to left to right. Sorting whole rows is what it costs; the raw statistics
need no sort.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sampled_statistics(
    logits: Tensor,
    *,
    temperature: float,
    top_p: float,
    top_k: int,
    valid_vocab: int,
    banned_ids: tuple[int, ...],
) -> tuple[Tensor, Tensor, Tensor]:
    """Entropy (nats), top-1 probability and margin of the distribution that is sampled from.

    Each ``[R]``, fp32 (fp64 for fp64 logits). Temperature 0 leaves the logits as they are, as in
    Dream. The nucleus keeps the token that crosses ``top_p``.
    """
    z = logits[:, :valid_vocab]
    z = z if z.dtype == torch.float64 else z.float()
    banned = [i for i in banned_ids if i < valid_vocab]
    if banned:
        z = z.index_fill(1, torch.tensor(banned, device=z.device), -torch.inf)
    ordered = z.sort(dim=-1, descending=True, stable=True).values
    if temperature:
        ordered = (ordered - ordered[:, :1]) / temperature
    if top_k:
        ordered[:, top_k:] = -torch.inf
    p = ordered.softmax(-1)
    if top_p < 1:
        before = p.cumsum(-1) - p
        p = torch.where(before < top_p, p, 0.0)
        p = p / p.sum(-1, keepdim=True)
    entropy = -torch.xlogy(p, p).sum(-1)
    second = p[:, 1] if p.shape[1] > 1 else torch.zeros_like(entropy)
    return entropy, p[:, 0], p[:, 0] - second
