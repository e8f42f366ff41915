"""`block_entropy` in the interpreter, against plain loops, bit for bit.

Entropies are eighths, whose sums and means need no rounding but the last, so that ties are ties.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from interpreter_checks import INTERPRETER
from kernel_definitions import block_choice

import codila_kernels as ck

pytestmark = [*INTERPRETER, pytest.mark.usefixtures("quick_device_functions")]

MODES = [("static", None), ("dynamic", 0.5)]


def check(entropy, masked, mode, blocks, threshold):
    got = ck.block_entropy(
        entropy, masked, mode=mode, blocks=blocks, threshold=threshold, impl="triton"
    )
    assert got.prefix_mean.dtype == torch.float32
    assert {got.block.dtype, got.length.dtype, got.fallback_slot.dtype} == {torch.int32}
    width = entropy.shape[2]
    for n in range(len(entropy)):
        means, chosen, fallback = block_choice(
            entropy[n].tolist(), masked[n].tolist(), mode, blocks, threshold
        )
        padded = torch.tensor([h + [math.inf] * (width - len(h)) for h in means])
        assert torch.equal(got.prefix_mean[n], padded), (n, mode)
        assert list(zip(got.block[n].tolist(), got.length[n].tolist(), strict=True)) == chosen
        assert got.fallback_slot[n].item() == fallback


@pytest.mark.parametrize("mode, threshold", MODES)
@pytest.mark.parametrize("c, b", [(2, 2), (4, 1), (1, 4)])
def test_every_mask_of_four_positions(c, b, mode, threshold, generator):
    """All 16 masks, one a batch row, with ties, NaN and +inf among the entropies; m > C too."""
    masked = torch.tensor(list(itertools.product((False, True), repeat=4))).view(16, c, b)
    entropy = torch.randint(0, 9, (16, c, b), generator=generator) / 8
    entropy[3::4, 0, 0] = math.nan
    entropy[5::6, -1, -1] = math.inf
    check(entropy, masked, mode, 3, threshold)


@pytest.mark.parametrize("threshold", [math.inf, -math.inf, 0.0])
@pytest.mark.parametrize("blocks", [1, 6])
def test_thresholds_that_all_or_none_meet(threshold, blocks, generator):
    entropy = torch.randint(0, 4, (3, 5, 3), generator=generator) / 8
    masked = torch.rand(3, 5, 3, generator=generator) < 0.7
    check(entropy, masked, "dynamic", blocks, threshold)


@pytest.mark.parametrize("mode, threshold", MODES)
@pytest.mark.parametrize(
    "c, b, why",
    [
        (30, 32, "the candidates of a 256-token canvas and more"),
        (33, 5, "one past a power of two, a size that is none"),
        (5, 33, "blocks one past a power of two"),
        (1, 1, "one position"),
        (65, 31, "the largest tile, 2015 positions of 2048"),
    ],
)
def test_sizes(c, b, why, mode, threshold, generator):
    entropy = torch.randint(0, 17, (3, c, b), generator=generator) / 8
    masked = (
        torch.rand(3, c, b, generator=generator) < torch.tensor([0.9, 0.3, 0.02])[:, None, None]
    )
    check(entropy, masked, mode, 3, threshold)


@pytest.mark.parametrize("mode, threshold", [("static", None), ("dynamic", 1.0)])
def test_all_ties_and_all_undecidable(mode, threshold):
    entropy = torch.stack([torch.full((4, 3), value) for value in (0.5, math.nan, math.inf)])
    check(entropy, torch.ones_like(entropy, dtype=torch.bool), mode, 4, threshold)


@pytest.mark.parametrize("threshold", [0.1, 1 / 3])
def test_threshold_is_compared_in_float32(threshold):
    """A mean equal to the threshold as rounded to the dtype of the means is within it."""
    entropy = torch.full((1, 2, 3), threshold)
    masked = torch.ones_like(entropy, dtype=torch.bool)
    choice = ck.block_entropy(entropy, masked, mode="dynamic", threshold=threshold, impl="triton")
    assert choice.length.tolist() == [[3]]


def test_means_are_rounded_once(generator):
    """Entropies of any size: float64 sums of a block are exact, so the mean is rounded but once."""
    entropy = torch.rand(4, 5, 16, generator=generator) * 12
    masked = torch.rand(4, 5, 16, generator=generator) < 0.7
    got = ck.block_entropy(entropy, masked, impl="triton").prefix_mean
    for n, c in itertools.product(range(4), range(5)):
        known = entropy[n, c][masked[n, c]].double().tolist()
        means = [math.fsum(known[:k]) / k for k in range(1, len(known) + 1)]
        assert torch.equal(
            got[n, c, : len(known)], torch.tensor(means, dtype=torch.float64).float()
        )
        assert got[n, c, len(known) :].eq(math.inf).all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_strided_low_precision_entropies(dtype, generator):
    entropy = (torch.randint(0, 17, (4, 3, 8, 2), generator=generator) / 8).to(dtype)[..., 0]
    masked = (torch.rand(8, 3, 4, generator=generator) < 0.6).permute(2, 1, 0)
    assert not entropy.is_contiguous() and not masked.is_contiguous()
    for mode, threshold in MODES:
        check(entropy, masked, mode, 2, threshold)


def test_known_positions_do_not_matter_and_no_rows_are_no_rows(generator):
    entropy = torch.rand(2, 4, 5, generator=generator)
    masked = torch.rand(2, 4, 5, generator=generator) < 0.5
    options = dict(mode="dynamic", threshold=0.5, impl="triton")
    choice = ck.block_entropy(entropy, masked, **options)
    again = ck.block_entropy(entropy.masked_fill(~masked, math.nan), masked, **options)
    assert all(torch.equal(x, y) for x, y in zip(choice, again, strict=True))
    nothing = ck.block_entropy(entropy[:0], masked[:0], blocks=2, impl="triton")
    assert nothing.prefix_mean.shape == (0, 4, 5) and nothing.block.shape == (0, 2)


def test_more_positions_than_a_tile_and_float64_go_to_the_reference():
    large = torch.zeros(1, 2049, 1)
    with pytest.raises(RuntimeError, match="no Triton kernel for this op with these arguments"):
        ck.block_entropy(large, large == 0, impl="triton")
    exact = torch.zeros(1, 2, 2, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="a tensor is float64"):
        ck.block_entropy(exact, exact == 0, impl="triton")
    assert ck.block_entropy(large, large == 0).block.item() == 0
