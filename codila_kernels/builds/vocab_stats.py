"""Builds of `vocab_stats`, and of the kernel that merges states."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from codila_kernels.builds.common import SIZES, TYPE_NAMES, Build
from codila_kernels.configs import combine_warps, next_power_of_two, vocab_stats_config


def vocab_stats_builds(chip: str) -> Iterator[Build]:
    for width, _ in SIZES:
        for dtype, banned in (
            (torch.bfloat16, True),
            (torch.float16, False),
            (torch.float32, True),
        ):
            config = vocab_stats_config(width, dtype, chip)
            yield Build(
                "vocab_stats",
                "vocab_stats_split",
                f"{TYPE_NAMES[dtype]} logits, {config.block_v} columns{', banned' * banned}",
                (
                    ("logits_ptr", f"*{TYPE_NAMES[dtype]}"),
                    ("banned_ptr", "*i32"),
                    ("state_ptr", "*fp32"),
                    ("ids_ptr", "*i32"),
                    ("width", "i32"),
                    ("chunks", "i32"),
                    ("logits_stride", "i32"),
                    ("inv_temperature", "fp32"),
                    ("scale", "fp32"),
                ),
                (("HAS_BANNED", banned), ("BLOCK_V", config.block_v)),
                (("num_warps", config.num_warps),),
            )
        chunks = vocab_stats_config(width, torch.bfloat16, chip).chunks
        for arg_max in (False, True):
            yield states_build(chunks, arg_max)


def states_build(chunks: int, arg_max: bool) -> Build:
    """The kernel that merges the states of a row, whichever kernel wrote them."""
    block_c = next_power_of_two(chunks)
    return Build(
        "vocab_stats",
        "vocab_stats_combine",
        f"{block_c} chunks{', T = 0' * arg_max}",
        (
            ("state_ptr", "*fp32"),
            ("ids_ptr", "*i32"),
            ("lse_ptr", "*fp32"),
            ("entropy_ptr", "*fp32"),
            ("top1_id_ptr", "*i64"),
            ("top1_prob_ptr", "*fp32"),
            ("margin_ptr", "*fp32"),
            ("chunks", "i32"),
            ("inv_temperature", "fp32"),
            ("scale", "fp32"),
        ),
        (("ARG_MAX", arg_max), ("BLOCK_C", block_c)),
        (("num_warps", combine_warps(chunks)),),
    )
