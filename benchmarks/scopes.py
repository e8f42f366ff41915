"""Choose the candidate scope of every method and block size on the dev split.

    python -m benchmarks.scopes --pair tiny [--n 200]

The test split is never looked at here. The choice (highest dev Pass@1, ties to the wider scope)
goes to ``benchmarks/results/scopes-tiny.json``, the figures behind it to the ``.points.json``
beside it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.pareto import BLOCK_SIZES, SCOPES_FILE
from benchmarks.report import Point, PointFile, print_json_line, print_table, write_atomically
from benchmarks.workers import Task, cores, evaluate_all, settings

SCOPES = (2, 3, 4, 10)
KEYS = ("method", "scope_blocks")
COLUMNS = {
    "method": "",
    "scope_blocks": "",
    "pass_at_1": ".3f",
    "syntax_error": ".3f",
    "nfe": ".1f",
}


def scope_tasks() -> list[Task]:
    """Every method whose scope is chosen, at every scope worth trying."""
    tasks = []

    def add(method: str, conditioning: str | None, scopes: tuple[int, ...], **options: Any) -> None:
        for scope in scopes:
            identity = {"method": method, "scope_blocks": scope}
            tasks.append(Task(identity, conditioning, options | {"scope_blocks": scope}))

    add("base-matched/1", None, (4, 10, 20, 64), schedule="entropy", block_size=1)
    for k in BLOCK_SIZES:
        options = {"schedule": "entropy", "block_size": k, "tokens_per_step": k}
        add(f"base-matched/{k}", None, SCOPES, **options)
    add("threshold/4", None, SCOPES, schedule="threshold", block_size=4, confidence_threshold=0.9)
    for b in BLOCK_SIZES:
        add(f"codila/{b}", "soft", SCOPES, schedule="static", block_size=b)
    add("codila-dynamic/4", "soft", SCOPES, schedule="dynamic", block_size=4, entropy_threshold=0.6)
    return tasks


def choose(points: list[Point]) -> dict[str, int]:
    """The scope of highest Pass@1 per method; ties go to the wider one."""
    chosen: dict[str, Point] = {}
    for p in points:
        best = chosen.get(p["method"])
        rank = (p["pass_at_1"], p["scope_blocks"])
        if best is None or rank > (best["pass_at_1"], best["scope_blocks"]):
            chosen[p["method"]] = p
    return {method: p["scope_blocks"] for method, p in sorted(chosen.items())}


def main(
    pair: Annotated[str, typer.Option(help="Bundled pair.")] = "tiny",
    n: Annotated[int, typer.Option(help="Dev problems per point.")] = 200,
    json_file: Annotated[Path, typer.Option("--json", help="Result, resumed.")] = SCOPES_FILE,
    base_only: Annotated[bool, typer.Option("--base-only", help="Skip the AR model.")] = False,
    jobs: Annotated[int | None, typer.Option(help="Processes; default one per core.")] = None,
) -> None:
    """Measure, choose, write."""
    points_file = json_file.with_suffix(".points.json")
    saved = PointFile(points_file, settings(pair, n, "dev"), KEYS)
    tasks = [t for t in scope_tasks() if not (base_only and t.conditioning)]
    todo = [t for t in tasks if saved.find(t.identity) is None]
    for task, result in evaluate_all(pair, todo, n=n, split="dev", jobs=jobs or cores()):
        saved.put(
            task.identity
            | {
                "pass_at_1": result.pass_at_1,
                "syntax_error": result.syntax_error,
                "nfe": result.nfe,
            }
        )
    chosen = {"pair": pair, "n": n, "split": "dev", "chosen": choose(saved.points)}
    write_atomically(json_file, json.dumps(chosen, indent=1) + "\n")
    points = sorted(saved.points, key=lambda p: (p["method"], p["scope_blocks"]))
    print_table(f"{pair}: scopes on {n} dev problems", points, COLUMNS)
    print_json_line(points)


if __name__ == "__main__":
    typer.run(main)
