"""Builds of `sample_tokens`."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from codila_kernels.builds.common import SIZES, TYPE_NAMES, Build
from codila_kernels.configs import ZERO_BITS, next_power_of_two, sample_tokens_config

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


def sample_tokens_builds(chip: str) -> Iterator[Build]:
    for width, _ in SIZES:
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            name, zero_bits = TYPE_NAMES[dtype], ZERO_BITS[dtype]
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
