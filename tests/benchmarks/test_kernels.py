"""Timing of the kernel cases: order of the calls, keys of a point, and what is not timed."""

from __future__ import annotations

import torch

from benchmarks.kernel_cases import Case
from benchmarks.kernels import by_turns, measure


class Counter:
    """A clock that calls once and takes as many µs as calls came before."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.calls = 0

    def time(self, call):
        call()
        self.calls += 1
        return float(self.calls)


def test_sound_providers_are_interleaved_and_a_wrong_one_is_not_timed() -> None:
    order: list[str] = []

    def provider(name: str, value: int):
        return lambda x: order.append(name) or value

    providers = {"eager": provider("eager", 1), "bad": provider("bad", 2), "ours": provider("o", 1)}
    case = Case(
        "op", {"R": 3}, 4000, 0, 0, lambda device: (0,), providers,
        lambda inputs, out: None if out == 1 else "not 1",
    )  # fmt: skip
    eager, bad, ours = measure(case, Counter(), copy=8.0, repeats=3, compiled=False)
    assert order == ["eager", "bad", "o"] + ["eager", "o"] * 4  # the gate, memory, three times
    assert bad == {"op": "op", "shape": "R=3", "dtype": "bfloat16", "provider": "bad",
                   "fault": "not 1"}  # fmt: skip
    assert (eager["p50_us"], ours["p50_us"]) == (3.0, 4.0)  # of 1, 3, 5 and of 2, 4, 6
    assert ours["gb_per_s"] == 1.0 and ours["copy_share"] == 0.125
    assert eager["peak_extra_bytes"] == 0
    assert eager["p20_us"] < eager["p50_us"] < eager["p80_us"]


def test_every_op_has_its_turn_before_any_has_its_second() -> None:
    def case(op: str, r: int) -> Case:
        return Case(op, {"R": r}, 1, 0, 0, lambda device: (), {}, lambda inputs, out: None)

    order = by_turns([case("a", 1), case("a", 2), case("a", 3), case("b", 1), case("b", 2)])
    assert [f"{c.op}{c.shape['R']}" for c in order] == ["a1", "b1", "a2", "b2", "a3"]
