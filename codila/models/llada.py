"""LLaDA diffusion language models, built on transformers' Llama modules.

LLaDA-8B and LLaDA-1.5: a bidirectional Llama whose hidden state at ``p`` predicts the token at
``p`` (``shift = 0``). Their checkpoints name tensors and settings in their own way (OLMo's), which
is translated at the door, in both directions.
"""

from __future__ import annotations

from typing import Any

from transformers import LlamaConfig
from transformers.conversion_mapping import register_checkpoint_conversion_mapping
from transformers.core_model_loading import WeightRenaming
from transformers.models.llama.modeling_llama import LlamaModel

from codila.models.bidirectional import BidirectionalLM

_KEYS = {
    "d_model": "hidden_size",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "mlp_hidden_size": "intermediate_size",
    "max_sequence_length": "max_position_embeddings",
    "weight_tying": "tie_word_embeddings",
}
"""LLaDA's names of what Llama's configuration calls otherwise."""

_FIXED: dict[str, Any] = {
    "block_type": "llama",
    "activation_type": "silu",
    "layer_norm_type": "rms",
    "rope": True,
    "alibi": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "attention_layer_norm": False,
    "block_group_size": 1,
    "scale_logits": False,
    "input_emb_norm": False,
    "bias_for_layer_norm": False,
}
"""Settings of LLaDA's configuration that its published models share and that are built in here."""

_TENSORS = {
    r"model.transformer.wte": r"model.embed_tokens",
    r"model.transformer.ln_f": r"model.norm",
    r"model.transformer.ff_out": r"lm_head",
    r"model.transformer.blocks.(\d+).q_proj": r"model.layers.\1.self_attn.q_proj",
    r"model.transformer.blocks.(\d+).k_proj": r"model.layers.\1.self_attn.k_proj",
    r"model.transformer.blocks.(\d+).v_proj": r"model.layers.\1.self_attn.v_proj",
    r"model.transformer.blocks.(\d+).attn_out": r"model.layers.\1.self_attn.o_proj",
    r"model.transformer.blocks.(\d+).ff_proj": r"model.layers.\1.mlp.gate_proj",
    r"model.transformer.blocks.(\d+).up_proj": r"model.layers.\1.mlp.up_proj",
    r"model.transformer.blocks.(\d+).ff_out": r"model.layers.\1.mlp.down_proj",
    r"model.transformer.blocks.(\d+).attn_norm": r"model.layers.\1.input_layernorm",
    r"model.transformer.blocks.(\d+).ff_norm": r"model.layers.\1.post_attention_layernorm",
}
"""LLaDA's tensor names and ours."""


class LladaConfig(LlamaConfig):
    """Llama's configuration and the mask token's id; read from and written with LLaDA's keys."""

    model_type = "llada"

    mask_token_id: int | None = None

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """From the content of a ``config.json``.

        Raises:
            ValueError: a setting that asks for another architecture than the published models'.
        """
        other = {
            k: config_dict[k] for k, v in _FIXED.items() if config_dict.get(k, v) not in (v, None)
        }
        if other:
            raise ValueError(
                f"this LLaDA configuration has {other}; supported is "
                f"{ {k: _FIXED[k] for k in other} }, as in LLaDA-8B and LLaDA-1.5"
            )
        width = config_dict.get("embedding_size")
        ours = {_KEYS.get(k, k): v for k, v in config_dict.items() if k != "embedding_size"}
        if width:  # rows of the tables, where they are padded
            ours["vocab_size"] = width
        if "d_model" in config_dict and not config_dict.get("mlp_hidden_size"):
            ours["intermediate_size"] = config_dict["mlp_ratio"] * config_dict["d_model"]
        return super().from_dict(ours, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        """The config under LLaDA's keys."""
        out = super().to_dict()
        rope = out.pop("rope_parameters", None) or {}
        out["rope_theta"] = rope.get("rope_theta", 10_000.0)
        for theirs, ours in _KEYS.items():
            out[theirs] = out.pop(ours)
        return out | _FIXED | {"embedding_size": out["vocab_size"]}


class LladaModel(BidirectionalLM):
    """A bidirectional Llama with an LM head: LLaDA's mask predictor."""

    config_class = LladaConfig
    decoder_class = LlamaModel
    _no_split_modules = ["LlamaDecoderLayer"]
    shift = 0


register_checkpoint_conversion_mapping(
    LladaConfig.model_type,
    [WeightRenaming(theirs, ours) for theirs, ours in _TENSORS.items()],
    overwrite=True,
)
