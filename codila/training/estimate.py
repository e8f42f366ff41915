"""What a training step will need, before it is tried: bytes of memory and floating-point work.

The figures are sums of sizes that are known beforehand (weights, gradients, optimizer states, the
largest batch that the limits allow, everything masked), not a measurement; they are meant to be an
upper bound that is not far off.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from codila.training.ar_recipe import ARRecipe


def answer_length(recipe: ARRecipe) -> int:
    """The longest answer region of a batch."""
    return recipe.region or recipe.max_length


def sequence_length(recipe: ARRecipe) -> int:
    """The longest prompt and answer together."""
    toy = recipe.data == ("toy",)
    return 64 + answer_length(recipe) if toy else max(recipe.max_length, answer_length(recipe))


def memory(
    recipe: ARRecipe, dlm: Any, models: dict[str, Any], processes: int = 1
) -> dict[str, int]:
    """Bytes per process at the peak of a step, by what they are for.

    Args:
        dlm, models: the models, or ones on the meta device: only sizes are read.
        processes: they share what is sharded.
    """
    share = {"none": 1, "ar": processes, "all": processes}[recipe.shard]
    dlm_share = processes if recipe.shard == "all" else 1
    width = dlm.lm_head.weight.element_size()
    held = [p for model in models.values() for p in model.parameters()]
    total = {
        "DLM weights": sum(p.numel() * p.element_size() for p in dlm.parameters()) // dlm_share,
        "AR weights": sum(p.numel() * p.element_size() for p in held) // share,
    }
    trained = sum(p.numel() for p in held if p.requires_grad)
    total["gradients"] = 4 * trained // share
    states = 2 if recipe.optimizer == "adamw" else 1
    total["optimizer"] = 4 * trained * states // share
    total["average of the weights"] = 4 * trained // share if recipe.ema else 0
    length = answer_length(recipe)
    config, rows = dlm.config, recipe.rows
    columns = rows * sequence_length(recipe)
    # a layer's tensors while it runs: residual, normed, q, k, v, attention, the FFN's three
    layer = 6 * config.hidden_size + 3 * config.intermediate_size
    total["DLM activations"] = columns * layer * width
    total["DLM logits"] = rows * length * config.vocab_size * width
    total["AR activations"] = sum(_ar_activations(recipe, n, m) for n, m in models.items())
    return total


def _ar_activations(recipe: ARRecipe, name: str, model: Any) -> int:
    own, config = recipe.of(name), model.config
    most = 0
    for size in own.block_sizes:
        blocks = recipe.rows * (answer_length(recipe) // size)
        blocks = min(blocks, recipe.chunk_blocks or blocks)
        positions = 2 * size + 1 + sum(own.window)
        heads = config.num_attention_heads * getattr(
            config, "head_dim", config.hidden_size // config.num_attention_heads
        )
        layer = 10 * config.hidden_size + 8 * heads + 4 * config.intermediate_size
        kept = config.num_hidden_layers
        if recipe.activation_checkpointing:  # the inputs of the layers, and one layer in full
            held = kept * config.hidden_size + layer
        else:
            held = kept * layer
        table = model.get_input_embeddings().weight
        soft = blocks * (size + sum(own.window)) * table.shape[1] * 4
        # logits, their float copy, and the gradient of both
        head = 4 * blocks * size * table.shape[0] * 4
        most = max(most, blocks * positions * held * 4 + soft + head)
    return most


def work(recipe: ARRecipe, dlm: Any, models: dict[str, Any]) -> float:
    """Floating-point operations of a step, per process, half of all units masked."""
    length = answer_length(recipe)
    body = sum(p.numel() for p in dlm.parameters()) - dlm.lm_head.weight.numel()
    tokens = recipe.rows * sequence_length(recipe)
    total = 2.0 * body * tokens + 2.0 * dlm.lm_head.weight.numel() * recipe.rows * length / 2
    for name, model in models.items():
        own = recipe.of(name)
        size = sum(own.block_sizes) / len(own.block_sizes)
        blocks = recipe.rows * length / size / 2
        table = model.get_input_embeddings().weight.numel()
        layers = sum(p.numel() for p in model.parameters()) - table
        total += 6.0 * layers * blocks * (2 * size + 1 + sum(own.window))
        total += (6.0 + 6.0) * table * blocks * size  # the head, and the soft tokens
    return total * recipe.accumulate


def rate(device: torch.device, dtype: torch.dtype) -> float:
    """Floating-point operations per second of a matrix product here, measured for an instant."""
    n = 512 if device.type == "cpu" else 4096
    a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
    (a @ b).sum().item()
    started, runs = time.perf_counter(), 0
    while time.perf_counter() - started < 0.1:
        (a @ b).sum().item()
        runs += 1
    return 2.0 * n**3 * runs / (time.perf_counter() - started)


def table(parts: dict[str, int], operations: float) -> str:
    """Both as lines of text."""
    lines = [f"{name:<24}{value / 2**30:9.2f} GiB" for name, value in parts.items() if value]
    lines.append(f"{'together, per process':<24}{sum(parts.values()) / 2**30:9.2f} GiB")
    lines.append(f"{'work per step':<24}{operations / 1e12:9.3f} TFLOP")
    return "\n".join(lines)
