"""Train the block-decoding AR model in variants that differ in one thing, on the bundled DLM.

    python -m benchmarks.ablations window [--quick] [--seeds 3] [--solve 200] [--json FILE]

A study trains its variants side by side on the same DLM forwards, in ``runs/ablations``; a run
that was stopped goes on. ``--quick`` shows in minutes that a study works; its figures are of models
that have barely begun to learn. ``--solve`` lets every model decode problems of the dev split too.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from benchmarks.pareto import accuracy
from benchmarks.report import Point, PointFile, print_json_line, print_table
from codila.training.ar import train_ar
from codila.training.ar_recipe import ARRecipe
from codila.training.config import load_recipe
from codila.training.export import export_ars

BUNDLED = "codila/pretrained/tiny/ar"
STEPS, QUICK_STEPS = 300, 20


class Study(NamedTuple):
    """Variants of a recipe, the first of them the one that the others are held against."""

    question: str
    variants: dict[str, dict[str, Any]]
    changes: dict[str, Any] = {}
    steps: int = STEPS


def _size(width: int, layers: int) -> dict[str, Any]:
    return {
        "model": {
            "hidden_size": width,
            "intermediate_size": 2 * width,
            "num_hidden_layers": layers,
            "num_attention_heads": width // 32,
            "num_key_value_heads": width // 96,
        }
    }


STUDIES = {
    "block-size": Study(
        "How does the loss grow with the block, units of 32 tokens masked together (Figure 3)?",
        {f"B{b}": {"block_sizes": [b]} for b in (2, 4, 8, 16, 32)},
        {"mask_unit": 32},
    ),
    "boundaries": Study(
        "Do the tokens around the soft ones help?",
        {"with": {}, "without": {"boundaries": None}},
    ),
    "conditioning": Study(
        "What do soft tokens gain over the k most probable ones, trained for them and not?",
        {"soft": {}} | {f"top-{k}": {"conditioning": f"top-{k}"} for k in (5, 3, 1)},
        {"also_fed": ["top-5", "top-3", "top-1"]},
    ),
    "ar-size": Study(
        "What does a larger AR model gain (Figure 6)?",
        {"192 x 3": {}, "96 x 2": _size(96, 2), "288 x 5": _size(288, 5)},
        {"embeddings_from_dlm": False},
    ),
    "window": Study(
        "Does the AR model gain from soft tokens beside its block?",
        {f"{a}+{b}": {"window": [a, b]} for a, b in ((0, 0), (8, 0), (8, 4), (16, 8))},
        {"init": BUNDLED, "model": None, "tokenizer": None},
        steps=600,
    ),
}


def recipe_of(study: Study, steps: int, seed: int, names: tuple[str, ...]) -> ARRecipe:
    """The bundled recipe as the study changes it; the problems are the seed's own."""
    kept = {name: study.variants[name] for name in names}
    changes = study.changes | {"variants": kept, "steps": steps, "seed": seed}
    changes |= {"eval_every": max(steps // 6, 1), "checkpoint_every": max(steps // 6, 1)}
    changes |= {"warmup": min(50, steps // 4)}
    return load_recipe(ARRecipe, "ar", "tiny", changes)


def validations(folder: Path) -> Iterator[tuple[int, dict[str, float]]]:
    """(step, figures) of a run's log."""
    for line in (folder / "log.jsonl").read_text().splitlines():
        record = json.loads(line)
        if "validation" in record:
            yield record["step"], record["validation"]


def points_of(recipe: ARRecipe, folder: Path, seed: int) -> Iterator[Point]:
    """Per variant and block size: NLL beside the yardsticks, perplexity, curve."""
    logged = list(validations(folder))
    last = logged[-1][1]
    for name in recipe.variants:
        for size in recipe.of(name).block_sizes:
            key = f"{name}/B{size}"
            point: Point = {"seed": seed, "variant": name, "block_size": size, "nll": last[key]}
            point |= {"dlm": last[f"dlm/B{size}"], "perplexity": last[f"{key}/perplexity"]}
            point |= {fed: last[f"{key}/{fed}"] for fed in recipe.also_fed}
            point |= {"curve": [[step, figures[key]] for step, figures in logged]}
            yield point


def solved(folder: Path, n: int, sizes: tuple[int, ...]) -> Iterator[Point]:
    """Pass@1 of a trained model on dev problems: static, and committed by its own likelihood."""
    import codila
    from codila.evaluation.toy import evaluate_toy

    pair = codila.load("tiny", ar=folder)
    for size in sizes:
        for schedule in ("static", "ar_likelihood"):
            options = {"schedule": schedule, "block_size": size, "scope_blocks": 4}
            result = evaluate_toy(pair, n=n, split="dev", **options)
            yield {"schedule": schedule, "block_size": size} | accuracy(result)


def means(points: list[Point], keys: tuple[str, ...], values: tuple[str, ...]) -> list[Point]:
    """Points that agree in ``keys`` become one: the mean of ``values``, and how many there were."""
    groups: dict[tuple[Any, ...], list[Point]] = {}
    for p in points:
        groups.setdefault(tuple(p[k] for k in keys), []).append(p)
    out = []
    for identity, members in groups.items():
        mean = {v: statistics.fmean(p[v] for p in members) for v in values if v in members[0]}
        out.append(dict(zip(keys, identity, strict=True)) | mean | {"seeds": len(members)})
    return out


def verdict(study: Study, points: list[Point], value: str = "nll") -> list[str]:
    """The differences to the first variant per block size, over seeds: mean and range."""
    lines = []
    base = next(iter(study.variants))
    at = {
        (p["seed"], p["variant"], p["block_size"], p.get("schedule")): p[value]
        for p in points
        if value in p
    }
    cells = sorted({(name, b, s or "") for _, name, b, s in at if name != base})
    for name, size, schedule in cells:
        differences = [
            at[seed, n, b, s] - at[seed, base, b, s]
            for seed, n, b, s in at
            if (n, b, s or "") == (name, size, schedule) and (seed, base, b, s) in at
        ]
        if not differences:
            continue
        mean, low, high = statistics.fmean(differences), min(differences), max(differences)
        spread = f" [{low:+.3f}, {high:+.3f}] over {len(differences)} seeds"
        lines.append(
            f"{value}: {name} - {base} at B = {size}{', ' + schedule if schedule else ''}: "
            f"{mean:+.3f}{spread if len(differences) > 1 else ''}"
        )
    return lines


def plot(study: Study, points: list[Point], path: Path) -> None:
    """Validation NLL against steps, one panel per block size; Figure 3 in one panel."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    sizes = sorted({p["block_size"] for p in points})
    alone = all(len({p["variant"] for p in points if p["block_size"] == b}) == 1 for b in sizes)
    panels = [sizes] if alone else [[b] for b in sizes]
    figure, axes = plt.subplots(1, len(panels), figsize=(4.2 * len(panels), 3.2), squeeze=False)
    colours = {name: f"C{i}" for i, name in enumerate(study.variants)}
    for axis, shown in zip(axes[0], panels, strict=True):
        for p in (p for p in points if p["block_size"] in shown):
            label = p["variant"] if p["seed"] == points[0]["seed"] else None
            axis.plot(*zip(*p["curve"], strict=True), color=colours[p["variant"]], label=label)
        title = "" if alone else f"B = {shown[0]}"
        axis.set(title=title, xlabel="step", ylabel="nats per token")
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main(
    study_name: Annotated[str, typer.Argument(metavar="|".join(STUDIES))],
    quick: Annotated[bool, typer.Option("--quick", help=f"{QUICK_STEPS} steps.")] = False,
    steps: Annotated[int | None, typer.Option(help="Steps; default the study's.")] = None,
    seeds: Annotated[int, typer.Option(help="Runs, each with its own problems.")] = 1,
    only: Annotated[str, typer.Option(help="Variants, comma-separated; default all.")] = "",
    solve: Annotated[int, typer.Option(help="Dev problems to decode per setting.")] = 0,
    runs: Annotated[Path, typer.Option(help="Where the runs are kept.")] = Path("runs/ablations"),
    json_file: Annotated[Path | None, typer.Option("--json", help="Result, resumed.")] = None,
    plot_file: Annotated[Path | None, typer.Option("--plot")] = None,
) -> None:
    """Train what is missing, print table and verdict, end with the points as JSON."""
    if study_name not in STUDIES:
        raise SystemExit(f"no study {study_name!r}: one of {', '.join(STUDIES)}")
    study = STUDIES[study_name]
    steps = steps or (QUICK_STEPS if quick else study.steps)
    names = tuple(only.split(",")) if only else tuple(study.variants)
    unknown = sorted(set(names) - set(study.variants))
    if unknown:
        raise SystemExit(f"{study_name} has no variants {unknown}: {', '.join(study.variants)}")
    keys = ("seed", "variant", "block_size", "schedule")
    saved = PointFile(json_file, {"study": study_name, "steps": steps}, keys)
    for seed in range(11, 11 + seeds):
        recipe = recipe_of(study, steps, seed, names)
        missing = [n for n in names if not _has(saved, seed, n, solve)]
        if not missing:
            continue
        folder = runs / f"{study_name}-{steps}" / str(seed)
        training = train_ar(recipe, folder)
        export_ars(training, folder)
        for point in points_of(recipe, folder, seed):
            saved.put(point)
        for name in missing if solve else ():
            sizes = tuple(b for b in recipe.of(name).block_sizes if b > 2)
            for point in solved(folder / name, solve, sizes):
                saved.put({"seed": seed, "variant": name} | point)
    _report(study, saved.points, plot_file)


def _has(saved: PointFile, seed: int, name: str, solve: int) -> bool:
    own = [p for p in saved.points if (p["seed"], p["variant"]) == (seed, name)]
    return any("nll" in p for p in own) and (not solve or any("pass_at_1" in p for p in own))


def _report(study: Study, points: list[Point], plot_file: Path | None) -> None:
    trained = [p for p in points if "nll" in p]
    decoded = [p for p in points if "pass_at_1" in p]
    fed = tuple(k for k in ("top-5", "top-3", "top-1") if k in trained[0])
    values = ("nll", "dlm", "perplexity", *fed)
    columns = {"variant": "", "block_size": ""} | dict.fromkeys(values, ".3f") | {"seeds": ""}
    columns["perplexity"] = ".4g"
    print_table(study.question, means(trained, ("variant", "block_size"), values), columns)
    if decoded:
        identity = ("variant", "block_size", "schedule")
        values = ("pass_at_1", "syntax_error", "nfe")
        columns = dict.fromkeys(identity, "") | dict.fromkeys(values, ".3f") | {"seeds": ""}
        print_table("dev problems", means(decoded, identity, values), columns)
    for line in verdict(study, trained) + verdict(study, decoded, "pass_at_1"):
        print(line)
    if plot_file is not None:
        plot(study, trained, plot_file)
    print_json_line(points)


if __name__ == "__main__":
    typer.run(main)
