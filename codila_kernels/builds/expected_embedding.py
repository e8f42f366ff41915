"""Builds of soft `expected_embedding`."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from codila_kernels.builds.common import SIZES, TYPE_NAMES, Build
from codila_kernels.configs import (
    ROW_TILES,
    combine_block,
    combine_chunks,
    expected_embedding_config,
)


def expected_embedding_builds(chip: str) -> Iterator[Build]:
    low, single = (torch.bfloat16, torch.float16), torch.float32
    alike = [(dtype, dtype) for dtype in (*low, single)]
    mixed = [(single, low[0]), (single, low[1]), (low[0], single)]  # (logits, table)
    for width, embedding in SIZES:
        for logits, table in mixed + alike:
            config = expected_embedding_config(width, embedding, table, chip)
            tiles = f"{config.block_r}x{config.block_v}x{config.block_d}"
            name = TYPE_NAMES[table]
            for options, row_tiles in (
                (False, 1),
                (False, ROW_TILES),
                (True, 1),
                (True, ROW_TILES),
            ):
                label = f", {TYPE_NAMES[logits]} logits" * (logits != table)
                label += ", rows, stats, banned" * options
                yield Build(
                    "expected_embedding",
                    "expected_embedding_split",
                    f"{name} table, {row_tiles} of {tiles}{label}",
                    (
                        ("logits_ptr", f"*{TYPE_NAMES[logits]}"),
                        ("table_ptr", f"*{name}"),
                        ("rows_ptr", "*i64"),
                        ("top1_ptr", "*i64"),
                        ("banned_ptr", "*i32"),
                        ("acc_ptr", "*fp32"),
                        ("state_ptr", "*fp32"),
                        ("rows", "i32"),
                        ("width", "i32"),
                        ("chunk", "i32"),
                        ("embedding", "i32"),
                        ("logits_stride", "i32"),
                        ("table_stride", "i32"),
                        ("scale", "fp32"),
                    ),
                    (
                        ("HAS_ROWS", options),
                        ("HAS_TOP1", options),
                        ("HAS_BANNED", options),
                        ("DOT_IN_FP32", False),
                        ("TRANSPOSED", config.transposed),
                        ("ROW_TILES", row_tiles),
                        ("BLOCK_R", config.block_r),
                        ("BLOCK_V", config.block_v),
                        ("BLOCK_D", config.block_d),
                    ),
                    tuple(config.launch.items()),
                    on_tensor_cores=table != torch.float32,
                )
            blocks = combine_chunks(config.chunks), combine_block(embedding)
            yield Build(
                "expected_embedding",
                "expected_embedding_combine",
                f"{name} table, {blocks[0]} chunks, {blocks[1]} columns",
                (
                    ("acc_ptr", "*fp32"),
                    ("state_ptr", "*fp32"),
                    ("out_ptr", f"*{name}"),
                    ("whole_ptr", "*fp32"),
                    ("rows", "i32"),
                    ("chunks", "i32"),
                    ("embedding", "i32"),
                    ("whole_stride", "i32"),
                    ("scale", "fp32"),
                ),
                (("BLOCK_C", blocks[0]), ("BLOCK_D", blocks[1])),
                (("num_warps", 4),),
            )
