"""Builds of top-k and hard `expected_embedding`."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from codila_kernels.builds.common import SIZES, TYPE_NAMES, Build
from codila_kernels.configs import gather_blocks, next_power_of_two, top_k_config


def top_k_builds(chip: str) -> Iterator[Build]:
    for width, embedding in SIZES:
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            name = TYPE_NAMES[dtype]
            config = top_k_config(width, dtype, chip)
            for options in (False, True):
                yield Build(
                    "expected_embedding_top_k",
                    "top_k_split",
                    f"{name} logits, {config.block_v} columns{', rows, banned' * options}",
                    (
                        ("logits_ptr", f"*{name}"),
                        ("rows_ptr", "*i64"),
                        ("banned_ptr", "*i32"),
                        ("keys_ptr", "*i64"),
                        ("width", "i32"),
                        ("chunks", "i32"),
                        ("top_k", "i32"),
                        ("logits_stride", "i32"),
                    ),
                    (
                        ("HAS_ROWS", options),
                        ("HAS_BANNED", options),
                        ("BLOCK_V", config.block_v),
                    ),
                    (("num_warps", config.num_warps),),
                )
            for top_k, known in ((1, True), (1, False), (64, False)):
                block_k, block_d = gather_blocks(top_k, embedding)
                label = ", rows, known arg-max" if known else ""
                yield Build(
                    "expected_embedding_top_k",
                    "top_k_gather",
                    f"{name} table, {block_k}x{block_d}{label}",
                    (
                        ("table_ptr", f"*{name}"),
                        ("rows_ptr", "*i64"),
                        ("top1_ptr", "*i64"),
                        ("ids_ptr", "*i64"),
                        ("weights_ptr", "*fp32"),
                        ("out_ptr", f"*{name}"),
                        ("top_k", "i32"),
                        ("embedding", "i32"),
                        ("table_stride", "i32"),
                    ),
                    (
                        ("HAS_ROWS", known),
                        ("HAS_TOP1", known),
                        ("BLOCK_K", block_k),
                        ("BLOCK_D", block_d),
                    ),
                    (("num_warps", 4),),
                )
        chunks = top_k_config(width, torch.bfloat16, chip).chunks
        for top_k in (1, 64):
            candidates = next_power_of_two(chunks * top_k)
            yield Build(
                "expected_embedding_top_k",
                "top_k_merge",
                f"{top_k} of {candidates} candidates",
                (
                    ("keys_ptr", "*i64"),
                    ("ids_ptr", "*i64"),
                    ("weights_ptr", "*fp32"),
                    ("candidates", "i32"),
                    ("top_k", "i32"),
                    ("scale", "fp32"),
                ),
                (("BLOCK_K", top_k), ("BLOCK_C", candidates)),
                (("num_warps", 8),),
            )
