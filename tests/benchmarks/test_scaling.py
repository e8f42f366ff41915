"""`benchmarks.scaling`: what is varied, and the exponents of times whose law is known."""

from __future__ import annotations

import pytest
import torch

from benchmarks import scaling
from benchmarks.decode_providers import Setting


def test_one_factor_changes_at_a_time():
    base = Setting(None, None, torch.ones(1, 5, dtype=torch.int64), 256, 4)
    for factor, values in scaling.FACTORS.items():
        setting = scaling.setting_of(base, factor, values[-1], steps=2)
        seen = {"canvas": setting.canvas, "batch": setting.prompt.shape[0],
                "scope_blocks": setting.scope_blocks, "block_size": setting.block_size}  # fmt: skip
        assert {k: v for k, v in seen.items() if v != scaling.USUAL[k]} == {factor: values[-1]}
        assert setting.canvas >= setting.scope_blocks * setting.block_size


def test_exponents_of_known_laws():
    points = [
        {"factor": "canvas", "value": v, "step_ms": 3.0 * v, "body_ms": 0.1 * v**2, "head_ms": 7.0,
         "ar_ms": 0.0} for v in (128, 256, 512)
    ]  # fmt: skip
    (fit,) = scaling.exponents(points)
    assert fit["step"] == pytest.approx(1) and fit["body"] == pytest.approx(2)
    assert fit["head"] == pytest.approx(0) and fit["ar"] is None
