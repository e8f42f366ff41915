"""The forward process against its definition."""

from __future__ import annotations

import pytest
import torch

from codila.training.corruption import mask_units, nelbo_weight, stratified_times


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("unit", [1, 2, 4, 8])
def test_whole_units_are_masked_and_at_least_one_per_row(unit: int) -> None:
    t = torch.full((64,), 0.02)
    masked = mask_units(64, 48, unit, t, generator())
    units = masked.view(64, 48 // unit, unit)
    assert (units.all(-1) == units.any(-1)).all()
    assert masked.any(-1).all()


def test_a_short_last_unit_is_masked_whole() -> None:
    masked = mask_units(200, 10, 4, torch.full((200,), 0.5), generator())
    tail = masked[:, 8:]
    assert (tail.all(-1) == tail.any(-1)).all()
    assert 0.3 < tail.all(-1).float().mean() < 0.7


@pytest.mark.parametrize("offset", [1, 3, 4, 7])
def test_an_offset_shifts_the_units_and_what_is_in_front_is_one_of_its_own(offset: int) -> None:
    masked = mask_units(300, 26, 4, torch.full((300,), 0.5), generator(), offset=offset)
    assert masked.shape == (300, 26)
    first = offset % 4  # the short unit in front
    for start, stop in ((0, first), *((i, min(i + 4, 26)) for i in range(first, 26, 4))):
        unit = masked[:, start:stop]
        assert (unit.all(-1) == unit.any(-1)).all() or start == stop
    assert 0.4 < masked.float().mean() < 0.6


def test_the_masked_share_is_t() -> None:
    for t in (0.2, 0.5, 0.9):
        masked = mask_units(2000, 64, 4, torch.full((2000,), t), generator())
        # 32,000 Bernoulli units: four standard deviations are below 0.012
        assert abs(masked.float().mean().item() - t) < 0.012


def test_every_unit_masked_at_t_one() -> None:
    assert mask_units(8, 16, 4, torch.ones(8), generator()).all()


def test_times_are_spread_over_their_range() -> None:
    t = stratified_times(50, 0.05, 1.0, generator())
    assert (t > 0.05).all() and (t <= 1.0).all()
    slices = ((t - 0.05) / 0.95 * 50).ceil().clamp(1, 50)
    assert slices.unique().numel() == 50


def test_nelbo_weight_is_one_over_t_and_weights_the_masks_to_one() -> None:
    """Continuous time: E_t[w(t) P(masked at t)] = 1; T linear steps: (a' - a) / (1 - a) = 1 / t."""
    t = torch.linspace(0.01, 1.0, 100, dtype=torch.float64)
    torch.testing.assert_close(nelbo_weight(t) * t, torch.ones_like(t), rtol=1e-12, atol=0)
    steps = 16
    alpha = 1 - torch.arange(steps + 1, dtype=torch.float64) / steps
    exact = (alpha[:-1] - alpha[1:]) / (1 - alpha[1:])
    torch.testing.assert_close(
        exact, nelbo_weight(torch.arange(1, steps + 1).double()), rtol=1e-12, atol=0
    )
    assert nelbo_weight(torch.tensor(0.01), floor=0.1).item() == pytest.approx(10.0)
