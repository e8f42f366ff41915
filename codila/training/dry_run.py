"""What a recipe does to its data, shown before any time is spent: examples, first loss, sizes."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, Qwen3Config

from codila.models.checkpoint import gguf_options
from codila.models.loading import FAMILIES
from codila.training import estimate
from codila.training.ar import ARTraining
from codila.training.ar_recipe import ARRecipe
from codila.training.blocks import blocks_of


def examples(training: ARTraining, count: int = 3) -> str:
    """The first ``count`` training examples as text, what is masked in brackets; the first loss."""
    recipe, tokenizer = training.recipe, training.start.tokenizer
    texts: list[str] = []
    index = 0
    first: str | None = None
    while len(texts) < count:
        batch = training.train(index)
        generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + index)
        rows = training.masked_rows(batch, 0, generator)
        if first is None:
            part = next(training.batch_loss(training.module, index, 0))
            figures = {n: s / max(c, 1.0) for n, (s, c) in part.figures.items()}
            named = ", ".join(f"{name} {value:.3f}" for name, value in figures.items())
            first = f"first loss {part.loss.item():.4f} (nats per token: {named})"
        unit = f"t = {1 / rows.weight[0].item():.2f}, units of {rows.unit} tokens"
        first_column = int(rows.padding[0])
        ids = rows.ids[0, first_column:].tolist()
        masked = rows.seen[0, first_column:].eq(training.dlm.mask_token_id).tolist()
        count_of = len(blocks_of(rows, rows.unit).ids)
        texts.append(
            f"--- example {len(texts) + 1} ({unit}, {count_of} trained on in its batch)\n"
            + _bracketed(tokenizer, ids, masked)
        )
        index += 1
    return "\n".join([*texts, first or ""])


def _bracketed(tokenizer: Any, ids: list[int], masked: list[bool]) -> str:
    out, start = [], 0
    for stop in range(1, len(ids) + 1):
        if stop == len(ids) or masked[stop] != masked[start]:
            text = tokenizer.decode(ids[start:stop])
            out.append(f"⟦{text}⟧" if masked[start] else text)
            start = stop
    return "".join(out)


def sizes(recipe: ARRecipe, processes: int = 1) -> str:
    """Memory and work of a step from the configurations alone: no weight is read.

    Raises:
        ValueError: a DLM of no known family.
    """
    values = PreTrainedConfig.get_config_dict(recipe.dlm)[0]
    family: Any = FAMILIES.get(str(values.get("model_type")))
    if family is None:
        raise ValueError(f"{recipe.dlm}: model_type {values.get('model_type')!r} is no DLM")
    dtype = getattr(torch, recipe.dlm_dtype or "bfloat16")
    with torch.device("meta"):
        dlm = family(family.config_class.from_pretrained(recipe.dlm)).to(dtype)
        models = {name: _skeleton(recipe.of(name)) for name in recipe.variants}
    parts = estimate.memory(recipe, dlm, models, processes)
    return estimate.table(parts, estimate.work(recipe, dlm, models))


def _skeleton(recipe: ARRecipe) -> Any:
    if recipe.model is not None:
        config: Any = Qwen3Config(**recipe.model)
    else:
        place, options = gguf_options(str(recipe.init))
        config = AutoConfig.from_pretrained(place, trust_remote_code=False, **options)
    model: Any = AutoModelForCausalLM.from_config(config)
    if recipe.freeze_embeddings:
        model.get_input_embeddings().requires_grad_(False)
    return model
