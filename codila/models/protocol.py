"""What the decoding loop asks of a diffusion language model."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor


class DiffusionLM(Protocol):
    """A masked diffusion model: one file per family implements it, as a ``PreTrainedModel``.

    ``shift`` is 1 where the hidden state at ``p - 1`` predicts the token at ``p`` (Dream), 0 where
    the one at ``p`` does (LLaDA). Where ``lm_head`` is None, ``body`` returns logits.
    ``max_length`` bounds prompt and canvas together, in tokens.
    """

    config: Any
    lm_head: Any
    shift: int

    @property
    def mask_token_id(self) -> int: ...

    @property
    def eos_token_id(self) -> int: ...

    @property
    def eos_token_ids(self) -> tuple[int, ...]: ...

    @property
    def max_length(self) -> int: ...

    @property
    def device(self) -> torch.device: ...

    def body(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Hidden states ``[N, L, H]`` before the LM head."""
        ...
