"""What a run of AR training starts from: the frozen DLM, tokenizers, bridge, the AR models."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from codila.bridge import VocabularyBridge
from codila.models.ar import put_in_dlm_order
from codila.models.checkpoint import CheckpointError, gguf_options, load_weights
from codila.models.loading import load_dlm, load_tokenizer
from codila.training.ar_recipe import ARRecipe


@dataclasses.dataclass
class StartingPoint:
    """Models and vocabularies of a run, before its first step."""

    dlm: Any
    tokenizer: Any
    ar_tokenizer: Any
    bridge: VocabularyBridge
    boundaries: dict[str, tuple[int, int] | None]
    models: dict[str, Any]


def starting_point(recipe: ARRecipe, device: torch.device) -> StartingPoint:
    """Load or make everything that a recipe names.

    Raises:
        CheckpointError: a folder without what it needs, or tokenizers that do not match.
        ValueError: boundary tokens that the AR tokenizer does not have.
    """
    dlm_dtype = recipe.dlm_dtype or ("float32" if device.type == "cpu" else "bfloat16")
    dlm = load_dlm(recipe.dlm, dtype=getattr(torch, dlm_dtype), device=device)
    dlm.requires_grad_(False)
    tokenizer = load_tokenizer(recipe.dlm, dlm.config)
    ar_tokenizer = load_tokenizer(recipe.tokenizer or recipe.init or recipe.dlm)
    models = {name: _first_model(recipe.of(name), name, dlm) for name in recipe.variants}
    boundaries = {name: _boundaries(recipe.of(name), ar_tokenizer) for name in recipe.variants}
    named = [pair for pair in boundaries.values() if pair is not None]
    rows = min(m.get_input_embeddings().weight.shape[0] for m in models.values())
    bridge = VocabularyBridge.between(
        tokenizer,
        ar_tokenizer,
        mask_token_id=dlm.mask_token_id,
        ar_rows=rows,
        boundaries=named[0] if named else None,
        expand_token_id=getattr(dlm.config, "expand_token_id", None),
    )
    bridge = dataclasses.replace(bridge, suppressed_ids=_control_ids(tokenizer, dlm, bridge))
    for model in models.values():
        put_in_dlm_order(model, bridge)
        _prepare(model, recipe)
    if recipe.lora is not None:
        models = {name: _with_lora(model, recipe.lora) for name, model in models.items()}
    return StartingPoint(dlm, tokenizer, ar_tokenizer, bridge, boundaries, models)


def _first_model(recipe: ARRecipe, name: str, dlm: Any) -> Any:
    if recipe.init is not None:
        own = Path(recipe.init) / name
        place, options = gguf_options(own if own.is_dir() else recipe.init)
        return load_weights(AutoModelForCausalLM, place, torch.float32, **options).train()
    assert recipe.model is not None
    torch.manual_seed(recipe.seed)
    eos = dlm.eos_token_id
    model = Qwen3ForCausalLM(
        Qwen3Config(**recipe.model, eos_token_id=eos, pad_token_id=eos, bos_token_id=None)
    )
    table, source = model.model.embed_tokens.weight, dlm.get_input_embeddings().weight
    if recipe.embeddings_from_dlm and table.shape[1] == source.shape[1]:
        with torch.no_grad():
            table[: eos + 1] = source[: eos + 1]
    return model.train()


def _boundaries(recipe: ARRecipe, tokenizer: Any) -> tuple[int, int] | None:
    if recipe.boundaries is None:
        return None
    vocabulary = tokenizer.get_vocab()
    unknown = [token for token in recipe.boundaries if token not in vocabulary]
    if unknown or len(recipe.boundaries) != 2:
        raise ValueError(
            f"boundaries={recipe.boundaries}: the AR model's tokenizer has no {unknown}; name two "
            "of its control tokens, or null to leave them out"
        )
    return vocabulary[recipe.boundaries[0]], vocabulary[recipe.boundaries[1]]


def _control_ids(tokenizer: Any, dlm: Any, bridge: VocabularyBridge) -> tuple[int, ...]:
    """Control tokens that a text of the DLM never holds: the AR model is not to write them."""
    ends = {*dlm.eos_token_ids, getattr(dlm.config, "expand_token_id", None)}
    written = {i for i in ends if i is not None}
    kept = {i for i, t in tokenizer.added_tokens_decoder.items() if not t.special}
    control = set(tokenizer.added_tokens_decoder) - kept - written - set(bridge.banned_ids)
    template = getattr(tokenizer, "chat_template", None) or ""
    control = {i for i in control if tokenizer.convert_ids_to_tokens(i) not in template}
    return tuple(sorted(i for i in control if i < bridge.valid_vocab))


def _prepare(model: Any, recipe: ARRecipe) -> None:
    model.config.use_cache = False
    if recipe.freeze_embeddings:
        model.get_input_embeddings().requires_grad_(False)
    if recipe.activation_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if recipe.compile:
        for layer in model.get_decoder().layers:
            layer.compile()


def _with_lora(model: Any, options: dict[str, Any]) -> Any:
    """``model`` with adapters in place, which alone are trained."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise CheckpointError("lora= needs PEFT: pip install 'codila[train]'") from error
    order = getattr(model, "codila_order", None)
    wrapped = get_peft_model(model, LoraConfig(**{"task_type": "CAUSAL_LM", **options}))
    base: Any = wrapped.get_base_model()
    base.codila_peft = [wrapped]  # in a list: not a submodule of its own submodule
    if order is not None:
        base.codila_order = order
    return base
