"""Plot the training curves of a pair from the logs of its two runs.

python -m benchmarks.curves docs/pair/dlm.jsonl docs/pair/ar.jsonl --plot docs/pair/curves.png
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer


def read(path: Path, kind: str) -> list[dict[str, Any]]:
    """Records of a ``log.jsonl`` that hold ``kind`` ("loss" or "validation")."""
    return [r for r in map(json.loads, path.read_text().splitlines()) if kind in r]


def main(
    dlm_log: Annotated[Path, typer.Argument()],
    ar_log: Annotated[Path, typer.Argument()],
    plot_file: Annotated[Path, typer.Option("--plot")] = Path("curves.png"),
) -> None:
    """Draw validation loss against steps: the DLM by mask ratio, the AR models by block size."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 4, figsize=(14, 3.4))
    records = read(dlm_log, "validation")
    for name in records[0]["validation"]:
        axes[0].plot(
            [r["step"] for r in records], [r["validation"][name] for r in records], label=name
        )
    axes[0].set(title="DLM", xlabel="step", ylabel="nats per masked token", yscale="log")
    records = read(ar_log, "validation")
    for axis, size in zip(axes[1:], ("2", "4", "8"), strict=True):
        for name in (k for k in records[0]["validation"] if k.endswith(f"/B{size}")):
            axis.plot(
                [r["step"] for r in records],
                [r["validation"][name] for r in records],
                "k--" if name.startswith("dlm") else "-",
                label=name.partition("/")[0],
            )
        axis.set(title=f"AR, B = {size}", xlabel="step", ylim=(0, None))
    for axis in axes:
        axis.grid(alpha=0.3)
        axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(plot_file, dpi=110)


if __name__ == "__main__":
    typer.run(main)
