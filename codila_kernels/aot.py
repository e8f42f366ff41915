"""Compile every kernel with every config for every chip, without having one, and report resources.

    python -m codila_kernels.aot [chip ...]

For each: registers and spilled bytes per thread, shared memory per program, the widest global load
that the code contains, how many programs one core holds and the share of its warps they are, and
the tensor-core instructions, counted. What a machine without a GPU can
promise is on this list: every config compiles, none spills, none asks for more shared memory than
the chip has, and low-precision products run on tensor cores.

Pointers and strides are declared divisible by 16, as the launcher's specialisation finds them for
torch tensors of real vocabularies; without that the compiler may not load more than an element.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codila_kernels.builds import Build, builds
from codila_kernels.configs import CHIPS, SHARED_MEMORY_LIMIT

_TENSOR_CORE = r"\b(UTC\w*MMA|HGMMA|HMMA|v_mfma_\w+)"
_PRODUCTS = r"\b(?:UTC\w*MMA|HGMMA|HMMA|v_mfma_\w+)"
# A load of global memory, or a bulk copy of it, and its width as the assembly spells it.
_GLOBAL_LOAD = (
    r"\b(?:LDG|LDGSTS)\.(?P<sass>[\w.]+)|\b(?P<bulk>UBLKCP|UTMALDG)\b"
    r"|\b(?:global|buffer)_load(?:_lds)?_(?P<isa>\w+)"
)
_LABEL = re.compile(r"^\s*(\.L_x_\d+|\.LBB\d+_\d+):")
_BRANCH = re.compile(r"\b(?:BRA|s_c?branch\w*)\b.*?(\.L_x_\d+|\.LBB\d+_\d+)")


@dataclass(frozen=True)
class Limits:
    """What one core (multiprocessor or compute unit) holds at a time."""

    registers: int  # 32-bit, of all its threads
    warps: int
    programs: int
    shared_bytes: int
    reserved_bytes: int  # shared memory that the system takes from each program
    warp_size: int
    register_unit: int  # registers of a thread are handed out in multiples of this


LIMITS = {
    "sm_80": Limits(65_536, 64, 32, 164 * 1024, 1024, 32, 8),
    "sm_90": Limits(65_536, 64, 32, 228 * 1024, 1024, 32, 8),
    "sm_100": Limits(65_536, 64, 32, 228 * 1024, 1024, 32, 8),
    "gfx942": Limits(4 * 512 * 64, 32, 32, 64 * 1024, 0, 64, 8),
}
"""Compute capabilities 8.0, 9.0 and 10.0: the table of technical specifications in NVIDIA's CUDA
programming guide. gfx942: AMD's CDNA 3 instruction set guide; four SIMDs of 512 vector registers a
lane and 8 waves each."""


def occupancy(chip: str, registers: int, shared_bytes: int, num_warps: int) -> tuple[int, float]:
    """Programs that one core holds, and the warps they are as a share of the most it can hold.

    Registers are handed out per warp in whole units; scalar registers do not limit gfx942.
    """
    limits = LIMITS[chip]
    unit = limits.register_unit
    per_warp = unit * max(1, -(-registers // unit)) * limits.warp_size
    by_registers = limits.registers // 4 // per_warp * 4 // num_warps  # four schedulers a core
    by_shared = limits.shared_bytes // max(1, shared_bytes + limits.reserved_bytes)
    programs = min(by_registers, by_shared, limits.warps // num_warps, limits.programs)
    return programs, programs * num_warps / limits.warps


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
    products: int  # tensor-core instructions in the code
    wide_share: float  # of the bytes that the hot loop loads, those by loads of 16 bytes a thread

    @property
    def occupancy(self) -> tuple[int, float]:
        """Programs per core, and their share of its warps; see `occupancy`."""
        warps = dict(self.build.options)["num_warps"]
        return occupancy(self.chip, self.registers, self.shared_bytes, warps)

    @property
    def problems(self) -> list[str]:
        found = []
        if self.spilled_bytes:
            found.append(f"spills {self.spilled_bytes} bytes per thread")
        if self.shared_bytes > SHARED_MEMORY_LIMIT[self.chip]:
            limit = SHARED_MEMORY_LIMIT[self.chip]
            found.append(f"asks for {self.shared_bytes} bytes of shared memory of {limit}")
        if self.occupancy[0] < 1:
            found.append("has more registers or shared memory than one core holds")
        if self.build.on_tensor_cores and not self.tensor_core:
            found.append("has no tensor-core product")
        reads_much = self.build.on_tensor_cores or self.build.kernel.endswith("split")
        banned = dict(self.build.constants).get("HAS_BANNED")  # its bits are read word by word
        if reads_much and not banned and self.wide_share <= 0.5:
            found.append("loads most bytes of its hot loop less than 16 at a time")
        return found


_DIVISIBLE = (
    "embedding", "logits_stride", "table_stride", "chunk", "width",
    "vocabulary", "hidden_size", "hidden_stride", "head_stride",
)  # fmt: skip


def compile_build(build: Build, chip: str) -> Resources:
    """Compile one build for one chip and read its resources; raises where it does not compile."""
    import triton
    from triton.backends.compiler import GPUTarget

    function = build.function()
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
    product = re.search(_TENSOR_CORE, text)
    return Resources(
        chip=chip,
        build=build,
        registers=registers,
        spilled_bytes=spilled,
        shared_bytes=compiled.metadata.shared,
        tensor_core=product.group(1) if product else "",
        load_bits=max(load_widths(text), default=32),
        wide_share=wide_share(hot_loop(text)),
        products=len(re.findall(_PRODUCTS, text)),
    )


def load_widths(text: str) -> list[int]:
    """Bits per thread of every global load in the assembly; 128 for a bulk copy."""
    widths = []
    for found in re.finditer(_GLOBAL_LOAD, text):
        if found["sass"] is not None:
            sizes = [int(part) for part in found["sass"].split(".") if part in ("64", "128")]
            narrow = re.search(r"\b[US](8|16)\b", found["sass"])
            widths.append(sizes[0] if sizes else int(narrow[1]) if narrow else 32)
        elif found["isa"] is not None:
            words = re.match(r"dwordx(\d)", found["isa"])
            bytes_ = {"ubyte": 8, "sbyte": 8, "ushort": 16, "sshort": 16, "short": 16}
            kind = found["isa"].split("_")[0]
            widths.append(32 * int(words[1]) if words else bytes_.get(kind, 32))
        else:
            widths.append(128)
    return widths


def hot_loop(text: str) -> str:
    """The part of the assembly between a backward branch and its label with most matrix products.

    Where no loop has a product it is the longest loop that loads, else the whole text.
    """
    lines = text.splitlines()
    labels: dict[str, int] = {}
    loops = []
    for number, line in enumerate(lines):
        if label := _LABEL.match(line):
            labels[label[1]] = number
        elif (branch := _BRANCH.search(line)) and branch[1] in labels:
            loop = "\n".join(lines[labels[branch[1]] : number + 1])
            loops += [loop] * bool(load_widths(loop) or re.search(_PRODUCTS, loop))
    return max(loops, key=lambda loop: (len(re.findall(_PRODUCTS, loop)), len(loop)), default=text)


def wide_share(text: str) -> float:
    """Share of the loaded bytes that loads of 16 bytes a thread bring; 1 where none is loaded."""
    widths = load_widths(text)
    return sum(w for w in widths if w >= 128) / sum(widths) if widths else 1.0


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


def compile_all(pairs: Sequence[tuple[Build, str]]) -> Iterator[Resources]:
    """Resources of (build, chip) pairs, in order, compiled in one process per processor."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=os.cpu_count(), mp_context=spawn) as pool:
        yield from pool.map(compile_build, *zip(*pairs, strict=True))


def main(arguments: Sequence[str]) -> int:
    unknown = [chip for chip in arguments if chip not in CHIPS]
    if unknown:
        print(f"unknown chip {unknown[0]!r}; expected any of {', '.join(CHIPS)}", file=sys.stderr)
        return 2
    if os.environ.get("TRITON_INTERPRET") == "1":
        print("TRITON_INTERPRET=1 is set: nothing can be compiled; unset it", file=sys.stderr)
        return 2
    layout = "{:8} {:27} {:50} {:>5} {:>7} {:>7} {:>6} {:>8} {:>5}  {}"
    print(
        layout.format(
            "chip",
            "kernel",
            "variant",
            "regs",
            "spilled",
            "shared",
            "load",
            "programs",
            "warps",
            "product",
        )  # fmt: skip
    )
    failed = 0
    for row in compile_all([(b, chip) for chip in arguments or CHIPS for b in builds(chip)]):
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
                row.occupancy[0],
                f"{row.occupancy[1]:.0%}",
                f"{row.products} x {row.tensor_core}" if row.tensor_core else "-",
            )
        )
        for problem in problems:
            print(f"         ^ {problem}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
