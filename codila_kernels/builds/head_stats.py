"""Builds of `head_stats`."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from codila_kernels.builds.common import HEAD_SIZES, TYPE_NAMES, Build
from codila_kernels.builds.vocab_stats import states_build
from codila_kernels.configs import head_stats_config


def head_stats_builds(chip: str) -> Iterator[Build]:
    for vocabulary, hidden in HEAD_SIZES:
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            config = head_stats_config(vocabulary, hidden, dtype, chip)
            name = TYPE_NAMES[dtype]
            for options, tiles in ((False, 1), (True, 3), (True, 5)):
                label = ", bias, banned" * options
                yield Build(
                    "head_stats",
                    "head_stats_split",
                    f"{name} head, {config.block_v}x{config.block_h}, {16 * tiles} rows{label}",
                    (
                        ("hidden_ptr", f"*{name}"),
                        ("head_ptr", f"*{name}"),
                        ("bias_ptr", f"*{name}"),
                        ("banned_ptr", "*i32"),
                        ("logits_ptr", f"*{name}"),
                        ("state_ptr", "*fp32"),
                        ("ids_ptr", "*i32"),
                        ("rows", "i32"),
                        ("vocabulary", "i32"),
                        ("width", "i32"),
                        ("hidden_size", "i32"),
                        ("hidden_stride", "i32"),
                        ("head_stride", "i32"),
                        ("inv_temperature", "fp32"),
                        ("scale", "fp32"),
                    ),
                    (
                        ("HAS_BIAS", options),
                        ("HAS_BANNED", options),
                        ("DOT_IN_FP32", False),
                        ("TILES", tiles),
                        ("BLOCK_V", config.block_v),
                        ("BLOCK_H", config.block_h),
                    ),
                    tuple(config.launch.items()),
                    on_tensor_cores=dtype != torch.float32,
                )
            yield states_build(config.chunks, arg_max=False)
