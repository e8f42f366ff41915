"""The least time that each op can take on a card, from the work that its definition asks for.

    python -m benchmarks.roofline [--json FILE] [--write docs/roofline.md]

The floor of a case is the largest of three times: compulsory bytes over bandwidth, multiply-adds
over the dense bfloat16 rate, exponentials over the rate of the special-function units. Sizes and
work are those of `benchmarks.kernel_cases`; measured times, where there are any, are those in
`benchmarks/results/kernels-*.json`. Nothing is measured here, and the page is a function of the
committed files alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.kernel_cases import Case, cases
from benchmarks.report import Point, print_json_line, write_atomically

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Card:
    """Rates of a card as its vendor states them, per second."""

    name: str
    bytes_: float
    flops: float  # bfloat16 matrix products, dense
    units: int  # multiprocessors or compute units
    clock: float  # in Hz, the one that `flops` refers to
    exponentials_per_clock: int = 16  # of one unit
    source: str = ""

    @property
    def exponentials(self) -> float:
        return self.units * self.exponentials_per_clock * self.clock


CARDS = (
    Card(
        "A100", 2.039e12, 312e12, 108, 1.41e9, source="A100 80GB SXM data sheet; A100 white paper"
    ),
    Card("H100", 3.35e12, 989e12, 132, 1.83e9, source="H100 SXM data sheet; H100 white paper"),
    Card("H200", 4.8e12, 989e12, 132, 1.83e9, source="H200 SXM data sheet; clock as H100"),
    Card("MI300X", 5.3e12, 1307e12, 304, 2.1e9, source="MI300X data sheet; CDNA 3 white paper"),
)


def floor(case: Case, card: Card) -> tuple[float, str]:
    """The least µs that a case can take on a card, and the term that says so."""
    seconds = {
        "bytes": case.bytes_ / card.bytes_,
        "FLOPs": case.flops / card.flops,
        "exps": case.exponentials / card.exponentials,
    }
    term = max(seconds, key=lambda name: seconds[name])  # the first of equals
    return seconds[term] * 1e6, term


def measured(folder: Path = RESULTS) -> dict[tuple[str, str, str], float]:
    """Median µs of ours by (card, op, shape), from the committed results of known cards."""
    found: dict[tuple[str, str, str], float] = {}
    for path in sorted(folder.glob("kernels-*.json")):
        saved: dict[str, Any] = json.loads(path.read_text())
        device = str(saved["environment"]["device"])
        card = next((c.name for c in CARDS if c.name in device), None)
        for point in saved["points"] if card else ():
            if point["provider"] == "ours" and "p50_us" in point:
                found[str(card), point["op"], point["shape"]] = point["p50_us"]
    return found


def points_of(chosen: Iterable[Case], times: dict[tuple[str, str, str], float]) -> list[Point]:
    """One point per case and card."""
    points = []
    for case in chosen:
        for card in CARDS:
            floor_us, term = floor(case, card)
            time = times.get((card.name, case.op, case.label))
            points.append(
                {
                    "op": case.op,
                    "shape": case.label,
                    "dtype": case.dtype,
                    "card": card.name,
                    "bytes": case.bytes_,
                    "flops": case.flops,
                    "exponentials": case.exponentials,
                    "floor_us": floor_us,
                    "bound": term,
                    "measured_over_floor": None if time is None else time / floor_us,
                }
            )
    return points


_HEAD = """# The floor under each op

Written by `python -m benchmarks.roofline --write docs/roofline.md`; edit the script, not this.

No case can take less than the largest of three times: **bytes** (every input read once, every
output written once) over memory bandwidth; **FLOPs** (two per multiply-add of a matrix product)
over the dense bfloat16 rate; **exps** (one exponential per probability) over the rate of the
special-function units. The rates are spec-sheet numbers, none was measured: a real copy reaches
less than the stated bandwidth, so a kernel above its floor may move bytes as fast as the card can.
Launches are not in the floor, and caches are taken to be cold.

"""

_RATES = """
The rates come from the vendors' documents named above. The clock is the one at which the tensor
cores reach the stated FLOP/s: on NVIDIA's cards four a multiprocessor, each with 256 (A100) or 512
(H100, H200) multiply-adds a clock. Exponentials: 16 a clock and multiprocessor, from the table of
arithmetic throughput in NVIDIA's CUDA programming guide (compute capabilities 8.0 and 9.0). For
MI300X, 16 a clock and compute unit (a quarter of 64 lanes of single precision) is an assumption.

Each cell below is the floor in µs and the term that binds. *Measured / floor* is the median time of
this package's kernel over that floor, where a result is committed in `benchmarks/results/`; "none
yet" means that nothing was measured for that row.
"""


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def page(points: Sequence[Point]) -> str:
    """The points as a page in Markdown."""
    rates = [
        (
            card.name,
            f"{card.bytes_ / 1e12:.2f}",
            f"{card.flops / 1e12:.0f}",
            str(card.units),
            f"{card.clock / 1e9:.2f}",
            f"{card.exponentials / 1e12:.2f}",
            card.source,
        )
        for card in CARDS
    ]
    head = ("card", "TB/s", "bf16 TFLOP/s", "units", "GHz", "Texp/s", "documents")
    parts = [_HEAD, _table(head, rates), _RATES]
    for op in dict.fromkeys(p["op"] for p in points):
        rows = []
        mine = [p for p in points if p["op"] == op]
        for shape in dict.fromkeys(p["shape"] for p in mine):
            cells = [p for p in mine if p["shape"] == shape]
            ratios = [
                f"{p['card']} {p['measured_over_floor']:.2f}"
                for p in cells
                if p["measured_over_floor"] is not None
            ]
            rows.append(
                [
                    shape,
                    _short(cells[0]["bytes"] / 1e6),
                    _short(cells[0]["flops"] / 1e9),
                    _short(cells[0]["exponentials"] / 1e6),
                    *(f"{_short(p['floor_us'])} {p['bound']}" for p in cells),
                    ", ".join(ratios) or "none yet",
                ]
            )
        names = [card.name for card in CARDS]
        head = ("shape", "MB", "GFLOP", "Mexp", *names, "measured / floor")
        parts += [f"\n## {op}, {mine[0]['dtype']}\n\n", _table(head, rows)]
    return "".join(parts)


def main(
    json_file: Annotated[Path | None, typer.Option("--json", help="Cards, points.")] = None,
    write: Annotated[Path | None, typer.Option(help="The page, in Markdown.")] = None,
) -> None:
    """Print the page, or write it; end with the points as JSON."""
    points = points_of(cases(), measured())
    if write is None:
        print(page(points))
    else:
        write_atomically(write, page(points))
    if json_file is not None:
        about = {card.name: vars(card) | {"exponentials": card.exponentials} for card in CARDS}
        write_atomically(json_file, json.dumps({"cards": about, "points": points}, indent=1) + "\n")
    print_json_line(points)


if __name__ == "__main__":
    typer.run(main)
