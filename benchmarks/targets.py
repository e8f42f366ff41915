"""What the bundled pair is held to, read from a finished ``benchmarks.pareto`` file.

    python -m benchmarks.targets benchmarks/results/pareto-tiny.json

One line per claim: the figure, its 95 % interval (paired differences of the same problems,
Newcombe's method 10), and whether it is met. CoDiLA's scopes are those chosen on the dev split; a
base counts with the best of all its scopes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.pareto import BLOCK_SIZES, SCOPES_FILE, at_chosen_scope, read_scopes
from benchmarks.report import Point, print_json_line, print_table
from codila.evaluation.metrics import paired_difference_interval

COLUMNS = {"claim": "", "value": "", "interval": "", "target": "", "met": ""}


def outcomes(point: Point) -> list[bool]:
    return [c == "1" for c in point["passed"]]


def percent(x: float) -> str:
    return f"{100 * x:.1f}"


def compare(claim: str, ours: Point, theirs: Point, at_least: float) -> dict[str, Any]:
    """Difference of Pass@1 in points, against a target."""
    difference = ours["pass_at_1"] - theirs["pass_at_1"]
    low, high = paired_difference_interval(outcomes(ours), outcomes(theirs))
    return {
        "claim": claim,
        "value": f"{percent(ours['pass_at_1'])} - {percent(theirs['pass_at_1'])} = "
        f"{100 * difference:+.1f}",
        "interval": f"[{100 * low:+.1f}, {100 * high:+.1f}]",
        "target": f">= {100 * at_least:+.0f}",
        "met": "yes" if difference >= at_least else "no",
    }


def claims(points: list[Point], scopes: dict[str, int]) -> list[dict[str, Any]]:
    """Every target of the pair."""

    def bases(k: int) -> list[Point]:
        return [
            p
            for p in points
            if p["method"] in ("base-published", "base-matched") and p["tokens_per_step"] == k
        ]

    def better_base(k: int) -> Point:
        return max(bases(k), key=lambda p: p["pass_at_1"])

    def codila(b: int, conditioning: str = "soft") -> Point:
        return next(
            p
            for p in points
            if p["method"] == "codila"
            and p["tokens_per_step"] == b
            and p["conditioning"] == conditioning
            and at_chosen_scope(p, scopes)
        )

    first = better_base(1)
    rows = [
        {
            "claim": "base, K = 1: Pass@1",
            "value": percent(first["pass_at_1"]),
            "interval": f"[{percent(first['pass_low'])}, {percent(first['pass_high'])}]",
            "target": ">= 80",
            "met": "yes" if first["pass_at_1"] >= 0.8 else "no",
        }
    ]
    for b, margin in zip(BLOCK_SIZES, (0.0, 0.2, 0.2), strict=True):
        rows.append(compare(f"CoDiLA over base, B = K = {b}", codila(b), better_base(b), margin))
    ours, theirs = codila(8), min(bases(8), key=lambda p: p["syntax_error"])
    rows.append(
        {
            "claim": "syntax errors at 8, CoDiLA / base",
            "value": f"{percent(ours['syntax_error'])} / {percent(theirs['syntax_error'])}",
            "interval": "",
            "target": "<= 1/2",
            "met": "yes" if ours["syntax_error"] <= theirs["syntax_error"] / 2 else "no",
        }
    )
    rows.append(compare("soft over top-1, B = 4", codila(4), codila(4, "top-1"), 0.08))
    dynamic = [
        p
        for p in points
        if p["method"] == "codila-dynamic"
        and at_chosen_scope(p, scopes)
        and p["pass_at_1"] >= first["pass_at_1"] - 0.04
    ]
    if dynamic:
        best = min(dynamic, key=lambda p: p["nfe"])
        low, high = paired_difference_interval(outcomes(best), outcomes(first))
        share = best["nfe"] / first["nfe"]
        rows.append(
            {
                "claim": f"dynamic, tau = {best['threshold']}, scope {best['scope_blocks']}: "
                "forwards within 4 points of K = 1",
                "value": f"{best['nfe']:.1f} / {first['nfe']:.1f} = {100 * share:.0f} % at "
                f"{percent(best['pass_at_1'])}",
                "interval": f"[{100 * low:+.1f}, {100 * high:+.1f}]",
                "target": "<= 55 %",
                "met": "yes" if share <= 0.55 else "no",
            }
        )
    else:
        rows.append(
            {
                "claim": "dynamic within 4 points of K = 1",
                "value": "none",
                "interval": "",
                "target": "<= 55 %",
                "met": "no",
            }
        )
    return rows


def main(results: Annotated[Path, typer.Argument(help="JSON of benchmarks.pareto.")]) -> None:
    """Print the table of claims."""
    points = json.loads(results.read_text())["points"]
    rows = claims(points, read_scopes(SCOPES_FILE))
    print_table(f"{results.name}: n = {points[0]['n']}", rows, COLUMNS)
    print_json_line(rows)


if __name__ == "__main__":
    typer.run(main)
