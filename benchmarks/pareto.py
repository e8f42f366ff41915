"""Pass@1 against parallelism and speed, of the base DLM and of CoDiLA, on held-out problems.

    python -m benchmarks.pareto --pair tiny [--quick] [--json FILE] [--plot FILE]

The paper's Figures 4 and 5 and Tables 1 and 4 in miniature. Scopes are the ones that
``benchmarks.scopes`` chose on the dev split, per method and block size; the paper's 10 blocks are
measured as well. Every point is saved as it is done; the same command goes on where it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from tqdm import tqdm

from benchmarks.report import Point, PointFile, print_json_line, print_table

CONDITIONINGS = {"soft": "ar", "top-3": "ar-top3", "top-1": "ar-top1"}
BLOCK_SIZES = (2, 4, 8)
CONFIDENCE_THRESHOLDS = (0.5, 0.7, 0.8, 0.9, 0.95)
ENTROPY_THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.5)
SCOPES_FILE = Path(__file__).parent / "results" / "scopes-tiny.json"
PAPER_SCOPE = 10

KEYS = ("method", "tokens_per_step", "conditioning", "scope_blocks", "block_size", "threshold")
COLUMNS = {
    "method": "",
    "conditioning": "",
    "block_size": "",
    "tokens_per_step": "",
    "threshold": "",
    "scope_blocks": "",
    "n": "",
    "pass_at_1": ".3f",
    "pass_low": ".3f",
    "pass_high": ".3f",
    "syntax_error": ".3f",
    "nfe": ".1f",
    "tokens_per_forward": ".2f",
    "tokens_per_second": ".0f",
}


def method_points(scopes: dict[str, int], quick: bool) -> Iterator[tuple[Point, dict[str, Any]]]:
    """Every point to measure: its identity, and the options of ``generate`` that make it."""
    seen = set()

    def point(
        method: str,
        options: dict[str, Any],
        k: int | None,
        threshold: float | None = None,
        conditioning: str | None = None,
    ) -> Iterator[tuple[Point, dict[str, Any]]]:
        identity = {
            "method": method,
            "tokens_per_step": k,
            "conditioning": conditioning,
            "scope_blocks": options["scope_blocks"],
            "block_size": options["block_size"],
            "threshold": threshold,
        }
        key = tuple(identity.values())
        if key not in seen:
            seen.add(key)
            yield identity, options

    for k in (1, *BLOCK_SIZES):
        options = {"schedule": "entropy", "tokens_per_step": k, "block_size": k}
        yield from point(
            "base-published", options | {"confidence_source": "sampled", "scope_blocks": 0}, k
        )
        wanted = {scopes[f"base-matched/{k}"], PAPER_SCOPE}
        if k > 1:
            wanted.add(scopes[f"codila/{k}"])
        for scope in sorted(wanted):
            yield from point("base-matched", options | {"scope_blocks": scope}, k)
    for c in CONFIDENCE_THRESHOLDS:
        options = {"schedule": "threshold", "confidence_threshold": c, "block_size": 4}
        for scope in sorted({scopes["threshold/4"]} if quick else {scopes["threshold/4"], 10}):
            yield from point("threshold", options | {"scope_blocks": scope}, None, c)
    for conditioning in CONDITIONINGS:
        for b in BLOCK_SIZES:
            options = {"schedule": "static", "block_size": b, "conditioning": conditioning}
            wanted = {scopes[f"codila/{b}"]} | (set() if quick else {PAPER_SCOPE})
            for scope in sorted(wanted | ({PAPER_SCOPE} if conditioning == "soft" else set())):
                yield from point("codila", options | {"scope_blocks": scope}, b, None, conditioning)
    for tau in ENTROPY_THRESHOLDS:
        options = {"schedule": "dynamic", "block_size": 4, "entropy_threshold": tau}
        for scope in sorted({scopes["codila-dynamic/4"]} | (set() if quick else {PAPER_SCOPE})):
            yield from point("codila-dynamic", options | {"scope_blocks": scope}, None, tau, "soft")


def measure(pair: Any, identity: Point, options: dict[str, Any], n: int) -> Point:
    """One point: ``n`` problems in batches for the accuracy, 20 one by one for the time."""
    from codila.evaluation.toy import evaluate_toy, time_toy

    result = evaluate_toy(pair, n=n, split="test", **options)
    return identity | {
        "n": n,
        "pass_at_1": result.pass_at_1,
        "pass_low": result.interval[0],
        "pass_high": result.interval[1],
        "syntax_error": result.syntax_error,
        "nfe": result.nfe,
        "tokens_per_forward": result.tokens_per_forward,
        "tokens_per_forward_canvas": result.tokens_per_forward_canvas,
        "tokens_per_second": time_toy(pair, n=20, **options),
        "passed": "".join("01"[p] for p in result.passed),
    }


def read_scopes(path: Path) -> dict[str, int]:
    return json.loads(path.read_text())["chosen"]


def plot(points: list[Point], path: Path) -> None:
    """Pass@1 against tokens per forward, and syntax errors against tokens per step."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    def best(rows: list[Point]) -> list[Point]:
        """Of the scopes measured, the better one at each setting."""
        by: dict[Any, Point] = {}
        for p in rows:
            key = (p["tokens_per_step"], p["threshold"])
            if key not in by or p["pass_at_1"] > by[key]["pass_at_1"]:
                by[key] = p
        return sorted(by.values(), key=lambda p: p["tokens_per_forward"])

    lines = [
        ("base-published", None, "base, published rule", "tab:gray", "s--"),
        ("base-matched", None, "base, matched scope", "black", "o-"),
        ("threshold", None, "confidence threshold", "tab:orange", "^-"),
        ("codila", "soft", "CoDiLA, static", "tab:blue", "o-"),
        ("codila", "top-3", "CoDiLA, top-3", "tab:cyan", "v:"),
        ("codila", "top-1", "CoDiLA, top-1", "tab:purple", "v:"),
        ("codila-dynamic", "soft", "CoDiLA, dynamic", "tab:green", "D-"),
    ]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2))
    for method, conditioning, label, color, style in lines:
        rows = [p for p in points if p["method"] == method and p["conditioning"] == conditioning]
        chosen = best(rows)
        if not chosen:
            continue
        x = [p["tokens_per_forward"] for p in chosen]
        y = [100 * p["pass_at_1"] for p in chosen]
        low = [100 * (p["pass_at_1"] - p["pass_low"]) for p in chosen]
        high = [100 * (p["pass_high"] - p["pass_at_1"]) for p in chosen]
        left.errorbar(x, y, [low, high], fmt=style, color=color, label=label, ms=4, capsize=2, lw=1)
        fixed = sorted(
            (p for p in chosen if p["tokens_per_step"]), key=lambda p: p["tokens_per_step"]
        )
        if fixed:
            right.plot(
                [p["tokens_per_step"] for p in fixed],
                [100 * p["syntax_error"] for p in fixed],
                style,
                color=color,
                label=label,
                ms=4,
                lw=1,
            )
    left.set(xlabel="tokens per DLM forward (up to EOS)", ylabel="Pass@1 (%)", ylim=(0, 100))
    right.set(xlabel="tokens per step K (= B)", ylabel="syntax errors (%)", xscale="log")
    right.set_xticks([1, 2, 4, 8], ["1", "2", "4", "8"])
    right.minorticks_off()
    for axis in (left, right):
        axis.grid(alpha=0.3)
    left.legend(fontsize=8)
    figure.suptitle(f"Bundled pair, {points[0]['n']} held-out problems", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(
    pair: Annotated[str, typer.Option(help="Bundled pair.")] = "tiny",
    quick: Annotated[bool, typer.Option("--quick", help="100 problems, fewer scopes.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Points; resumed if it exists.")
    ] = None,
    plot_file: Annotated[Path, typer.Option("--plot", help="The picture.")] = Path("pareto.png"),
    n: Annotated[int | None, typer.Option(help="Problems per point.")] = None,
) -> None:
    """Measure every point, print the table, draw the plot."""
    import codila

    n = n or (100 if quick else 500)
    pairs = {c: codila.load(pair, ar=folder) for c, folder in CONDITIONINGS.items()}
    saved = PointFile(json_file, {"pair": pair, "n": n, "split": "test"}, KEYS)
    todo = list(method_points(read_scopes(SCOPES_FILE), quick))
    points = []
    for identity, options in tqdm(todo, unit="point"):
        point = saved.find(identity)
        if point is None:
            chosen = pairs[identity["conditioning"] or "soft"]
            point = measure(chosen, identity, options, n)
            saved.add(point)
        points.append(point)
    print_table(f"{pair}: {n} held-out problems", points, COLUMNS)
    plot(points, plot_file)
    print(f"plot: {plot_file}")
    print_json_line([{k: v for k, v in p.items() if k != "passed"} for p in points])


if __name__ == "__main__":
    typer.run(main)
