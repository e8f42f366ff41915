"""Which kernels, configs, dtypes and options the ahead-of-time check compiles, op by op."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from codila_kernels.configs import (
    ROW_TILES,
    backward_config,
    combine_block,
    combine_chunks,
    expected_embedding_config,
    gather_blocks,
    next_power_of_two,
    top_k_config,
    vocab_stats_config,
)

# (usable columns, embedding width): Dream with Qwen3-0.6B, a 262k vocabulary with a narrow table,
# and a toy pair. The sizes pick the configs; the code does not contain them.
SIZES = ((151_936, 1024), (262_144, 640), (1_088, 192))

_TYPE_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


@dataclass(frozen=True)
class Build:
    """One kernel to compile: argument types by name, constexprs by name, launch options.

    `kernel` is the function ``_<kernel>_kernel`` of ``codila_kernels.kernels.<module>``.
    """

    module: str
    kernel: str
    variant: str
    types: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    options: tuple[tuple[str, int], ...]
    on_tensor_cores: bool = False

    def function(self) -> Any:
        """The decorated kernel. Imports triton."""
        module = importlib.import_module(f"codila_kernels.kernels.{self.module}")
        return getattr(module, f"_{self.kernel}_kernel")


def builds(chip: str) -> list[Build]:
    """Every config of `chip`, with each dtype and with the optional inputs absent and present.

    Logits and table have one dtype here; sizes and strides are run-time arguments.
    """
    return list(dict.fromkeys(build for per_op in _BUILDS for build in per_op(chip)))


def _vocab_stats_builds(chip: str) -> Iterator[Build]:
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
                f"{_TYPE_NAMES[dtype]} logits, {config.block_v} columns{', banned' * banned}",
                (
                    ("logits_ptr", f"*{_TYPE_NAMES[dtype]}"),
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
        chunks = next_power_of_two(vocab_stats_config(width, torch.bfloat16, chip).chunks)
        for arg_max in (False, True):
            yield Build(
                "vocab_stats",
                "vocab_stats_combine",
                f"{chunks} chunks{', T = 0' * arg_max}",
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
                (("ARG_MAX", arg_max), ("BLOCK_C", chunks)),
                (("num_warps", 1),),
            )


def _expected_embedding_builds(chip: str) -> Iterator[Build]:
    low, single = (torch.bfloat16, torch.float16), torch.float32
    alike = [(dtype, dtype) for dtype in (*low, single)]
    mixed = [(single, low[0]), (single, low[1]), (low[0], single)]  # (logits, table)
    for width, embedding in SIZES:
        for logits, table in mixed + alike:
            config = expected_embedding_config(width, embedding, table, chip)
            tiles = f"{config.block_r}x{config.block_v}x{config.block_d}"
            name = _TYPE_NAMES[table]
            for options, row_tiles in (
                (False, 1),
                (False, ROW_TILES),
                (True, 1),
                (True, ROW_TILES),
            ):
                label = f", {_TYPE_NAMES[logits]} logits" * (logits != table)
                label += ", rows, stats, banned" * options
                yield Build(
                    "expected_embedding",
                    "expected_embedding_split",
                    f"{name} table, {row_tiles} of {tiles}{label}",
                    (
                        ("logits_ptr", f"*{_TYPE_NAMES[logits]}"),
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
                    (("num_warps", config.num_warps), ("num_stages", config.num_stages)),
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


def _top_k_builds(chip: str) -> Iterator[Build]:
    for width, embedding in SIZES:
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            name = _TYPE_NAMES[dtype]
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


def _backward_builds(chip: str) -> Iterator[Build]:
    module = "expected_embedding_backward"
    for width, embedding in SIZES:
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            name = _TYPE_NAMES[dtype]
            config = backward_config(width, embedding, dtype, chip)
            launch = (("num_warps", config.num_warps), ("num_stages", config.num_stages))
            shared = (
                ("logits_ptr", f"*{name}"),
                ("owner_ptr", "*i64"),
                ("banned_ptr", "*i32"),
                ("state_ptr", "*fp32"),
                ("grad_ptr", f"*{name}"),
                ("out_ptr", f"*{name}"),
                ("rows", "i32"),
                ("width", "i32"),
                ("embedding", "i32"),
                ("logits_stride", "i32"),
                ("scale", "fp32"),
            )
            more = (
                ("along_ptr", "*fp32"),
                ("table_ptr", f"*{name}"),
                ("table_stride", "i32"),
                ("out_stride", "i32"),
                ("inv_temperature", "fp32"),
            )
            for kernel, types, block_d in (
                ("soft_table_gradient", shared, config.block_d),
                ("soft_logits_gradient", shared + more, config.block_k),
            ):
                for options in (False, True):
                    yield Build(
                        module,
                        kernel,
                        f"{name}, {config.block_r}x{config.block_v}x{block_d}"
                        f"{', rows, banned' * options}",
                        types,
                        (
                            ("HAS_ROWS", options),
                            ("HAS_BANNED", options),
                            ("DOT_IN_FP32", False),
                            ("BLOCK_R", config.block_r),
                            ("BLOCK_V", config.block_v),
                            ("BLOCK_D", block_d),
                        ),
                        launch,
                        on_tensor_cores=dtype != torch.float32,
                    )
            block_d = gather_blocks(1, embedding)[1]
            yield Build(
                module,
                "run_sum",
                f"{name} gradients, {block_d} columns",
                (
                    ("keys_ptr", "*i64"),
                    ("order_ptr", "*i64"),
                    ("target_ptr", "*i64"),
                    ("weights_ptr", "*fp32"),
                    ("source_ptr", f"*{name}"),
                    ("out_ptr", f"*{name}"),
                    ("count", "i32"),
                    ("fan_out", "i32"),
                    ("embedding", "i32"),
                ),
                (("BLOCK_D", block_d),),
                (("num_warps", 1),),
            )
            yield Build(
                module,
                "top_k_product",
                f"{name} gradients, {block_d} columns",
                (
                    ("grad_ptr", f"*{name}"),
                    ("table_ptr", f"*{name}"),
                    ("ids_ptr", "*i64"),
                    ("out_ptr", "*fp32"),
                    ("top_k", "i32"),
                    ("embedding", "i32"),
                    ("table_stride", "i32"),
                ),
                (("BLOCK_D", block_d),),
                (("num_warps", 1),),
            )


_BUILDS = (_vocab_stats_builds, _expected_embedding_builds, _top_k_builds, _backward_builds)
