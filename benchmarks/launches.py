"""Kernels that a step launches when nothing is fused or captured, counted on tensors without data.

    python -m benchmarks.launches

Every operation that computes or moves data counts as one launch; views do not. The models have the
true sizes of Dream-7B and Qwen3-0.6B, on the meta device, through the same code that decodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import typer
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.decode import PRESETS, random_pair
from benchmarks.report import Point, print_json_line, print_table
from codila.block_decoder import BlockDecoder

LAUNCH_US = 4.0  # a launch from Python, in microseconds: an order of magnitude, not measured here


class LaunchCounter(TorchDispatchMode):
    """Counts operations whose outputs are not views of their inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view and func.namespace == "aten" and "empty" not in func.name():
            self.count += 1
        return func(*args, **(kwargs or {}))


def launches(call: Callable[[], Any]) -> int:
    """How many kernels a call launches."""
    with torch.no_grad(), LaunchCounter() as counter:
        call()
    return counter.count


def count_all(preset: str = "dream-7b", blocks: int = 1) -> list[Point]:
    """Launches of the DLM's body, of the AR model's prefill and of one of its cached steps."""
    sizes = dataclasses.replace(PRESETS[preset], device="meta")
    dlm, ar = random_pair(sizes)
    ids = torch.zeros(1, sizes.prompt + sizes.canvas, dtype=torch.int64, device="meta")
    decoder = BlockDecoder(ar, ar.codila.bridge, None)
    width = ar.config.hidden_size
    cache = decoder.new_cache(blocks, 8)
    soft = torch.zeros(blocks, 4, width, dtype=sizes.dtype, device="meta")
    token = torch.zeros(blocks, 1, width, dtype=sizes.dtype, device="meta")
    counted = {
        "DLM body": launches(lambda: dlm.body(ids)),
        "AR prefill": launches(lambda: decoder._cached(soft, cache)),
        "AR step": launches(lambda: decoder._cached(token, cache)),
    }
    layers = {"DLM body": dlm.config.num_hidden_layers}
    return [
        {
            "part": part,
            "launches": count,
            "per_layer": count / layers.get(part, ar.config.num_hidden_layers),
            "ms_at_4_us": count * LAUNCH_US / 1e3,
        }
        for part, count in counted.items()
    ]


def main() -> None:
    """Print the table; the points as JSON last."""
    points = count_all()
    columns = {"part": "", "launches": "d", "per_layer": ".1f", "ms_at_4_us": ".2f"}
    print_table("launches of a step, Dream-7B and Qwen3-0.6B", points, columns)
    print_json_line(points)


if __name__ == "__main__":
    typer.run(main)
