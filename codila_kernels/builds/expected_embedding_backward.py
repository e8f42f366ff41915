"""Builds of the gradients of `expected_embedding`."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from codila_kernels.builds.common import SIZES, TYPE_NAMES, Build
from codila_kernels.configs import backward_config, gather_blocks


def backward_builds(chip: str) -> Iterator[Build]:
    module = "expected_embedding_backward"
    for width, embedding in SIZES:
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            name = TYPE_NAMES[dtype]
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
