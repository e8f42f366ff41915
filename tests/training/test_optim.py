"""Muon, the split of parameters, the schedule."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from codila.training.optim import Muon, build_optimizers, learning_rate_factor, orthogonalize


@pytest.mark.parametrize("shape", [(16, 16), (48, 16), (16, 48)])
def test_orthogonalize_brings_singular_values_near_one(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    x = torch.randn(3, *shape, dtype=torch.float64)
    u, _, v = torch.linalg.svd(x, full_matrices=False)
    values = torch.linalg.svdvals(orthogonalize(x))
    assert values.min() > 0.6 and values.max() < 1.25
    # the directions are those of U V^T
    cosine = (orthogonalize(x) * (u @ v)).sum((-2, -1)) / min(shape)
    assert (cosine > 0.8).all()


def test_muon_treats_stacked_matrices_alone() -> None:
    torch.manual_seed(0)
    grads = [torch.randn(8, 4) for _ in range(3)]
    together = [nn.Parameter(torch.zeros(8, 4)) for _ in grads]
    for p, g in zip(together, grads, strict=True):
        p.grad = g.clone()
    Muon(together, lr=0.1).step()
    for p, g in zip(together, grads, strict=True):
        alone = nn.Parameter(torch.zeros(8, 4))
        alone.grad = g.clone()
        Muon([alone], lr=0.1).step()
        torch.testing.assert_close(p, alone)


def test_matrices_of_layers_go_to_muon_and_the_rest_to_adamw() -> None:
    from codila.models.dream import DreamConfig, DreamModel

    model = DreamModel(
        DreamConfig(
            vocab_size=16,
            hidden_size=8,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
            mask_token_id=3,
            eos_token_id=2,
        )
    )
    muon, adam = build_optimizers(model, lr=0.1, adam_lr=0.01)
    count = {id(p) for o in (muon, adam) for g in o.param_groups for p in g["params"]}
    assert count == {id(p) for p in model.parameters()}
    assert all(p.ndim == 2 for g in muon.param_groups for p in g["params"])
    assert id(model.lm_head.weight) in {id(p) for p in adam.param_groups[0]["params"]}


def test_the_schedule_warms_up_stays_and_decays_to_zero() -> None:
    options = {"warmup": 10, "decay_fraction": 0.2}
    factors = [learning_rate_factor("wsd", s, 100, **options) for s in range(101)]
    assert factors[0] == pytest.approx(0.1) and factors[9] == 1.0
    assert set(factors[10:81]) == {1.0}
    assert factors[90] == pytest.approx(0.5) and factors[100] == 0.0


def test_cosine_falls_from_one_to_zero_behind_the_warm_up() -> None:
    options = {"warmup": 10, "decay_fraction": 0.0}
    factors = [learning_rate_factor("cosine", s, 110, **options) for s in range(111)]
    assert factors[0] == pytest.approx(0.1) and factors[9] == 1.0 == factors[10]
    assert factors[60] == pytest.approx(0.5) and factors[110] == pytest.approx(0.0)
    assert factors[10:] == sorted(factors[10:], reverse=True)


def test_adamw_takes_everything_where_it_is_asked_for() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    (adam,) = build_optimizers(model, optimizer="adamw", lr=0.1, adam_lr=9.0, weight_decay=0.2)
    assert {id(p) for p in adam.param_groups[0]["params"]} == {id(p) for p in model.parameters()}
    assert adam.param_groups[0]["initial_lr"] == 0.1
    assert adam.param_groups[0]["weight_decay"] == 0.2
