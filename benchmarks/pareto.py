"""Pass@1 against parallelism and speed, of the base DLM and of CoDiLA, on held-out problems.

    python -m benchmarks.pareto --pair tiny [--quick] [--json FILE] [--plot FILE]

The paper's Figures 4 and 5 and Tables 1 and 4 in miniature. Scopes are the ones that
``benchmarks.scopes`` chose on the dev split, per method and block size; the bases and static CoDiLA
are measured at the paper's 10 blocks as well. Every point is saved as it is done; the same command
goes on where it stopped.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from tqdm import tqdm

from benchmarks.report import Point, PointFile, print_json_line, print_table
from benchmarks.workers import AR_FOLDERS, Task, cores, evaluate_all, load_pair, settings

BLOCK_SIZES = (2, 4, 8)
CONFIDENCE_THRESHOLDS = (0.5, 0.7, 0.8, 0.9, 0.95)
ENTROPY_THRESHOLDS = (0.1, 0.3, 0.6, 1.0, 1.5)
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


def method_tasks(scopes: dict[str, int]) -> list[Task]:
    """Every point to measure: its identity, and the options of ``generate`` that make it.

    Scopes that were not chosen yet are left out. The paper's scope is measured beside the chosen
    one for the bases and for static CoDiLA with soft conditioning.
    """
    tasks: dict[tuple[Any, ...], Task] = {}

    def add(
        method: str,
        options: dict[str, Any],
        scope_choices: set[int | None],
        *,
        k: int | None = None,
        threshold: float | None = None,
        conditioning: str | None = None,
    ) -> None:
        for scope in sorted(s for s in scope_choices if s is not None):
            identity = {
                "method": method,
                "tokens_per_step": k,
                "conditioning": conditioning,
                "scope_blocks": scope,
                "block_size": options["block_size"],
                "threshold": threshold,
            }
            task = Task(identity, conditioning, options | {"scope_blocks": scope})
            tasks.setdefault(tuple(identity.values()), task)

    for k in (1, *BLOCK_SIZES):
        options = {"schedule": "entropy", "tokens_per_step": k, "block_size": k}
        add("base-published", options | {"confidence_source": "sampled"}, {0}, k=k)
        own = {scopes.get(f"base-matched/{k}"), scopes.get(f"codila/{k}"), PAPER_SCOPE}
        add("base-matched", options, own, k=k)
    for b in BLOCK_SIZES:
        for conditioning in AR_FOLDERS:
            options = {"schedule": "static", "block_size": b, "conditioning": conditioning}
            also = PAPER_SCOPE if conditioning == "soft" else None
            chosen = {scopes.get(f"codila/{b}"), also}
            add("codila", options, chosen, k=b, conditioning=conditioning)
    for tau in ENTROPY_THRESHOLDS:
        options = {"schedule": "dynamic", "block_size": 4, "entropy_threshold": tau}
        chosen = {scopes.get("codila-dynamic/4")}
        add("codila-dynamic", options, chosen, threshold=tau, conditioning="soft")
    for c in CONFIDENCE_THRESHOLDS:
        options = {"schedule": "threshold", "confidence_threshold": c, "block_size": 4}
        add("threshold", options, {scopes.get("threshold/4")}, threshold=c)
    return list(tasks.values())


def accuracy(result: Any) -> Point:
    """The part of a point that 500 problems in batches give."""
    return {
        "n": result.n,
        "pass_at_1": result.pass_at_1,
        "pass_low": result.interval[0],
        "pass_high": result.interval[1],
        "syntax_error": result.syntax_error,
        "nfe": result.nfe,
        "tokens_per_forward": result.tokens_per_forward,
        "tokens_per_forward_canvas": result.tokens_per_forward_canvas,
        "passed": "".join("01"[p] for p in result.passed),
    }


def measure_speed(pair: str, tasks: Sequence[Task], saved: PointFile, n: int = 20) -> None:
    """Tokens per second of every point: batch 1, one thread, nothing beside it."""
    import torch

    from codila.evaluation.toy import time_toy

    torch.set_num_threads(1)
    todo = [t for t in tasks if "tokens_per_second" not in (saved.find(t.identity) or {})]
    for task in tqdm(todo, unit="timing"):
        point = saved.find(task.identity)
        assert point is not None
        speed = time_toy(load_pair(pair, task.conditioning), n=n, **task.options)
        saved.put(point | {"tokens_per_second": speed})


def read_scopes(path: Path) -> dict[str, int]:
    return json.loads(path.read_text())["chosen"]


def at_chosen_scope(point: Point, scopes: dict[str, int]) -> bool:
    """Whether the point's scope is the one that the dev split chose for its method and size."""
    size = point["tokens_per_step"] or point["block_size"]
    chosen = scopes.get(f"{point['method']}/{size}", 0)  # the published rule has one scope: all
    return point["scope_blocks"] == chosen


def plot(points: list[Point], scopes: dict[str, int], path: Path) -> None:
    """Pass@1 against tokens per forward, and syntax errors against tokens per step.

    Each method at the scopes chosen on the dev split; the others are in the table only.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    points = [p for p in points if at_chosen_scope(p, scopes)]
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
        if not rows:
            continue
        chosen = sorted(rows, key=lambda p: p["tokens_per_forward"])
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
    figure.suptitle(
        f"Bundled pair, {points[0]['n']} held-out problems, scopes chosen on dev", fontsize=10
    )
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    plt.close(figure)


def main(
    pair: Annotated[str, typer.Option(help="Bundled pair.")] = "tiny",
    quick: Annotated[bool, typer.Option("--quick", help="100 problems.")] = False,
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Points; resumed if it exists.")
    ] = None,
    plot_file: Annotated[Path, typer.Option("--plot", help="The picture.")] = Path("pareto.png"),
    n: Annotated[int | None, typer.Option(help="Problems per point.")] = None,
    method: Annotated[list[str] | None, typer.Option(help="Only these methods.")] = None,
    jobs: Annotated[int | None, typer.Option(help="Processes; default one per core.")] = None,
) -> None:
    """Measure every point, print the table, draw the plot."""
    n = n or (100 if quick else 500)
    saved = PointFile(json_file, settings(pair, n, "test"), KEYS)
    scopes = read_scopes(SCOPES_FILE)
    tasks = method_tasks(scopes)
    tasks = [t for t in tasks if not method or t.identity["method"] in method]
    todo = [t for t in tasks if saved.find(t.identity) is None]
    todo.sort(key=lambda t: not at_chosen_scope(t.identity, scopes))  # what is plotted first
    for task, result in evaluate_all(pair, todo, n=n, split="test", jobs=jobs or cores()):
        saved.put(task.identity | accuracy(result))
    measure_speed(pair, tasks, saved)
    points = [p for p in (saved.find(t.identity) for t in tasks) if p is not None]
    print_table(f"{pair}: {n} held-out problems", points, COLUMNS)
    plot(points, scopes, plot_file)
    print(f"plot: {plot_file}")
    print_json_line([{k: v for k, v in p.items() if k != "passed"} for p in points])


if __name__ == "__main__":
    typer.run(main)
