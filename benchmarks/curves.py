"""Plot validation curves of training runs: a panel per DLM log, one per block size of an AR log.

    python -m benchmarks.curves docs/pair/dlm.jsonl docs/pair/ar.jsonl --plot docs/pair/curves.png

An AR panel shows, beside the models, the yardsticks that the log holds: the DLM's own independent
loss on the same blocks (dashed) and each model fed hard tokens (dotted).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, NamedTuple

import typer


class Curve(NamedTuple):
    """A line of a panel: (step, nats per token)."""

    label: str
    style: str
    points: list[tuple[int, float]]


def panels(path: Path) -> dict[str, list[Curve]]:
    """The curves of a run's ``log.jsonl`` by panel title.

    Raises:
        ValueError: a log without validations.
    """
    records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    logged = [(r["step"], r["validation"]) for r in records if "validation" in r]
    if not logged:
        raise ValueError(f"{path}: no validation was logged")
    out: dict[str, list[Curve]] = {}
    for key in dict.fromkeys(key for _, figures in logged for key in figures):
        place = _place(key)
        if place is not None:
            title, label, style = place
            points = [(step, figures[key]) for step, figures in logged if key in figures]
            out.setdefault(title, []).append(Curve(label, style, points))
    return out


def _place(key: str) -> tuple[str, str, str] | None:
    """(panel, label, line style) of a figure; None for those that are left to the log."""
    name, *rest = key.split("/")
    if not rest:
        return ("DLM", key, "-") if name.startswith("nll@") else None
    size, *rest = rest
    if "@" in size:
        return None
    title = f"AR, B = {size[1:]}"
    if not rest:
        return title, name, "k--" if name == "dlm" else "-"
    return (title, f"{name}, fed top-1", ":") if rest == ["top-1"] else None


def main(
    logs: Annotated[list[Path], typer.Argument(help="log.jsonl of a DLM's or an AR run.")],
    plot_file: Annotated[Path, typer.Option("--plot")] = Path("curves.png"),
) -> None:
    """Draw validation loss against steps."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    try:
        shown = [item for log in logs for item in panels(log).items()]
    except (OSError, ValueError) as error:
        raise SystemExit(str(error)) from error
    figure, axes = plt.subplots(1, len(shown), figsize=(3.5 * len(shown), 3.4), squeeze=False)
    for axis, (title, curves) in zip(axes[0], shown, strict=True):
        for curve in curves:
            axis.plot(*zip(*curve.points, strict=True), curve.style, label=curve.label)
        axis.set(title=title, xlabel="step")
        axis.set(**({"yscale": "log"} if title == "DLM" else {"ylim": (0, None)}))
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    axes[0][0].set_ylabel("nats per masked token")
    figure.tight_layout()
    figure.savefig(plot_file, dpi=110)


if __name__ == "__main__":
    typer.run(main)
