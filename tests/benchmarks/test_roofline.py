"""Floors by hand, the join with measured results, and the committed page."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.kernel_cases import Case, cases
from benchmarks.roofline import CARDS, floor, measured, page, points_of

PAGE = Path(__file__).parents[2] / "docs" / "roofline.md"
A100 = CARDS[0]


def case(bytes_: int, flops: int, exponentials: int) -> Case:
    return Case("op", {"R": 3}, bytes_, flops, exponentials, lambda d: (), {}, lambda i, o: None)


def test_the_committed_page_is_what_the_script_writes() -> None:
    assert PAGE.read_text() == page(points_of(cases(), measured()))


def test_the_slowest_term_binds() -> None:
    assert floor(case(2_039_000_000, 0, 0), A100) == (pytest.approx(1000), "bytes")
    assert floor(case(1, 312_000_000_000, 0), A100) == (pytest.approx(1000), "FLOPs")
    # 108 multiprocessors x 16 a clock x 1410 clocks a µs
    assert floor(case(1, 1, 2_436_480), A100) == (pytest.approx(1.0), "exps")


def test_measured_times_join_by_card_op_and_shape(tmp_path: Path) -> None:
    def result(name: str, device: str, p50: float) -> None:
        points = [
            {"op": "op", "shape": "R=3", "provider": "ours", "p50_us": p50},
            {"op": "op", "shape": "R=3", "provider": "eager", "p50_us": 999.0},
            {"op": "op", "shape": "R=4", "provider": "ours", "fault": "wrong"},
        ]
        saved = {"environment": {"device": device}, "points": points}
        (tmp_path / name).write_text(json.dumps(saved))

    result("kernels-a100.json", "NVIDIA A100-SXM4-80GB", 20.0)
    result("kernels-cpu.json", "cpu", 5.0)
    times = measured(tmp_path)
    assert times == {("A100", "op", "R=3"): 20.0}
    points = points_of([case(20_390_000, 0, 0)], times)
    ratios = {p["card"]: p["measured_over_floor"] for p in points}
    assert ratios == {"A100": pytest.approx(2.0), "H100": None, "H200": None, "MI300X": None}
    assert "A100 2.00" in page(points) and "none yet" not in page(points)
