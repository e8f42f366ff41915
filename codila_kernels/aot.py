"""Compile every kernel with every config for every chip, without having one, and report resources.

    python -m codila_kernels.aot [chip ...]

For each: registers and spilled bytes per thread, shared memory per program, and the tensor-core
instruction and widest global load that the code contains. What a machine without a GPU can
promise is on this list: every config compiles, none spills, none asks for more shared memory than
the chip has, and low-precision products run on tensor cores.

Pointers and strides are declared divisible by 16, as the launcher's specialisation finds them for
torch tensors of real vocabularies; without that the compiler may not load more than an element.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from codila_kernels.configs import (
    CHIPS,
    SHARED_MEMORY_LIMIT,
    combine_block,
    expected_embedding_config,
    next_power_of_two,
    vocab_stats_config,
)

# (usable columns, embedding width): Dream with Qwen3-0.6B, a 262k vocabulary with a narrow table,
# and a toy pair. The sizes pick the configs; the code does not contain them.
SIZES = ((151_936, 1024), (262_144, 640), (1_088, 192))

_TYPE_NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}
_TENSOR_CORE = r"\b(UTC\w*MMA|HGMMA|HMMA|v_mfma_\w+)"
_GLOBAL_LOAD = r"\b(?:LDG|LDGSTS)(?:\.\w+)*\.(128|64)\b|\bglobal_load(?:_lds)?_(dwordx4|dwordx2)\b"


@dataclass(frozen=True)
class Build:
    """One kernel to compile: argument types by name, constexprs by name, launch options."""

    kernel: str
    variant: str
    types: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]
    options: tuple[tuple[str, int], ...]
    on_tensor_cores: bool = False


@dataclass(frozen=True)
class Resources:
    """What the compiler used for one build on one chip."""

    chip: str
    build: Build
    registers: int
    spilled_bytes: int
    shared_bytes: int
    tensor_core: str
    load_bits: int

    @property
    def problems(self) -> list[str]:
        found = []
        if self.spilled_bytes:
            found.append(f"spills {self.spilled_bytes} bytes per thread")
        if self.shared_bytes > SHARED_MEMORY_LIMIT[self.chip]:
            limit = SHARED_MEMORY_LIMIT[self.chip]
            found.append(f"asks for {self.shared_bytes} bytes of shared memory of {limit}")
        if self.build.on_tensor_cores and not self.tensor_core:
            found.append("has no tensor-core product")
        return found


def builds(chip: str) -> list[Build]:
    """Every config of `chip`, with each dtype and with the optional inputs absent and present.

    Logits and table have one dtype here; sizes and strides are run-time arguments.
    """
    found = dict.fromkeys(_vocab_stats_builds(chip))
    found.update(dict.fromkeys(_expected_embedding_builds(chip)))
    return list(found)


def _vocab_stats_builds(chip: str) -> Iterator[Build]:
    for width, _ in SIZES:
        for dtype, banned in (
            (torch.bfloat16, True),
            (torch.float16, False),
            (torch.float32, True),
        ):
            config = vocab_stats_config(width, dtype, chip)
            yield Build(
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
    for width, embedding in SIZES:
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            config = expected_embedding_config(width, embedding, dtype, chip)
            tiles = f"{config.block_r}x{config.block_v}x{config.block_d}"
            name = _TYPE_NAMES[dtype]
            for options in (False, True):
                label = ", rows, stats, banned" * options
                yield Build(
                    "expected_embedding_split",
                    f"{name} table, {tiles}{label}",
                    (
                        ("logits_ptr", f"*{name}"),
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
                        ("BLOCK_R", config.block_r),
                        ("BLOCK_V", config.block_v),
                        ("BLOCK_D", config.block_d),
                    ),
                    (("num_warps", config.num_warps), ("num_stages", config.num_stages)),
                    on_tensor_cores=dtype != torch.float32,
                )
            yield Build(
                "expected_embedding_combine",
                f"{name} table, {combine_block(embedding)} columns",
                (
                    ("acc_ptr", "*fp32"),
                    ("state_ptr", "*fp32"),
                    ("out_ptr", f"*{name}"),
                    ("rows", "i32"),
                    ("chunks", "i32"),
                    ("embedding", "i32"),
                    ("scale", "fp32"),
                ),
                (("BLOCK_D", combine_block(embedding)),),
                (("num_warps", 1),),
            )


def _jit_function(kernel: str) -> Any:
    from codila_kernels.kernels import expected_embedding, vocab_stats

    module = vocab_stats if kernel.startswith("vocab_stats") else expected_embedding
    return getattr(module, f"_{kernel}_kernel")


_DIVISIBLE = ("embedding", "logits_stride", "table_stride", "chunk", "width")


def compile_build(build: Build, chip: str) -> Resources:
    """Compile one build for one chip and read its resources; raises where it does not compile."""
    import triton
    from triton.backends.compiler import GPUTarget

    function = _jit_function(build.kernel)
    if not isinstance(function, triton.JITFunction):
        raise RuntimeError(
            "triton was imported with TRITON_INTERPRET=1, where nothing can be compiled; run this "
            "in a process without it"
        )
    types, constants = dict(build.types), dict(build.constants)
    signature = {
        name: "constexpr" if name in constants else types[name] for name in function.arg_names
    }
    attrs = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(function.arg_names)
        if signature[name].startswith("*") or name in _DIVISIBLE
    }
    amd = chip.startswith("gfx")
    target = GPUTarget("hip", chip, 64) if amd else GPUTarget("cuda", int(chip[3:]), 32)
    source = triton.compiler.ASTSource(function, signature, constants, attrs)
    compiled = triton.compile(
        source, target=target, options={**dict(build.options), "enable_fp_fusion": False}
    )
    read = _read_amd if amd else _read_nvidia
    registers, spilled, text = read(compiled)
    loads = [
        int(bits or {"dwordx4": 128, "dwordx2": 64}[words])
        for bits, words in re.findall(_GLOBAL_LOAD, text)
    ]
    product = re.search(_TENSOR_CORE, text)
    return Resources(
        chip=chip,
        build=build,
        registers=registers,
        spilled_bytes=spilled,
        shared_bytes=compiled.metadata.shared,
        tensor_core=product.group(1) if product else "",
        load_bits=max(loads, default=32),
    )


def _read_nvidia(compiled: Any) -> tuple[int, int, str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(compiled.asm["cubin"])
        usage = _nvidia_tool("cuobjdump", "--dump-resource-usage", str(path))
        text = _nvidia_tool("nvdisasm", "-c", str(path))
    found = re.search(r"REG:(\d+) STACK:(\d+).*?LOCAL:(\d+)", usage)
    assert found is not None, usage
    registers, stack, local = map(int, found.groups())
    return registers, stack + local, text


def _nvidia_tool(name: str, *arguments: str) -> str:
    import triton

    bundled = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    path = str(bundled) if bundled.exists() else shutil.which(name)
    if path is None:
        raise RuntimeError(f"{name} is neither in the triton package nor on the PATH")
    done = subprocess.run([path, *arguments], capture_output=True, text=True, check=True)
    return done.stdout


def _read_amd(compiled: Any) -> tuple[int, int, str]:
    text = compiled.asm["amdgcn"]

    def count(field: str) -> int:
        found = re.search(rf"\.{field}:\s+(\d+)", text)
        assert found is not None, field
        return int(found.group(1))

    spilled = 4 * (count("vgpr_spill_count") + count("sgpr_spill_count"))
    return count("vgpr_count"), spilled + count("private_segment_fixed_size"), text


def report(chips: Sequence[str]) -> Iterator[Resources]:
    """Resources of every build for `chips`, one by one as they are compiled."""
    for chip in chips:
        for build in builds(chip):
            yield compile_build(build, chip)


def main(arguments: Sequence[str]) -> int:
    unknown = [chip for chip in arguments if chip not in CHIPS]
    if unknown:
        print(f"unknown chip {unknown[0]!r}; expected any of {', '.join(CHIPS)}", file=sys.stderr)
        return 2
    if os.environ.get("TRITON_INTERPRET") == "1":
        print("TRITON_INTERPRET=1 is set: nothing can be compiled; unset it", file=sys.stderr)
        return 2
    layout = "{:8} {:27} {:50} {:>5} {:>7} {:>7} {:>6}  {}"
    print(
        layout.format("chip", "kernel", "variant", "regs", "spilled", "shared", "load", "product")
    )
    failed = 0
    for row in report(arguments or CHIPS):
        problems = row.problems
        failed += bool(problems)
        print(
            layout.format(
                row.chip,
                row.build.kernel,
                row.build.variant,
                row.registers,
                row.spilled_bytes,
                row.shared_bytes,
                row.load_bits,
                row.tensor_core or "-",
            )
        )
        for problem in problems:
            print(f"         ^ {problem}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
