"""What a build is, and the sizes that pick the configs."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch

# (usable columns, embedding width): Dream with Qwen3-0.6B, a 262k vocabulary with a narrow table,
# and a toy pair. The sizes pick the configs; the code does not contain them.
SIZES = ((151_936, 1024), (262_144, 640), (1_088, 192))

# (vocabulary, hidden width) of the heads: Dream, DiffusionGemma, a toy.
HEAD_SIZES = ((152_064, 3584), (262_144, 2816), (1_088, 192))

TYPE_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


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
