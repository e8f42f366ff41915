"""Which kernels, configs, dtypes and options the ahead-of-time check compiles, op by op."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from codila_kernels.configs import (
    ROW_TILES,
    ZERO_BITS,
    backward_config,
    block_entropy_config,
    combine_block,
    combine_chunks,
    combine_warps,
    expected_embedding_config,
    gather_blocks,
    head_stats_config,
    next_power_of_two,
    sample_tokens_config,
    top_k_config,
    vocab_stats_config,
)

# (usable columns, embedding width): Dream with Qwen3-0.6B, a 262k vocabulary with a narrow table,
# and a toy pair. The sizes pick the configs; the code does not contain them.
SIZES = ((151_936, 1024), (262_144, 640), (1_088, 192))

# (vocabulary, hidden width) of the heads: Dream, DiffusionGemma, a toy.
HEAD_SIZES = ((152_064, 3584), (262_144, 2816), (1_088, 192))

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
        chunks = vocab_stats_config(width, torch.bfloat16, chip).chunks
        for arg_max in (False, True):
            yield _states_build(chunks, arg_max)


def _states_build(chunks: int, arg_max: bool) -> Build:
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


def _head_stats_builds(chip: str) -> Iterator[Build]:
    for vocabulary, hidden in HEAD_SIZES:
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            config = head_stats_config(vocabulary, hidden, dtype, chip)
            name = _TYPE_NAMES[dtype]
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
            yield _states_build(config.chunks, arg_max=False)


# (candidate blocks, positions): a toy canvas, 256 tokens in blocks of 8, and the largest tile.
CANDIDATES = ((4, 4), (32, 8), (65, 31))


def _block_entropy_builds(chip: str) -> Iterator[Build]:
    for candidates, positions in CANDIDATES:
        config = block_entropy_config(candidates, positions)
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for dynamic in (False, True):
                yield Build(
                    "block_entropy",
                    "block_entropy",
                    f"{_TYPE_NAMES[dtype]}, {config.block_c}x{config.block_b}"
                    f"{', dynamic' * dynamic}",
                    (
                        ("entropy_ptr", f"*{_TYPE_NAMES[dtype]}"),
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


_SAMPLING_TYPES = {
    "banned_ptr": "*i32",
    "maxima_ptr": "*fp32",
    "group_maxima_ptr": "*fp32",
    "list_ptr": "*i32",
    "floor_ptr": "*i64",
    "edge_ptr": "*fp32",
    "room_ptr": "*i64",
    "above_ptr": "*i64",
    "ties_ptr": "*i32",
    "seeds_ptr": "*i64",
    "counters_ptr": "*i32",
    "ids_ptr": "*i64",
    "probs_ptr": "*fp32",
    "width": "i32",
    "chunks": "i32",
    "groups": "i32",
    "logits_stride": "i32",
    "scale": "fp32",
    "top_k": "i32",
    "top_p_bits": "i64",
}


def _sample_tokens_builds(chip: str) -> Iterator[Build]:
    for width, _ in SIZES:
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            name, zero_bits = _TYPE_NAMES[dtype], ZERO_BITS[dtype]
            config = sample_tokens_config(width, dtype, chip)
            chunks = next_power_of_two(config.chunks)
            groups = next_power_of_two(config.groups)
            types = {"logits_ptr": f"*{name}", **_SAMPLING_TYPES}
            search = (("ZERO_BITS", zero_bits), ("LISTED", config.listed), ("BLOCK_C", chunks))
            yield Build(
                "sample_tokens",
                "sample_tokens_short_list",
                f"{groups} groups, {32 - zero_bits} bits",
                tuple(_SAMPLING_TYPES.items()),
                (*search, ("BLOCK_G", groups)),
                (("num_warps", config.list_warps),),
            )
            for options in (False, True):
                banned = ("HAS_BANNED", options)
                size = ("BLOCK_V", config.block_v)
                label = f"{name} logits, {config.block_v} columns{', all options' * options}"
                warps = (("num_warps", config.num_warps),)
                yield Build(
                    "sample_tokens",
                    "sample_tokens_max_split",
                    label,
                    tuple(types.items()),
                    (banned, ("TRUNCATED", options), size, ("GROUP", config.group)),
                    warps,
                )
                for kernel, number in (
                    ("sample_tokens_sum_split", config.num_warps),
                    ("sample_tokens_pick", config.pick_warps),
                ):
                    yield Build(
                        "sample_tokens",
                        kernel,
                        label,
                        tuple(types.items()),
                        (banned, ("HAS_EDGE", options), size, ("BLOCK_C", chunks)),
                        (("num_warps", number),),
                    )
                for top_k, top_p in ((True, False), (False, True), (True, True)):
                    yield Build(
                        "sample_tokens",
                        "sample_tokens_edge",
                        f"{name} logits{', top-k' * top_k}{', nucleus' * top_p}"
                        f"{', banned' * options}",
                        tuple(types.items()),
                        (
                            banned,
                            ("HAS_TOP_K", top_k),
                            ("HAS_TOP_P", top_p),
                            *search,
                            ("GROUP", config.group),
                            ("BLOCK_S", config.block_s),
                        ),
                        tuple(config.search_launch.items()),
                    )


_BUILDS = (
    _vocab_stats_builds,
    _expected_embedding_builds,
    _top_k_builds,
    _backward_builds,
    _head_stats_builds,
    _block_entropy_builds,
    _sample_tokens_builds,
)
