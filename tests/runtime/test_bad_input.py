"""What `generate` refuses, and that the error says what was given and what was expected."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tiny_pairs import MASK, make_ar, make_dlm, with_metadata

from codila.config import GenerationConfig
from codila.generation import generate
from codila.models.checkpoint import CheckpointError
from codila.models.loading import Pair
from codila_kernels import expected_embedding

PROMPT = torch.tensor([[1, 2, 3]])
TWO = torch.tensor([[1, 2, 3], [4, 5, 6]])


@pytest.mark.parametrize(
    ("ids", "options", "message"),
    [
        (torch.zeros(1, 0, dtype=torch.int64), {}, r"input_ids are \[1, 0\].*empty prompt"),
        (torch.zeros(0, 3, dtype=torch.int64), {}, r"input_ids are \[0, 3\]"),
        (PROMPT[0], {}, r"input_ids are \[3\], expected \[rows, prompt length\]"),
        (
            PROMPT,
            {"max_new_tokens": 0},
            "max_new_tokens is 0, and no prompt holds the mask token 72",
        ),
        (PROMPT, {"attention_mask": torch.tensor([[0, 0, 0]])}, "prompt 0 is empty"),
        (PROMPT, {"attention_mask": torch.tensor([[1, 0, 1]])}, "zeros inside a prompt"),
        (PROMPT, {"attention_mask": torch.tensor([[1, 1]])}, r"\[1, 2\], input_ids are \[1, 3\]"),
        (PROMPT, {"max_new_tokens": 62}, "prompt of 3 tokens and 62 more exceed.*64"),
        (PROMPT, {"expand_budget": 2}, "names no expand_token_id"),
        (PROMPT, {"eos_token_id": 500}, r"hold \[500\], outside the model's 96 tokens"),
        (PROMPT, {"suppress_tokens": [1, 96]}, r"hold \[96\], outside the model's 96 tokens"),
        (
            torch.tensor([[1, MASK, 3]]),
            {"min_new_tokens": 2},
            "min_new_tokens=2 counts tokens behind the prompt",
        ),
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
        (torch.tensor([[1, 96]]), {}, "input_ids hold 96, outside the model's 96 tokens"),
        (torch.tensor([[1, -7]]), {}, "input_ids hold -7"),
        (TWO, {"seed": 2**63 - 1}, "seeds of 2 rows must fit into 64 bits"),
        (PROMPT, {"tokens_per_step": 4}, "tokens_per_step=4 is not read by schedule='static'"),
        (PROMPT, {"entropy_threshold": 0.2}, r"belongs to \['dynamic'\]"),
        (PROMPT, {"schedule": "entropy", "conditioning": "top-3"}, "conditioning='top-3' is not"),
    ],
)
def test_bad_input_is_refused(dlm, ar, ids, options, message):
    with pytest.raises(ValueError, match=message):
        generate(dlm, ids, ar_model=ar, **({"max_new_tokens": 8} | options))


@pytest.mark.parametrize(
    ("ids", "options", "message"),
    [
        (PROMPT.int(), {}, "input_ids are torch.int32, expected torch.int64"),
        (PROMPT.float(), {}, "input_ids are torch.float32"),
        ([[1, 2]], {}, "input_ids is a list, expected a tensor"),
        (PROMPT, {"attention_mask": [[1, 1, 1]]}, "attention_mask is a list"),
        (PROMPT, {"seed": [1.5]}, r"seed=\[1.5\]: expected an int"),
        (PROMPT, {"seed": True}, "seed=True"),
    ],
)
def test_a_wrong_type_is_refused(dlm, ar, ids, options, message):
    with pytest.raises(TypeError, match=message):
        generate(dlm, ids, ar_model=ar, max_new_tokens=8, **options)


@pytest.mark.parametrize("seeds", [[5], (5,), torch.tensor([5]), torch.tensor([5]).numpy(), 5])
def test_seeds_may_be_a_sequence_an_array_or_a_tensor(dlm, ar, seeds):
    options = dict(max_new_tokens=8, temperature=1.0, top_p=1.0)
    out = generate(dlm, PROMPT, ar_model=ar, seed=seeds, **options)
    assert torch.equal(out.sequences, generate(dlm, PROMPT, ar_model=ar, seed=5, **options)[0])


@pytest.mark.parametrize("fill", [float("nan"), float("-inf")])
@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "static", "block_size": 4},
        {"schedule": "static", "block_size": 4, "blocks_per_step": 2},
        {"schedule": "dynamic", "entropy_threshold": 9.0},
        {"schedule": "entropy"},
        {"schedule": "entropy", "tokens_per_step": 8},
        {"schedule": "entropy", "confidence_source": "sampled"},
        {"schedule": "threshold"},
    ],
    ids=str,
)
def test_rows_without_a_distribution_stop_the_generation(dlm, ar, options, fill):
    def processor(ids, logits):
        return logits.masked_fill(ids[:, :1] == 4, fill)  # all rows of the second prompt

    with pytest.raises(FloatingPointError, match=r"by step 0 no token .* row 1, canvas position"):
        generate(
            dlm, TWO, ar_model=ar, logits_processor=processor, max_new_tokens=8, seed=0, **options
        )


def test_an_ar_model_that_could_write_the_mask_is_refused(dlm):
    ar = make_ar(dlm)
    bridge = dataclasses.replace(ar.codila.bridge, banned_ids=())
    with pytest.raises(CheckpointError, match="banned_ids must hold the mask token 72"):
        generate(dlm, PROMPT, ar_model=with_metadata(ar, bridge=bridge), max_new_tokens=8)


def test_padding_does_not_count_towards_the_context_limit(dlm, ar):
    mask = torch.zeros(1, 40, dtype=torch.int64)
    mask[:, 38:] = 1
    padded = torch.ones(1, 40, dtype=torch.int64)
    out = generate(dlm, padded, ar_model=ar, attention_mask=mask, max_new_tokens=32, seed=0)
    assert out.sequences.shape == (1, 72)


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


def test_what_generate_returns_may_be_changed_and_trained_on(dlm, ar):
    out = generate(dlm, PROMPT, ar_model=ar, max_new_tokens=4, seed=0)
    out.sequences[0, 0] = 9
    logits = torch.randn(2, 96, requires_grad=True)
    banned = ar.codila.bridge.banned_ids
    expected_embedding(logits, torch.randn(96, 3), banned_ids=banned).sum().backward()
    assert logits.grad is not None


@pytest.mark.parametrize("length, block_size", [(5, 4), (9, 8), (13, 4)])
def test_a_padded_grid_costs_no_forwards(dlm, ar, length, block_size):
    options = dict(max_new_tokens=length, block_size=block_size, eos_fill=False, seed=0)
    base = generate(dlm, PROMPT, schedule="entropy", **options)
    assert base.num_function_evaluations.item() == length
    blocks = generate(dlm, PROMPT, ar_model=ar, **options)
    assert blocks.num_function_evaluations.item() == -(-length // block_size)


def test_an_ar_model_is_fed_what_it_was_trained_on_whoever_calls(dlm):
    ar = with_metadata(make_ar(dlm), conditioning="top-1")
    options = dict(ar_model=ar, max_new_tokens=16, temperature=0.0)
    default = generate(dlm, PROMPT, **options).sequences
    assert torch.equal(default, generate(dlm, PROMPT, conditioning="top-1", **options).sequences)
    config = GenerationConfig(max_new_tokens=16, temperature=0.0)
    pair = Pair(dlm, ar, None, GenerationConfig(block_size=2))
    assert torch.equal(default, pair.generate(PROMPT, generation_config=config).sequences)
    changed = pair.generate(PROMPT, generation_config=None, max_new_tokens=16, temperature=0.0)
    assert changed.num_function_evaluations == 8
