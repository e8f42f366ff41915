"""What the ways to do less work cost and gain: Pass@1, forwards and time of the bundled pair.

    python -m benchmarks.modes [--n 500] [--json FILE]

One block a step against several, against drafts that the AR model judges, and no cache against kept
keys. Cached modes decode one problem at a time, as rows of a batch share the recomputed window.
Every point is saved as it is done; the same command goes on where it stopped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.pareto import accuracy
from benchmarks.report import Point, PointFile, print_json_line, print_table
from benchmarks.workers import Task, cores, evaluate_all, settings

KEYS = ("mode", "block_size")
COLUMNS = {
    "mode": "", "block_size": "", "pass_at_1": ".3f", "pass_low": ".3f", "pass_high": ".3f",
    "syntax_error": ".3f", "nfe": ".1f", "tokens_per_forward": ".2f", "seconds": ".0f",
}  # fmt: skip
SCOPE = 4  # the bundled pair's own


def mode_tasks() -> list[Task]:
    """Every mode at B = 4 and 8."""
    tasks = []

    def add(mode: str, size: int, **options: Any) -> None:
        given = {"block_size": size, "scope_blocks": SCOPE, "schedule": "static"} | options
        tasks.append(Task({"mode": mode, "block_size": size}, "soft", given))

    for size in (4, 8):
        add("static", size)
        add("static, certain blocks skip the AR model", size, skip_certain=True)
        add("static, 2 blocks", size, blocks_per_step=2)
        add("static, 2 blocks, 1 between", size, blocks_per_step=2, block_gap=1)
        for joint in (1.0, 0.9, 0.5, 0.2):
            add(f"ar_likelihood {joint:g}", size, schedule="ar_likelihood", joint_threshold=joint)
        for joint in (0.9, 0.5):
            add(f"ar_frontier {joint:g}", size, schedule="ar_frontier", joint_threshold=joint)
    for kind, interval in (("prefix", 4), ("dual", 2), ("dual", 4), ("dual", 8)):
        options = {"dlm_cache": kind, "refresh_interval": interval, "batch_size": 1}
        add(f"static, {kind} cache, refresh {interval}", 4, **options)
    add("static, one at a time", 4, batch_size=1)
    return tasks


def main(
    n: Annotated[int, typer.Option(help="Test problems per point.")] = 500,
    json_file: Annotated[Path | None, typer.Option("--json", help="Result, resumed.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Processes; default one per core.")] = None,
) -> None:
    """Measure what is missing, print the table, end with the points as JSON."""
    saved = PointFile(json_file, settings("tiny", n, "test"), KEYS)
    todo = [task for task in mode_tasks() if saved.find(task.identity) is None]
    for task, result in evaluate_all("tiny", todo, n=n, split="test", jobs=jobs or cores()):
        saved.put(task.identity | accuracy(result) | {"seconds": result.seconds})
    order = {tuple(task.identity.values()): i for i, task in enumerate(mode_tasks())}
    points: list[Point] = sorted(saved.points, key=lambda p: order[tuple(p[k] for k in KEYS)])
    print_table(f"tiny: ways to do less work, {n} test problems", points, COLUMNS)
    print_json_line(points)


if __name__ == "__main__":
    typer.run(main)
