"""What the diffusion families share: a causal decoder of transformers that looks both ways."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import MaskedLMOutput


class BidirectionalLM(PreTrainedModel, GenerationMixin):
    """A decoder without its causal mask, and an LM head: implements :class:`DiffusionLM`.

    A family sets ``shift`` and the class of the decoder, whose layers have a ``self_attn``. The
    attention implementation is transformers' (``attn_implementation``: sdpa, eager,
    flash_attention_2, flex_attention).
    """

    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}
    _tp_plan: dict[str, str] = {}  # the head is read whole: only the decoder's layers are sharded

    shift: int
    model: Any
    decoder_class: type[PreTrainedModel]
    head_bias = False

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.model = self.decoder_class(config)
        for layer in self.model.layers:
            layer.self_attn.is_causal = False
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=self.head_bias)
        # transformers 5.24 renamed ``past_key_values`` to ``cache``
        names = inspect.signature(self.model.forward).parameters
        self._cache_argument = "cache" if "cache" in names else "past_key_values"
        self.post_init()

    @property
    def mask_token_id(self) -> int:
        return int(self.config.mask_token_id)

    @property
    def eos_token_id(self) -> int:
        """The first of ``eos_token_ids``: what fills a canvas behind an end."""
        return self.eos_token_ids[0]

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
        *,
        cache: Any = None,
        window: slice | None = None,
        length: int | None = None,
    ) -> Tensor:
        """Hidden states after the final norm, before the LM head.

        Args:
            input_ids: ``[N, L]`` int64, masked positions hold ``mask_token_id``.
            attention_mask: ``[N, L]``, 0 at padding; None where nothing is padded.
            position_ids: ``[N, L]``; default: counted from the first real token.
            cache: keys of a sequence, :class:`codila.dlm_cache.CanvasKeys`: written, and with a
                ``window`` read where it does not reach.
            window, length: ``input_ids`` are these columns of a sequence of ``length``, the one
                that ``attention_mask`` is of.

        Returns:
            ``[N, L, H]`` in the model's dtype. Rows at padded positions are meaningless.
        """
        if attention_mask is not None and position_ids is None:
            position_ids = (attention_mask.long().cumsum(-1) - 1).clamp_min(0)
        elif window is not None and position_ids is None:
            position_ids = torch.arange(length or 0, device=input_ids.device)[None]
        embeds = self.model.embed_tokens(input_ids)
        own_mask = self.config._attn_implementation in ("sdpa", "eager")
        if window is not None and position_ids is not None:
            position_ids = position_ids[:, window]
            mask = self._key_mask(embeds, attention_mask, length or 0)
        elif attention_mask is not None and own_mask:  # transformers' asks the device about it
            mask = self._key_mask(embeds, attention_mask, embeds.shape[1])
        else:
            mask = create_bidirectional_mask(
                config=self.config,
                inputs_embeds=embeds,
                attention_mask=attention_mask,
                # without a mask, eager attention is handed a causal one by some decoders
                allow_is_bidirectional_skip=self.config._attn_implementation != "eager",
            )
        arguments = {} if cache is None else {self._cache_argument: cache}
        return self.model(
            inputs_embeds=embeds,
            attention_mask=self._as_decoder_mask(mask),
            position_ids=position_ids,
            use_cache=cache is not None,
            **arguments,
        ).last_hidden_state

    def _key_mask(self, embeds: Tensor, attention_mask: Tensor | None, length: int) -> Tensor:
        """``[N, 1, queries, length]``: which keys the queries may see, the same for all."""
        rows, width = embeds.shape[:2]
        if attention_mask is None:
            keep = torch.ones(rows, length, dtype=torch.bool, device=embeds.device)
        else:
            keep = attention_mask.to(torch.bool)
        mask = keep[:, None, None, :].expand(-1, 1, width, -1)
        kind = self.config._attn_implementation
        if kind == "eager":
            return torch.zeros_like(mask, dtype=embeds.dtype).masked_fill_(
                ~mask, torch.finfo(embeds.dtype).min
            )
        if kind != "sdpa":
            raise ValueError(f"dlm_cache works with attn_implementation sdpa and eager, not {kind}")
        return mask

    def _as_decoder_mask(self, mask: Any) -> Any:
        """The mask in the form in which this family's decoder takes a finished one."""
        return mask

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> MaskedLMOutput:
        """Raw logits ``[N, L, Vd]``; row ``p`` predicts the token at ``p + shift``."""
        hidden = self.body(input_ids, attention_mask, position_ids)
        return MaskedLMOutput(logits=self.lm_head(hidden))

    def generate(self, *args: Any, custom_generate: Any = None, **kwargs: Any) -> Any:
        """transformers' ``generate``, decoding with :func:`codila.generate` unless told otherwise.

        Pass ``ar_model=``; see :func:`codila.generate` for the rest.
        """
        from codila.generation import generate

        return super().generate(*args, custom_generate=custom_generate or generate, **kwargs)
