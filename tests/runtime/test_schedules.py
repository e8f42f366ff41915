"""Every schedule on hand-made statistics, where the right answer can be read off."""

from __future__ import annotations

import math

import pytest
import torch

from codila.config import GenerationConfig
from codila.schedules import SCHEDULES, Statistics
from codila.schedules.sampled import sampled_statistics

NAN = math.nan


def choose(schedule: str, values, masked=None, **options):
    """The choice for one row; every statistic gets ``values`` ``[C, B]``."""
    value = torch.tensor([values], dtype=torch.float64)
    known = torch.ones_like(value, dtype=torch.bool) if masked is None else torch.tensor([masked])
    stats = Statistics(value, value, value, known.bool())
    config = GenerationConfig(schedule=schedule, **options)
    choice = SCHEDULES[schedule].choose(stats, config)
    return choice.block[0].tolist(), choice.length[0].tolist(), choice.slots[0].tolist()


def test_which_schedules_hand_blocks_to_an_ar_model():
    assert {name for name, s in SCHEDULES.items() if s.uses_ar} == {
        "static",
        "dynamic",
        "ar_likelihood",
        "ar_frontier",
    }


def test_static_takes_the_blocks_of_lowest_mean_entropy():
    values = [[1.0, 3.0], [0.5, 0.5], [4.0, 0.0]]
    assert choose("static", values) == ([1], [2], [])
    assert choose("static", values, blocks_per_step=2) == ([1, 0], [2, 2], [])  # a tie: leftmost


def test_static_counts_masked_positions_only():
    values, masked = [[1.0, 9.0], [2.0, 2.0], [0.0, 0.0]], [[1, 0], [1, 1], [0, 0]]
    assert choose("static", values, masked) == ([0], [1], [])
    assert choose("static", values, masked, blocks_per_step=4) == ([0, 1, -1, -1], [1, 2, 0, 0], [])


def test_dynamic_takes_the_longest_prefix_within_the_threshold():
    values = [[0.1, 0.1, 5.0], [0.5, 0.5, 0.5], [0.0, 9.0, 9.0]]
    assert choose("dynamic", values, entropy_threshold=0.5)[:2] == ([1], [3])
    assert choose("dynamic", values, entropy_threshold=0.3)[:2] == ([0], [2])


def test_dynamic_goes_past_a_prefix_that_fails():
    """Running means are not monotone: the longest prefix that fits, not the first failure."""
    values = [[0.9, 0.1, 0.1, 0.1]]
    assert choose("dynamic", values, entropy_threshold=0.4)[:2] == ([0], [4])


def test_dynamic_breaks_ties_by_lower_mean_then_left():
    assert choose("dynamic", [[0.2, 0.2], [0.1, 0.1]], entropy_threshold=0.3)[0] == [1]
    assert choose("dynamic", [[0.2, 0.2], [0.2, 0.2]], entropy_threshold=0.3)[0] == [0]


def test_dynamic_falls_back_to_the_lowest_entropy_of_all_candidates():
    values = [[0.9, 0.3], [0.8, 0.2]]
    assert choose("dynamic", values, entropy_threshold=0.1) == ([-1], [0], [3])
    # a prefix of one is no prefix: the fallback need not be its position
    assert choose("dynamic", [[0.3, 9.0], [9.0, 0.2]], entropy_threshold=0.5) == ([-1], [0], [3])
    assert choose("dynamic", values, [[1, 1], [1, 0]], entropy_threshold=-1) == ([-1], [0], [1])


@pytest.mark.parametrize(
    ("schedule", "expected"), [("entropy", [3, 0]), ("confidence", [1, 2]), ("margin", [1, 2])]
)
def test_ranked_schedules_take_the_best_and_break_ties_to_the_left(schedule, expected):
    values = [[0.2, 0.9], [0.9, 0.1]]
    assert choose(schedule, values, tokens_per_step=2) == ([], [], expected)


@pytest.mark.parametrize("schedule", ["entropy", "confidence", "margin", "threshold"])
def test_known_positions_are_never_chosen_and_what_is_missing_is_minus_one(schedule):
    _, _, slots = choose(schedule, [[0.95, 0.95], [0.95, 0.95]], [[0, 1], [0, 0]])
    assert slots[0] == 1 and set(slots[1:]) <= {-1}
    _, _, slots = choose(schedule, [[0.95, 0.95]], [[0, 0]], tokens_per_step=2)
    assert set(slots) == {-1}


@pytest.mark.parametrize("schedule", ["entropy", "confidence", "margin"])
def test_positions_without_a_number_come_last_but_come(schedule):
    _, _, slots = choose(schedule, [[NAN, 0.5], [NAN, 0.5]], tokens_per_step=4)
    assert slots == [1, 3, 0, 2]
    _, _, slots = choose(schedule, [[0.1, NAN]], [[0, 1]])
    assert slots == [1]


def test_threshold_takes_all_that_exceed_it_and_at_least_the_highest():
    values = [[0.95, 0.2], [0.91, 0.9]]
    assert choose("threshold", values, confidence_threshold=0.9)[2] == [0, 2, -1, -1]
    assert choose("threshold", values, confidence_threshold=1.0)[2] == [0, -1, -1, -1]
    assert choose("threshold", [[NAN, NAN]], confidence_threshold=0.5)[2] == [0, -1]


def sampled(p: list[float], **options):
    arguments = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "banned_ids": ()} | options
    logits = torch.tensor([p], dtype=torch.float64).log()
    arguments.setdefault("valid_vocab", len(p))
    return [value.item() for value in sampled_statistics(logits, **arguments)]


def test_sampled_statistics_are_of_the_distribution_that_is_sampled_from():
    p = [0.1, 0.5, 0.1, 0.3]
    entropy = -(0.625 * math.log(0.625) + 0.375 * math.log(0.375))
    kept = pytest.approx([entropy, 0.625, 0.25])
    assert sampled(p, top_p=0.7) == kept
    assert sampled(p, top_k=2) == kept
    assert sampled(p, top_p=0.5) == pytest.approx([0, 1, 1])  # 0.5 reaches 0.5 by itself
    assert sampled(p, top_p=0.51) == kept  # the token that crosses is kept
    squared = sampled(p, temperature=0.5)
    assert squared[1:] == pytest.approx([25 / 36, 16 / 36])


def test_sampled_statistics_at_temperature_zero_leave_the_logits_as_they_are():
    assert sampled([0.1, 0.6, 0.3], temperature=0.0)[1:] == pytest.approx([0.6, 0.3])


def test_sampled_statistics_leave_out_banned_and_invalid_columns():
    assert sampled([0.2, 0.5, 0.2, 0.1], banned_ids=(1,))[1:] == pytest.approx([0.4, 0.0])
    # a banned column may lie behind the valid ones
    assert sampled([0.6, 0.2, 0.2], valid_vocab=2, banned_ids=(2,))[1:] == pytest.approx(
        [0.75, 0.5]
    )
