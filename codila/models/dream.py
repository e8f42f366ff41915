"""Dream-architecture diffusion language models, built on transformers' Qwen2 modules.

Dream-v0, Dream-Coder, DiffuCoder and DreamOn. A Dream checkpoint carries Qwen2's tensor names and
Dream's config keys; it differs from Qwen2 in three ways only: attention is bidirectional, a mask
token stands for an unknown token, and the hidden state at position ``p - 1`` predicts the token at
``p`` (``shift = 1``). The shift is applied where logits are read (:mod:`codila.step`), never here:
``DreamModel(ids).logits`` are raw.
"""

from __future__ import annotations

from typing import Any

from transformers import Qwen2Config
from transformers.models.qwen2.modeling_qwen2 import Qwen2Model

from codila.models.bidirectional import BidirectionalLM


class DreamConfig(Qwen2Config):
    """Qwen2's configuration and the id of the mask token. Keys as in Dream's ``config.json``.

    ``expand_token_id`` is DreamOn's (151667, which its own config does not name): a hole's token
    that becomes two masks, see :mod:`codila.lengths`.
    """

    model_type = "Dream"

    mask_token_id: int | None = None
    expand_token_id: int | None = None

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


class DreamModel(BidirectionalLM):
    """A bidirectional Qwen2 with an LM head: the frozen diffusion model of CoDiLA."""

    config_class = DreamConfig
    decoder_class = Qwen2Model
    _no_split_modules = ["Qwen2DecoderLayer"]
    shift = 1

    def _as_decoder_mask(self, mask: Any) -> Any:
        return {"full_attention": mask}  # Qwen2 builds no mask of its own where it is given this
