"""Dream-architecture diffusion language models, built on transformers' Qwen2 modules.

A Dream checkpoint carries Qwen2's tensor names and Dream's config keys; it differs from Qwen2 in
three ways only: attention is bidirectional, a mask token stands for an unknown token, and the
hidden state at position ``p - 1`` predicts the token at ``p`` (``shift = 1``). The shift is applied
where logits are read (:mod:`codila.generation`), never here: ``DreamModel(ids).logits`` are raw.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel, Qwen2Config
from transformers.modeling_outputs import MaskedLMOutput
from transformers.models.qwen2.modeling_qwen2 import Qwen2DecoderLayer, Qwen2Model


class DreamConfig(Qwen2Config):
    """Qwen2's configuration and the id of the mask token. Keys as in Dream's ``config.json``."""

    model_type = "Dream"

    mask_token_id: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The config with rotary settings under Dream's own keys (``rope_theta``)."""
        out = super().to_dict()
        rope = out.pop("rope_parameters", None) or {}
        if rope.get("rope_type", "default") != "default":
            out["rope_scaling"] = {k: v for k, v in rope.items() if k != "rope_theta"}
        else:
            out["rope_scaling"] = None
        out["rope_theta"] = rope.get("rope_theta", 10_000.0)
        return out


class DreamModel(PreTrainedModel, GenerationMixin):
    """A bidirectional Qwen2 with an LM head: the frozen diffusion model of CoDiLA.

    Implements :class:`codila.models.protocol.DiffusionLM`.
    """

    config_class = DreamConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Qwen2DecoderLayer"]
    _supports_sdpa = True
    _supports_attention_backend = True
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}

    shift = 1

    def __init__(self, config: DreamConfig) -> None:
        super().__init__(config)
        self.model = Qwen2Model(config)
        for layer in self.model.layers:
            assert isinstance(layer, Qwen2DecoderLayer)
            layer.self_attn.is_causal = False
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    @property
    def mask_token_id(self) -> int:
        return int(self.config.mask_token_id)

    @property
    def eos_token_id(self) -> int:
        eos = self.config.eos_token_id
        return int(eos[0] if isinstance(eos, list | tuple) else eos)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        eos = self.config.eos_token_id
        return tuple(eos) if isinstance(eos, list | tuple) else (int(eos),)

    @property
    def max_length(self) -> int:
        """Tokens of prompt and canvas together that the position encoding covers."""
        return int(self.config.max_position_embeddings)

    def body(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Hidden states after the final norm, before the LM head.

        Args:
            input_ids: ``[N, L]`` int64, masked positions hold ``mask_token_id``.
            attention_mask: ``[N, L]``, 0 at padding; None where nothing is padded.
            position_ids: ``[N, L]``; default: counted from the first real token.

        Returns:
            ``[N, L, H]`` in the model's dtype. Rows at padded positions are meaningless.
        """
        full = None
        if attention_mask is not None:
            keep = attention_mask.to(torch.bool)
            full = keep[:, None, None, :].expand(-1, 1, input_ids.shape[1], -1)
            if position_ids is None:
                position_ids = (keep.long().cumsum(-1) - 1).clamp_min(0)
        return self.model(
            input_ids=input_ids,
            attention_mask={"full_attention": full},
            position_ids=position_ids,
            use_cache=False,
        ).last_hidden_state

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> MaskedLMOutput:
        """Raw logits ``[N, L, Vd]`` (row ``p`` predicts the token at ``p + 1``)."""
        hidden = self.body(input_ids, attention_mask, position_ids)
        return MaskedLMOutput(logits=self.lm_head(hidden))
