"""`benchmarks.launches`: what counts as a launch, and that a block's steps cost alike."""

from __future__ import annotations

import torch

from benchmarks import launches


def test_views_launch_nothing():
    x = torch.zeros(4, 6, device="meta")
    assert launches.launches(lambda: x.view(6, 4).t()[1:].unsqueeze(0)) == 0
    assert launches.launches(lambda: (x + 1).exp() @ x.t()) == 3
    assert launches.launches(lambda: torch.empty(3, device="meta")) == 0


def test_the_number_of_blocks_changes_no_launch():
    one, many = (launches.count_all("cpu", blocks) for blocks in (1, 40))
    assert one == many
    parts = {point["part"]: point["launches"] for point in one}
    assert 0 < parts["AR step"] <= parts["AR prefill"]
