"""Choose the candidate scope of every method and block size on the dev split.

    python -m benchmarks.scopes --pair tiny [--n 200]

The test split is never looked at here. The choice (highest dev Pass@1, ties to the wider scope)
and every figure behind it go to ``benchmarks/results/scopes-tiny.json``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from tqdm import tqdm

from benchmarks.pareto import BLOCK_SIZES, SCOPES_FILE
from benchmarks.report import Point, PointFile, print_json_line, print_table

SCOPES = (1, 2, 3, 4, 6, 10)


def methods() -> dict[str, dict[str, Any]]:
    """Options of every method whose scope is chosen, by the key that ``pareto`` looks up."""
    out: dict[str, dict[str, Any]] = {}
    for k in (1, *BLOCK_SIZES):
        out[f"base-matched/{k}"] = {
            "schedule": "entropy",
            "tokens_per_step": k,
            "block_size": k,
        }
    for b in BLOCK_SIZES:
        out[f"codila/{b}"] = {"schedule": "static", "block_size": b}
    out["codila-dynamic/4"] = {"schedule": "dynamic", "block_size": 4, "entropy_threshold": 0.2}
    out["threshold/4"] = {"schedule": "threshold", "block_size": 4, "confidence_threshold": 0.9}
    return out


def scopes_of(options: dict[str, Any]) -> tuple[int, ...]:
    """Scopes worth trying: not below K tokens, and wider ones for single tokens."""
    if options["block_size"] == 1:
        return (4, 10, 20, 40)
    return tuple(s for s in SCOPES if s * options["block_size"] <= 64)


def main(
    pair: Annotated[str, typer.Option(help="Bundled pair.")] = "tiny",
    n: Annotated[int, typer.Option(help="Dev problems per point.")] = 200,
    json_file: Annotated[Path, typer.Option("--json", help="Result, resumed.")] = SCOPES_FILE,
) -> None:
    """Measure, choose, write."""
    import codila
    from codila.evaluation.toy import evaluate_toy

    loaded = codila.load(pair)
    saved = PointFile(
        json_file.with_suffix(".points.json"),
        {"pair": pair, "n": n, "split": "dev"},
        ("method", "scope_blocks"),
    )
    todo = [(m, o, s) for m, o in methods().items() for s in scopes_of(o)]
    points: list[Point] = []
    for method, options, scope in tqdm(todo, unit="point"):
        identity = {"method": method, "scope_blocks": scope}
        point = saved.find(identity)
        if point is None:
            result = evaluate_toy(loaded, n=n, split="dev", scope_blocks=scope, **options)
            point = identity | {
                "pass_at_1": result.pass_at_1,
                "syntax_error": result.syntax_error,
                "nfe": result.nfe,
            }
            saved.add(point)
        points.append(point)
    chosen = {}
    for method in methods():
        rows = [p for p in points if p["method"] == method]
        best = max(rows, key=lambda p: (p["pass_at_1"], p["scope_blocks"]))
        chosen[method] = best["scope_blocks"]
    json_file.write_text(
        json.dumps({"n": n, "split": "dev", "chosen": chosen, "points": points}, indent=1) + "\n"
    )
    print_table(
        f"{pair}: scopes on {n} dev problems",
        points,
        {"method": "", "scope_blocks": "", "pass_at_1": ".3f", "syntax_error": ".3f", "nfe": ".1f"},
    )
    print_json_line(points)


if __name__ == "__main__":
    typer.run(main)
