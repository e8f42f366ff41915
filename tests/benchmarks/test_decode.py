"""`benchmarks.decode`: the naive loop writes our tokens, times add up, targets are judged."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from benchmarks import decode
from benchmarks.decode_providers import Run, Setting, Stopwatch, dream, naive, ours


@pytest.fixture(scope="module")
def settings() -> list[Setting]:
    return decode.settings_of("tiny", 4, None)


def test_the_naive_loop_writes_what_ours_writes(settings):
    for setting in settings:
        fast, slow = ours(setting), naive(setting)
        assert fast.tokens == slow.tokens and fast.forwards == slow.forwards
        assert -1 not in fast.tokens


@pytest.mark.parametrize("provider", [ours, naive, dream])
def test_a_run_ends_after_its_steps(settings, provider):
    run = provider(dataclasses.replace(settings[0], steps=2))
    assert run.forwards == 2
    assert run.tokens.count(-1) >= 64 - 10
    assert sum(run.parts.values()) <= run.seconds
    assert run.parts["body"] > 0


def test_parts_inside_parts_count_once():
    watch = Stopwatch(torch.device("cpu"))
    now = iter([0.0, 1.0, 3.0, 10.0])
    watch.now = lambda: next(now)
    with watch.part("outer"), watch.part("inner"):
        pass
    assert watch.seconds == {"inner": 2.0, "outer": 8.0}


def test_points_count_tokens_and_never_the_prompt(settings):
    eos = settings[0].dlm.eos_token_id
    runs = [Run([5, 6, eos, eos], 2, 0.5, {"body": 0.3})]
    point = decode.point_of("exact", settings[:1], [runs, runs], peak=2_000_000, floor=0.1)
    assert point["tokens_per_s"] == 8 and point["tokens_per_s_eos"] == 6
    assert point["step_ms"] == 250 and point["over_floor"] == pytest.approx(2.5)
    assert point["body_ms"] == 150 and point["not_body"] == pytest.approx(0.4)


def test_targets_are_met_or_short():
    def point(provider: str, rate: float, peak: float = 1.0) -> dict:
        return {"provider": provider, "block_size": 4, "canvas": 256, "tokens_per_s": rate,
                "peak_extra_mb": peak}  # fmt: skip

    points = [point("exact", 10), point("naive", 5, 4.0), point("dual", 13), point("dream", 1)]
    assert [line.split()[0] for line in decode.targets("cpu", points, {4: True})] == [
        "met", "SHORT", "met", "met", "SHORT",
    ]  # fmt: skip
    assert decode.targets("tiny", points[:2], {4: False})[0].startswith("SHORT")


def test_the_floor_of_a_step_is_below_its_time(settings):
    bandwidth, flops = decode.machine_rates(torch.device("cpu"), torch.float32)
    assert bandwidth > 1e8 and flops > 1e8
    run = ours(dataclasses.replace(settings[0], steps=2))
    assert 0 < decode.floor_seconds(settings[0], bandwidth, flops) < run.seconds
