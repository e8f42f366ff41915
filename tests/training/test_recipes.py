"""Recipes by name or file."""

from __future__ import annotations

from pathlib import Path

import pytest

from codila.training.ar_recipe import ARRecipe
from codila.training.config import load_recipe
from codila.training.dlm import DLMRecipe


def test_bundled_recipes_load_and_overrides_apply() -> None:
    assert load_recipe(DLMRecipe, "dlm", "tiny", {"steps": 7}).steps == 7
    assert load_recipe(ARRecipe, "ar", "tiny", {}).block_sizes == (2, 4, 8)


def test_a_file_with_an_unknown_key_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "recipe.json"
    path.write_text('{"stepz": 3}')
    with pytest.raises(ValueError, match=r"unknown keys \['stepz'\]"):
        load_recipe(DLMRecipe, "dlm", str(path), {})
    path.write_text("{not json")
    with pytest.raises(ValueError, match="is not JSON"):
        load_recipe(DLMRecipe, "dlm", str(path), {})


def test_an_unknown_recipe_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="give one of .*tiny.* or a JSON file"):
        load_recipe(DLMRecipe, "dlm", "huge", {})


BASE = {"dlm": "d", "steps": 1, "init": "m", "data": ("a.jsonl",)}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"t_per": "token"}, "t_per='token': expected one of"),
        ({"loss_norm": "mean"}, "loss_norm='mean'"),
        ({"steps": 0}, "steps=0: expected at least 1"),
        ({"t_range": (0.5, 0.5)}, "expected 0 <= low < high <= 1"),
        ({"init": None}, "give init= .* or model="),
        ({"model": {}}, "give init= .* or model="),
        ({"shard": "ar", "optimizer": "muon"}, "needs whole matrices"),
        ({"data": "toy"}, "the toy task needs pairs= and region="),
        ({"lr": float("nan")}, "lr=nan"),
        ({"variants": {}}, "name at least one model"),
        ({"variants": {"a": {"lr": 1}}}, r"variants\['a'\] has \['lr'\]"),
        ({"variants": {"a": {"conditioning": "hard"}}}, "conditioning='hard'"),
        ({"block_sizes": (0,)}, "expected sizes from 1 on"),
        (
            {"init": None, "model": {"num_attention_heads": 9, "num_key_value_heads": 4}},
            "9 heads cannot share 4 KV heads",
        ),
        ({"window": (-1, 0)}, r"expected \[left, right\] from 0 on"),
        ({"mask_unit": 6, "block_sizes": (2, 4)}, r"no multiple of blocks of \[4\]"),
        ({"variants": {"a": {}, "b": {"block_sizes": (2,)}}}, "need a common mask_unit="),
    ],
)
def test_what_a_recipe_cannot_mean_is_refused(changes: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        ARRecipe(**(BASE | changes))


def test_lists_of_json_become_tuples_and_variants_override() -> None:
    recipe = ARRecipe(
        **(BASE | {"window": [8, 4], "block_sizes": [2, 4], "data": "a.jsonl"}),
        variants={"a": {}, "b": {"window": [0, 0], "conditioning": "top-3"}},
    )
    assert recipe.data == ("a.jsonl",) and recipe.of("a").window == (8, 4)
    assert recipe.of("b").window == (0, 0) and recipe.of("b").conditioning == "top-3"
    assert [recipe.unit_at(step) for step in range(3)] == [2, 4, 2]
    assert ARRecipe(**(BASE | {"mask_unit": 32})).unit_at(7) == 32
