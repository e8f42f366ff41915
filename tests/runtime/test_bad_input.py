"""What `generate` refuses, and that the error says what was given and what was expected."""

from __future__ import annotations

import pytest
import torch
from tiny_pairs import MASK, make_ar, make_dlm, with_metadata

from codila.generation import generate
from codila.models.loading import CheckpointError

PROMPT = torch.tensor([[1, 2, 3]])
TWO = torch.tensor([[1, 2, 3], [4, 5, 6]])


@pytest.mark.parametrize(
    ("ids", "options", "message"),
    [
        (torch.zeros(1, 0, dtype=torch.int64), {}, r"input_ids are \[1, 0\].*empty prompt"),
        (torch.zeros(0, 3, dtype=torch.int64), {}, r"input_ids are \[0, 3\]"),
        (PROMPT[0], {}, r"input_ids are \[3\], expected \[rows, prompt length\]"),
        (torch.tensor([[1, MASK, 3]]), {}, "contains the mask token 72"),
        (PROMPT, {"attention_mask": torch.tensor([[0, 0, 0]])}, "prompt 0 is empty"),
        (PROMPT, {"attention_mask": torch.tensor([[1, 0, 1]])}, "zeros inside a prompt"),
        (PROMPT, {"attention_mask": torch.tensor([[1, 1]])}, r"\[1, 2\], input_ids are \[1, 3\]"),
        (PROMPT, {"max_new_tokens": 62}, "prompt of 3 tokens and a canvas of 64 exceed.*64"),
        (PROMPT, {"block_size": 5}, r"block_size=5: the AR model was trained for \[1, 2, 3, 4, 8"),
        (
            PROMPT,
            {"schedule": "entropy", "tokens_per_step": 9},
            "tokens_per_step=9: expected at most max_new_tokens=8",
        ),
        (PROMPT, {"tau": 0.3}, r"unknown generation option \['tau'\].*entropy_threshold"),
        (PROMPT, {"schedule": "dinamic"}, "schedule='dinamic': expected one of"),
        (PROMPT, {"seed": [1, 2]}, "2 seeds for 1 rows"),
        (TWO, {"seed": [1]}, "1 seeds for 2 rows"),
        (TWO, {"diffusion_streamer": object()}, "follows one row, the batch has 2"),
    ],
)
def test_bad_input_is_refused(dlm, ar, ids, options, message):
    with pytest.raises(ValueError, match=message):
        generate(dlm, ids, ar_model=ar, **({"max_new_tokens": 8} | options))


def test_the_context_limit_itself_is_allowed(dlm, ar):
    out = generate(
        dlm, torch.tensor([[1, 2, 3, 4]]), ar_model=ar, max_new_tokens=60,
        block_size=4, blocks_per_step=15, scope_blocks=0, seed=0,
    )  # fmt: skip
    assert out.sequences.shape == (1, 64)


@pytest.mark.parametrize("schedule", ["static", "dynamic"])
def test_an_ar_schedule_without_an_ar_model_names_the_others(dlm, schedule):
    message = rf"schedule='{schedule}' needs ar_model=.*\['confidence', 'entropy', 'margin'"
    with pytest.raises(ValueError, match=message):
        generate(dlm, PROMPT, max_new_tokens=8, schedule=schedule)


def test_an_ar_model_that_was_not_loaded_by_codila_is_refused(dlm):
    ar = make_ar(dlm)
    del ar.codila
    with pytest.raises(ValueError, match=r"carries no codila\.json"):
        generate(dlm, PROMPT, ar_model=ar, max_new_tokens=8)


def test_an_ar_model_for_another_diffusion_model_is_refused(ar):
    with pytest.raises(CheckpointError, match="vocab_size=96, this one has 97"):
        generate(make_dlm(vocab_size=97), PROMPT, ar_model=ar, max_new_tokens=8)


def test_a_baseline_may_use_a_block_size_that_the_ar_model_was_not_trained_for(dlm):
    ar = with_metadata(make_ar(dlm), block_sizes=(4,))
    out = generate(
        dlm, PROMPT, ar_model=ar, max_new_tokens=4, schedule="entropy", block_size=2, seed=0
    )
    assert out.sequences.shape == (1, 7)


def test_the_callers_prompt_is_left_alone(dlm, ar):
    prompt, mask = torch.tensor([[1, 2, 9]]), torch.tensor([[1, 1, 0]])
    generate(dlm, prompt, ar_model=ar, attention_mask=mask, max_new_tokens=4, seed=0)
    assert prompt.tolist() == [[1, 2, 9]] and mask.tolist() == [[1, 1, 0]]
