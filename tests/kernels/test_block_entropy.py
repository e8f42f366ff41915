"""`block_entropy` against plain loops."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_definitions import block_choice

import codila_kernels as ck

# Eighths add without rounding, so that ties are ties in every arithmetic.
entropies = st.one_of(
    st.integers(0, 24).map(lambda n: n / 8), st.sampled_from([math.nan, math.inf, 0.0])
)


@st.composite
def candidates(draw):
    n, c, b = draw(st.integers(1, 3)), draw(st.integers(1, 5)), draw(st.integers(1, 4))
    entropy = [[[draw(entropies) for _ in range(b)] for _ in range(c)] for _ in range(n)]
    density = draw(st.sampled_from([0, 1, 2, 3]))
    masked = [
        [[draw(st.integers(0, 3)) <= density - 1 or density == 3 for _ in range(b)]
         for _ in range(c)]
        for _ in range(n)
    ]  # fmt: skip
    return entropy, masked


@settings(max_examples=300, deadline=None)
@given(
    candidates(),
    st.sampled_from(["static", "dynamic"]),
    st.integers(1, 6),
    st.sampled_from([-1.0, 0.0, 0.5, 1.0, 1.75, math.inf, -math.inf]),
)
def test_matches_plain_loops(case, mode, blocks, threshold):
    entropy, masked = case
    limit = threshold if mode == "dynamic" else None
    got = ck.block_entropy(
        torch.tensor(entropy), torch.tensor(masked), mode=mode, blocks=blocks, threshold=limit
    )
    for n in range(len(entropy)):
        means, chosen, fallback = block_choice(entropy[n], masked[n], mode, blocks, limit)
        width = len(masked[n][0])
        padded = [h + [math.inf] * (width - len(h)) for h in means]
        torch.testing.assert_close(got.prefix_mean[n], torch.tensor(padded), rtol=0, atol=0)
        assert list(zip(got.block[n].tolist(), got.length[n].tolist(), strict=True)) == chosen
        assert got.fallback_slot[n].item() == fallback


def choose(entropy, masked=None, **options):
    entropy = torch.tensor(entropy)
    masked = torch.ones_like(entropy, dtype=torch.bool) if masked is None else torch.tensor(masked)
    choice = ck.block_entropy(entropy, masked, **options)
    return choice.block.tolist(), choice.length.tolist(), choice.fallback_slot.tolist()


def test_longest_prefix_not_first_failure():
    """Running means are not monotone: 2.0 alone fails, with two zeros after it 0.67 passes."""
    assert choose([[[2.0, 0.0, 0.0]]], mode="dynamic", threshold=0.7) == ([[0]], [[3]], [-1])


def test_longest_then_lower_mean_then_leftmost():
    entropy = [[[0.5, 0.5, 9.0], [0.25, 0.25, 9.0], [0.25, 0.25, 9.0], [0.0, 9.0, 9.0]]]
    assert choose(entropy, mode="dynamic", threshold=0.5) == ([[1]], [[2]], [-1])
    assert choose(entropy, mode="dynamic", threshold=0.5, blocks=4) == (
        [[1, 2, 0, 3]],
        [[2, 2, 2, 1]],
        [-1],
    )


def test_best_length_one_falls_back_to_the_surest_position():
    """Not only block heads: slot 5 is the last position of the second block."""
    entropy = [[[0.5, 3.0, 3.0], [3.0, 3.0, 0.25]]]
    assert choose(entropy, mode="dynamic", threshold=0.6) == ([[-1]], [[0]], [5])
    assert choose(entropy, mode="dynamic", threshold=-1.0) == ([[-1]], [[0]], [5])


def test_static_takes_a_single_masked_position():
    """A length of 1 stands: the sampler of the diffusion model fills it."""
    entropy, masked = [[[0.1, 0.1], [2.0, 0.0]]], [[[True, True], [False, True]]]
    assert choose(entropy, masked, mode="static") == ([[1]], [[1]], [-1])


def test_infinite_threshold_equals_static_where_blocks_are_whole(generator):
    entropy = torch.rand(20, 6, 4, generator=generator)
    masked = torch.ones_like(entropy, dtype=torch.bool)
    static = ck.block_entropy(entropy, masked)
    dynamic = ck.block_entropy(entropy, masked, mode="dynamic", threshold=math.inf)
    assert torch.equal(static.block, dynamic.block) and torch.equal(static.length, dynamic.length)


@pytest.mark.parametrize("options", [dict(), dict(mode="dynamic", threshold=1.0)])
def test_nothing_masked(options):
    block, length, fallback = choose([[[0.0, 0.0]]], [[[False, False]]], blocks=2, **options)
    assert (block, length, fallback) == ([[-1, -1]], [[0, 0]], [-1])


@pytest.mark.parametrize("options", [dict(), dict(mode="dynamic", threshold=1.0)])
def test_all_entropies_nan_still_makes_progress(options):
    block, length, fallback = choose([[[math.nan] * 2] * 3], **options)
    assert block[0][0] == 0 or fallback[0] == 0


def test_dtypes_and_values_of_known_positions_do_not_matter(generator):
    entropy = torch.rand(3, 4, 5, generator=generator)
    masked = torch.rand(3, 4, 5, generator=generator) < 0.5
    choice = ck.block_entropy(entropy, masked, mode="dynamic", threshold=0.5)
    assert choice.prefix_mean.dtype == torch.float32
    assert {choice.block.dtype, choice.length.dtype, choice.fallback_slot.dtype} == {torch.int32}
    again = ck.block_entropy(
        entropy.masked_fill(~masked, math.nan), masked, mode="dynamic", threshold=0.5
    )
    for a, b in zip(choice, again, strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(mode="fast"), "expected 'static' or 'dynamic'"),
        (dict(mode="dynamic"), "needs a threshold in nats"),
        (dict(mode="dynamic", threshold=math.nan), "needs a threshold in nats"),
        (dict(threshold=0.3), "has no meaning in mode='static'"),
        (dict(blocks=0), "expected an int of at least 1"),
    ],
)
def test_errors_say_what_to_do(options, message):
    with pytest.raises(ValueError, match=message):
        ck.block_entropy(torch.zeros(1, 2, 3), torch.ones(1, 2, 3, dtype=torch.bool), **options)
