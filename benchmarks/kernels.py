"""Microbenchmarks of the ops: correct first, then timed, interleaved and with cold caches.

    python -m benchmarks.kernels [--op NAME] [--device cuda|cpu] [--json FILE] [--quick]
                                [--budget SECONDS]

A provider that fails its gate is reported and not timed. Microseconds are of one call; GB/s are of
the compulsory bytes, and their share of the bandwidth that a large copy reaches in the same run.
`peak_extra_bytes` is memory beyond inputs and outputs. On a CPU the rows end at 80 and the canvas
is shorter (L in the shape). Within a budget, the first size of every op comes before the second of
any; a result file is written after every case, so that an interrupted run leaves what it has.
"""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.kernel_cases import CANVAS, CPU_CANVAS, CPU_ROWS, QUICK_ROWS, ROWS, Case, cases
from benchmarks.memory import peak_extra_bytes
from benchmarks.report import Point, environment, print_json_line, print_table, write_atomically

COLUMNS = {
    "op": "",
    "shape": "",
    "provider": "",
    "p20_us": ".0f",
    "p50_us": ".0f",
    "p80_us": ".0f",
    "gb_per_s": ".1f",
    "copy_share": ".2f",
    "peak_extra_bytes": ",d",
    "ratio_to_eager": ".2f",
    "fault": "",
}


class Clock:
    """Times single calls in µs; a large buffer is overwritten before each, so caches are cold."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.cuda = device.type == "cuda"
        # on a GPU also long enough that the launches behind it are queued when it ends
        self.flush = torch.empty(2**30 if self.cuda else 2**26, dtype=torch.uint8, device=device)

    def time(self, call: Callable[[], Any]) -> float:
        self.flush.zero_()
        if not self.cuda:
            start = time.perf_counter()
            call()
            return (time.perf_counter() - start) * 1e6
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e3

    def copy_gb_per_s(self) -> float:
        """Bytes read and written per second by the copy of half the buffer onto the other."""
        source, target = self.flush.chunk(2)
        times = sorted(self.time(lambda: target.copy_(source)) for _ in range(10))
        return 2 * source.numel() / times[5] / 1e3


def quantile(values: list[float], q: float) -> float:
    return torch.tensor(values, dtype=torch.float64).quantile(q).item()


def measure(case: Case, clock: Clock, copy: float, repeats: int, compiled: bool) -> list[Point]:
    """One point per provider of a case; those that fail the gate carry a `fault` and no times."""
    inputs = case.inputs(clock.device)
    providers = dict(case.providers)
    if compiled and case.compiled:
        torch.compiler.reset()
        providers["compile"] = torch.compile(case.providers["eager"], dynamic=False)
    identity = {"op": case.op, "shape": case.label, "dtype": case.dtype}
    points = {name: identity | {"provider": name} for name in providers}
    for name, provider in providers.items():
        fault = case.fault(inputs, provider(*inputs))
        if fault is not None:
            points[name]["fault"] = fault
    sound = {name: p for name, p in providers.items() if "fault" not in points[name]}
    for name, provider in sound.items():
        extra = peak_extra_bytes(lambda p=provider: p(*inputs), clock.device)
        points[name]["peak_extra_bytes"] = extra
    times: dict[str, list[float]] = {name: [] for name in sound}
    for _ in range(repeats):
        for name, provider in sound.items():
            times[name].append(clock.time(lambda p=provider: p(*inputs)))
    for name, values in times.items():
        p20, p50, p80 = (quantile(values, q) for q in (0.2, 0.5, 0.8))
        rate = case.bytes_ / p50 / 1e3
        points[name] |= {"p20_us": p20, "p50_us": p50, "p80_us": p80}
        points[name] |= {"gb_per_s": rate, "copy_share": rate / copy}
        if "eager" in times:
            points[name]["ratio_to_eager"] = p50 / quantile(times["eager"], 0.5)
    return list(points.values())


def by_turns(chosen: list[Case]) -> list[Case]:
    """The first case of each op, then the second of each, and so on."""
    seen: dict[str, int] = {}
    turns = []
    for case in chosen:
        turns.append(seen.get(case.op, 0))
        seen[case.op] = turns[-1] + 1
    return [case for _, case in sorted(zip(turns, chosen, strict=True), key=lambda pair: pair[0])]


def kernel_environment() -> dict[str, Any]:
    """`environment`, and the versions of what compiles and runs the kernels; None where absent."""
    about = environment()
    try:
        about["triton"] = importlib.metadata.version("triton")
    except importlib.metadata.PackageNotFoundError:
        about["triton"] = None
    about |= {"card": None, "driver": None, "cuda": torch.version.cuda, "hip": torch.version.hip}
    if torch.cuda.is_available():
        about["card"] = torch.cuda.get_device_name()
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        try:
            told = subprocess.run(query, capture_output=True, text=True, check=True, timeout=20)
            about["driver"] = told.stdout.split()[0]
        except (OSError, subprocess.SubprocessError, IndexError):
            pass
    return about


def main(
    op: Annotated[list[str] | None, typer.Option(help="Only these ops.")] = None,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cpu",
    json_file: Annotated[Path | None, typer.Option("--json", help="Environment, points.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Two numbers of rows.")] = False,
    repeats: Annotated[int, typer.Option(help="Calls per provider; default 5 or 50.")] = 0,
    compiled: Annotated[bool | None, typer.Option("--compile/--no-compile")] = None,
    budget: Annotated[float | None, typer.Option(help="Begin no case after SECONDS.")] = None,
) -> None:
    """Measure every case, print the table, end with the points as JSON; exit 1 on a fault."""
    started = time.monotonic()
    on_gpu = device == "cuda"
    if on_gpu and not torch.cuda.is_available():
        raise typer.BadParameter("--device cuda, but torch finds no GPU here")
    rows = QUICK_ROWS if quick else ROWS if on_gpu else CPU_ROWS
    every = list(cases(rows, canvas=CANVAS if on_gpu else CPU_CANVAS))
    known = {case.op for case in every}
    if op and not set(op) <= known:
        raise typer.BadParameter(f"--op is {op}, the ops are {sorted(known)}")
    chosen = by_turns([case for case in every if not op or case.op in op])
    clock = Clock(torch.device(device))
    copy = clock.copy_gb_per_s()
    about = kernel_environment() | {"copy_gb_per_s": copy}
    points: list[Point] = []
    left: list[str] = []
    with torch.no_grad():
        for case in chosen:
            if budget is not None and time.monotonic() - started >= budget:
                left.append(f"{case.op} {case.label}")
                continue
            compile_it = on_gpu if compiled is None else compiled
            points += measure(case, clock, copy, repeats or (50 if on_gpu else 5), compile_it)
            if json_file is not None:
                saved = {"environment": about, "points": points}
                write_atomically(json_file, json.dumps(saved, indent=1) + "\n")
    print_table(f"kernels on {device}, copy {copy:.0f} GB/s", points, COLUMNS)
    if left:
        print(f"not measured, as {budget:.0f} s were over: {', '.join(left)}")
    print_json_line(points)
    raise typer.Exit(1 if any("fault" in p for p in points) else 0)


if __name__ == "__main__":
    typer.run(main)
