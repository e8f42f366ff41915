"""Stand-ins for models that run their authors' own code: logits of the whole canvas, no more."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor, nn


class RemoteDream(nn.Module):
    """As Dream's own code: a 4-D boolean mask, positions, and the head over the whole canvas."""

    def __init__(self, inner) -> None:
        super().__init__()
        self.inner, self.config, self.masks = inner, inner.config, []

    def forward(self, input_ids: Tensor, attention_mask=None, position_ids=None, **other):
        assert not other
        self.masks.append(attention_mask)
        full = None
        if isinstance(attention_mask, Tensor):
            assert attention_mask.dtype == torch.bool and attention_mask.ndim == 4
            assert attention_mask.any(-1).all(), "an empty query row makes NaN"
            full = attention_mask
        hidden = self.inner.model(
            input_ids, attention_mask={"full_attention": full}, position_ids=position_ids
        ).last_hidden_state
        return SimpleNamespace(logits=self.inner.lm_head(hidden))

    def diffusion_generate(self, inputs: Tensor) -> str:
        return "their own"


class RemoteLLaDA(nn.Module):
    """As LLaDA's own code: a 2-D mask, and no positions."""

    def __init__(self, inner) -> None:
        super().__init__()
        self.inner, self.config = inner, inner.config

    def forward(self, input_ids: Tensor, attention_mask=None):
        assert attention_mask is None or attention_mask.ndim == 2
        return SimpleNamespace(logits=self.inner(input_ids, attention_mask).logits)
