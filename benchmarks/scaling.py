"""How the cost of a step grows with canvas, batch, scope and block size: a table and exponents.

    python -m benchmarks.scaling [--json FILE]

A pair of random weights with the real vocabularies (the `cpu` preset of `benchmarks.decode`), one
factor varied at a time from a usual setting. Medians of interleaved rounds; the exponent is the
slope of log time over log factor, least squares, of the whole step and of its parts.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from pathlib import Path
from typing import Annotated, Any

import numpy
import torch
import typer

from benchmarks.decode import PRESETS, random_pair
from benchmarks.decode_providers import Setting, ours
from benchmarks.report import Point, PointFile, print_json_line, print_table

FACTORS: dict[str, tuple[int, ...]] = {
    "canvas": (128, 256, 512, 1024, 2048),
    "batch": (1, 2, 4, 8, 16),
    "scope_blocks": (10, 20, 30, 50),
    "block_size": (1, 2, 4, 8, 16),
}
USUAL = {"canvas": 256, "batch": 1, "scope_blocks": 10, "block_size": 4}
PARTS = ("step", "body", "head", "ar")
COLUMNS = {"factor": "", "value": "d"} | {f"{part}_ms": ".1f" for part in PARTS}


def setting_of(base: Setting, factor: str, value: int, steps: int) -> Setting:
    """The usual setting with one factor changed."""
    values = USUAL | {factor: value}
    prompt = base.prompt.repeat(values.pop("batch"), 1)
    if factor == "scope_blocks":
        values["canvas"] = max(values["canvas"], 4 * value)
    return dataclasses.replace(base, prompt=prompt, steps=steps, **values)


def exponents(points: list[Point]) -> list[Point]:
    """Slope of log milliseconds over log value per factor and part; None where a part is absent."""
    fitted = []
    for factor in FACTORS:
        of = [p for p in points if p["factor"] == factor]
        if len(of) < 2:
            continue
        x = [math.log(p["value"]) for p in of]
        fit: Point = {"factor": factor}
        for part in PARTS:
            times = [p[f"{part}_ms"] for p in of]
            known = all(t > 0 for t in times)
            slope = numpy.polyfit(x, numpy.log(times), 1)[0] if known else None
            fit[part] = None if slope is None else float(slope)
        fitted.append(fit)
    return fitted


def measure(base: Setting, factor: str, steps: int, rounds: int) -> list[Point]:
    """A point per value of a factor, the values taking turns."""
    settings = {value: setting_of(base, factor, value, steps) for value in FACTORS[factor]}
    times: dict[int, dict[str, list[float]]] = {
        value: {part: [] for part in PARTS} for value in settings
    }
    for _ in range(rounds):
        for value, setting in settings.items():
            run = ours(setting)
            parts = run.parts | {"step": run.seconds}
            for part in PARTS:
                times[value][part].append(parts.get(part, 0.0) / run.forwards * 1e3)
    return [
        {"factor": factor, "value": value}
        | {f"{part}_ms": statistics.median(each[part]) for part in PARTS}
        for value, each in times.items()
    ]


def main(
    steps: Annotated[int, typer.Option(help="Steps of a run.")] = 3,
    rounds: Annotated[int, typer.Option(help="Runs of every value.")] = 3,
    json_file: Annotated[Path | None, typer.Option("--json", help="Result, resumed.")] = None,
) -> None:
    """Measure factor by factor, print the tables, end with the points as JSON."""
    about: dict[str, Any] = {"usual": USUAL, "steps": steps, "rounds": rounds}
    saved = PointFile(json_file, about, ("factor", "value"))
    dlm, ar = random_pair(PRESETS["cpu"])
    prompt = torch.randint(1000, 100_000, (1, PRESETS["cpu"].prompt))
    base = Setting(dlm, ar, prompt, USUAL["canvas"], USUAL["block_size"])
    for factor in FACTORS:
        if all(saved.find({"factor": factor, "value": v}) for v in FACTORS[factor]):
            continue
        for point in measure(base, factor, steps, rounds):
            saved.put(point)
    print_table("ms per step", saved.points, COLUMNS)
    fitted = exponents(saved.points)
    print_table("exponents", fitted, {"factor": ""} | dict.fromkeys(PARTS, ".2f"))
    print_json_line(saved.points)


if __name__ == "__main__":
    typer.run(main)
