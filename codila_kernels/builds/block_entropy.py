"""Builds of `block_entropy`."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from codila_kernels.builds.common import TYPE_NAMES, Build
from codila_kernels.configs import block_entropy_config

# (candidate blocks, positions): a toy canvas, 256 tokens in blocks of 8, and the largest tile.
CANDIDATES = ((4, 4), (32, 8), (65, 31))


def block_entropy_builds(chip: str) -> Iterator[Build]:
    for candidates, positions in CANDIDATES:
        config = block_entropy_config(candidates, positions)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for dynamic in (False, True):
                yield Build(
                    "block_entropy",
                    "block_entropy",
                    f"{TYPE_NAMES[dtype]}, {config.block_c}x{config.block_b}"
                    f"{', dynamic' * dynamic}",
                    (
                        ("entropy_ptr", f"*{TYPE_NAMES[dtype]}"),
                        ("masked_ptr", "*i1"),
                        ("prefix_mean_ptr", "*fp32"),
                        ("block_ptr", "*i32"),
                        ("length_ptr", "*i32"),
                        ("fallback_ptr", "*i32"),
                        ("candidates", "i32"),
                        ("block_size", "i32"),
                        ("blocks", "i32"),
                        ("entropy_stride_n", "i32"),
                        ("entropy_stride_c", "i32"),
                        ("entropy_stride_b", "i32"),
                        ("masked_stride_n", "i32"),
                        ("masked_stride_c", "i32"),
                        ("masked_stride_b", "i32"),
                        ("threshold", "fp32"),
                    ),
                    (
                        ("DYNAMIC", dynamic),
                        ("BLOCK_C", config.block_c),
                        ("BLOCK_B", config.block_b),
                    ),
                    (("num_warps", config.num_warps),),
                )
