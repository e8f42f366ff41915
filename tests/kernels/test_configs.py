"""Tile choices: what they depend on, and that they cover the vocabulary."""

from __future__ import annotations

import inspect

import pytest
import torch

from codila_kernels import configs

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
WIDTHS = (1, 15, 128, 1_088, 4_097, 151_936, 152_064, 262_144)


@pytest.mark.parametrize(
    "function",
    [
        configs.vocab_stats_config,
        configs.expected_embedding_config,
        configs.head_stats_config,
        configs.sample_tokens_config,
        configs.top_k_config,
        configs.backward_config,
    ],
)
def test_configs_know_nothing_of_the_rows(function):
    """The tree that adds a row's terms may not depend on its batch."""
    sizes = {"width", "embedding", "vocabulary", "hidden"}
    assert set(inspect.signature(function).parameters) <= sizes | {"dtype", "chip"}


@pytest.mark.parametrize("chip", [*configs.CHIPS, "interpreter"])
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_chunks_cover_the_vocabulary_and_none_is_empty(width, dtype, chip):
    stats = configs.vocab_stats_config(width, dtype, chip)
    assert stats.block_v * (stats.chunks - 1) < width <= stats.block_v * stats.chunks
    draw = configs.sample_tokens_config(width, dtype, chip)
    assert draw.block_v * (draw.chunks - 1) < width <= draw.block_v * draw.chunks
    assert draw.group * (draw.groups - 1) < width <= draw.group * draw.groups
    assert draw.block_v % draw.group == 0
    for embedding in (1, 192, 640, 1024, 3584):
        soft = configs.expected_embedding_config(width, embedding, dtype, chip)
        assert soft.chunk * (soft.chunks - 1) < width <= soft.chunk * soft.chunks
        assert soft.chunk % soft.block_v == 0
        assert min(soft.block_r, soft.block_v, soft.block_d) >= 16  # least of a matrix product
        for size in (soft.block_r, soft.block_v, soft.block_d, stats.block_v):
            assert size & (size - 1) == 0
        assert configs.expected_embedding_config(width, embedding, dtype, chip) == soft
    for hidden in (1, 192, 2816, 3584, 8192):
        head = configs.head_stats_config(width, hidden, dtype, chip)
        assert head.block_v * (head.chunks - 1) < width <= head.block_v * head.chunks
        for size in (head.block_v, head.block_h):
            assert size >= 16 and size & (size - 1) == 0
        states = configs.next_power_of_two(head.chunks)
        assert states <= 8 * 32 * configs.combine_warps(head.chunks)


@pytest.mark.parametrize("chip", configs.CHIPS)
def test_real_sizes_fill_the_chip_and_keep_partial_sums_small(chip):
    config = configs.expected_embedding_config(151_936, 1024, torch.bfloat16, chip)
    programs = config.chunks * configs.ceil_div(1024, config.block_d)
    assert programs >= configs._CORES[chip]
    for rows, share in ((16, 0.05), (80, 0.2)):
        partial_sums = 2 * config.chunks * rows * 1024 * 4  # written and read
        assert partial_sums <= share * 151_936 * 1024 * 2
    assert configs.ceil_div(1024, config.block_d) <= 4  # times that the logits are read


@pytest.mark.parametrize("rows", [0, 1, 16, 17, 80, 81, 160, 161, 640])
def test_row_groups_cover_the_rows_and_are_as_few_as_can_be(rows):
    groups, tiles = configs.row_groups(rows, 16)
    assert groups == max(1, configs.ceil_div(rows, 80))  # times that the table is read
    assert 1 <= tiles <= 5 and groups * tiles * 16 >= rows


def test_chip_of_the_cpu_is_the_interpreter():
    assert configs.chip_of(torch.device("cpu")) == "interpreter"


def test_chip_of_an_unknown_generation_is_the_nearest(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", None)
    for capability, chip in {(8, 6): "sm_80", (9, 0): "sm_90", (10, 3): "sm_100"}.items():
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
        assert configs.chip_of(torch.device("cuda", 0)) == chip
