"""The generation config: what it refuses and how it says so, and the file it is kept in."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

import codila
from codila.config import CONFIG_NAME, GenerationConfig


def test_defaults_are_the_papers():
    config = codila.GenerationConfig()
    assert (config.block_size, config.schedule, config.scope_blocks) == (4, "static", 10)
    assert (config.temperature, config.top_p, config.conditioning) == (0.1, 0.8, None)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("max_new_tokens", -1, "an int of at least 0"),
        ("max_new_tokens", 8.0, "an int of at least 0"),
        ("block_size", 0, "an int of at least 1"),
        ("block_size", True, "an int of at least 1"),
        ("blocks_per_step", -1, "an int of at least 1"),
        ("tokens_per_step", 0, "an int of at least 1"),
        ("tokens_per_step", 65, "at most max_new_tokens=64"),
        ("scope_blocks", -1, "an int of at least 0"),
        ("top_k", 1.5, "an int of at least 0"),
        ("schedule", "statik", "one of ['ar_frontier', 'ar_likelihood', 'confidence', 'dynamic'"),
        ("entropy_threshold", math.nan, "a number of nats"),
        ("entropy_threshold", "0.3", "a number"),
        ("confidence_threshold", 1.1, "0 to 1"),
        ("temperature", -0.1, "0 (arg-max) or a positive number"),
        ("temperature", math.inf, "0 (arg-max) or a positive number"),
        ("temperature", math.nan, "0 (arg-max) or a positive number"),
        ("temperature", 1e-9, "0 (arg-max) or a positive number"),
        ("top_p", 0.0, "a number in (0, 1]"),
        ("top_p", 1.01, "a number in (0, 1]"),
        ("conditioning_temperature", 0.0, "a positive number"),
        ("conditioning", "top-0", "'soft' or 'top-K' with K from 1 to 64"),
        ("conditioning", "top-65", "'soft' or 'top-K' with K from 1 to 64"),
        ("conditioning", "hard", "'soft' or 'top-K' with K from 1 to 64"),
        ("confidence_source", "both", "raw or sampled"),
        ("eos_fill", "no", "True or False"),
        ("output_history", 1, "True or False"),
    ],
)
def test_a_value_that_cannot_be_is_refused_by_name(name, value, expected):
    with pytest.raises(ValueError) as caught:
        GenerationConfig(**{name: value})
    assert f"{name}={value!r}" in str(caught.value)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0),
        ("top_p", 1),
        ("entropy_threshold", math.inf),
        ("entropy_threshold", -1),
        ("scope_blocks", 0),
        ("conditioning", "top-64"),
        ("tokens_per_step", 64),
    ],
)
def test_values_at_the_edge_are_accepted(name, value):
    assert getattr(GenerationConfig(**{name: value}), name) == value


def test_updated_changes_what_is_given_and_keeps_the_rest():
    config = GenerationConfig(block_size=8, temperature=0.5)
    changed = config.updated(block_size=2, temperature=None, top_p=1.0)
    assert changed == GenerationConfig(block_size=2, temperature=0.5, top_p=1.0)
    assert config.block_size == 8


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"unknown generation option \['blok_size'\].*block_size"):
        GenerationConfig().updated(blok_size=4)


def test_an_update_is_validated():
    with pytest.raises(ValueError, match="tokens_per_step=8: expected at most max_new_tokens=4"):
        GenerationConfig(tokens_per_step=8).updated(max_new_tokens=4)


def test_a_saved_config_comes_back(tmp_path):
    config = GenerationConfig(
        max_new_tokens=7, schedule="dynamic", entropy_threshold=0.25, conditioning="top-3",
        eos_fill=False, top_k=5, scope_blocks=0,
    )  # fmt: skip
    folder = tmp_path / "new" / "folder"
    config.save_pretrained(folder)
    assert [path.name for path in folder.iterdir()] == [CONFIG_NAME]
    assert GenerationConfig.from_pretrained(folder) == config
    written = json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8"))
    assert written == dataclasses.asdict(config)


def test_a_file_with_an_unknown_key_or_a_bad_value_is_refused(tmp_path):
    path = tmp_path / CONFIG_NAME
    path.write_text(json.dumps({"block_size": 2, "num_beams": 4}), encoding="utf-8")
    with pytest.raises(ValueError, match="num_beams"):
        GenerationConfig.from_pretrained(tmp_path)
    path.write_text(json.dumps({"top_p": 2}), encoding="utf-8")
    with pytest.raises(ValueError, match="top_p=2"):
        GenerationConfig.from_pretrained(tmp_path)


def test_a_folder_without_the_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match=f"has no {CONFIG_NAME}"):
        GenerationConfig.from_pretrained(tmp_path)
