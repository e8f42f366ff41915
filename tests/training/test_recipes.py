"""Recipes by name or file."""

from __future__ import annotations

from pathlib import Path

import pytest

from codila.training.ar import ARRecipe
from codila.training.config import load_recipe
from codila.training.dlm import DLMRecipe


def test_bundled_recipes_load_and_overrides_apply() -> None:
    assert load_recipe(DLMRecipe, "dlm", "tiny", {"steps": 7, "seed": None}).steps == 7
    assert load_recipe(ARRecipe, "ar", "tiny", {}).model["vocab_size"] == 1056


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
