"""Masks inside prompts, decoded in place: several holes, unequal ones, with a canvas or without."""

from __future__ import annotations

import random

import naive
import pytest
import torch
from test_generation_equals_naive import PAIRS, padded, pair, random_config
from tiny_pairs import EOS, MASK, WORDS, make_dlm

from codila.config import GenerationConfig
from codila.generation import generate


def with_holes(rng: random.Random) -> list[int]:
    """A prompt of 4 to 9 tokens, one to four of them masks (the first may be one)."""
    prompt = [rng.randrange(WORDS) for _ in range(rng.randint(4, 9))]
    for at in rng.sample(range(len(prompt)), rng.randint(1, 4)):
        prompt[at] = MASK
    return prompt


@pytest.mark.parametrize("case", range(40))
def test_every_row_of_a_padded_batch_equals_the_naive_decoder(case):
    rng = random.Random(1000 + case)
    dlm, ar = pair(case % PAIRS)
    config = random_config(rng, dlm)
    if rng.random() < 0.6:
        config = config.updated(max_new_tokens=0)
    prompts, seed = [with_holes(rng) for _ in range(3)], rng.randrange(2**40)
    dlm.config.eos_token_id = EOS
    if config.eos_fill:  # make a token of its own the end
        draft = naive.decode(dlm, ar, prompts[0], config, seed).tokens
        dlm.config.eos_token_id = draft[prompts[0].index(MASK)]

    expected = [naive.decode(dlm, ar, p, config, seed + row) for row, p in enumerate(prompts)]
    ids, mask = padded(prompts, rng.choice(["left", "right"]))
    out = generate(dlm, ids, ar_model=ar, attention_mask=mask, generation_config=config, seed=seed)
    for row, want in enumerate(expected):
        assert out.sequences[row, -len(want.tokens) :].tolist() == want.tokens
    assert out.num_function_evaluations.tolist() == [row.forwards for row in expected]


@pytest.mark.parametrize("schedule", ["static", "dynamic", "entropy", "threshold"])
def test_given_tokens_never_change(schedule):
    dlm, ar = pair(0)
    ids = torch.tensor([[1, MASK, MASK, EOS, 4, MASK, 6], [MASK, 2, 3, MASK, 5, 6, EOS]])
    out = generate(dlm, ids, ar_model=ar, max_new_tokens=0, schedule=schedule, block_size=2, seed=0)
    given = ids != MASK
    assert torch.equal(out.sequences[given], ids[given])
    assert not (out.sequences == MASK).any()
    committed = out.step_of >= 0
    assert torch.equal(committed, ~given[:, -committed.shape[1] :])


def test_a_row_with_more_holes_does_not_change_its_neighbours():
    """A transfer count that is a mean over the batch would."""
    dlm, ar = pair(1)
    few, many = [1, 2, MASK, 4, 5, 6, 7, 8], [MASK, MASK, 3, MASK, 5, MASK, MASK, MASK]
    options = dict(ar_model=ar, max_new_tokens=0, temperature=0.0, schedule="entropy")
    together = generate(dlm, torch.tensor([few, many]), tokens_per_step=2, **options)
    for row, prompt in enumerate((few, many)):
        alone = generate(dlm, torch.tensor([prompt]), tokens_per_step=2, **options)
        assert together.sequences[row].tolist() == alone.sequences[0].tolist()
        assert together.num_function_evaluations[row] == alone.num_function_evaluations[0]
    assert together.num_function_evaluations.tolist() == [1, 3]


def test_figures_count_what_was_written():
    dlm, ar = pair(2)
    ids = torch.tensor([[1, MASK, 3, MASK, MASK, 6]])
    config = GenerationConfig(max_new_tokens=0, schedule="entropy", eos_fill=False)
    out = generate(dlm, ids, ar_model=ar, generation_config=config, seed=1)
    assert out.num_function_evaluations.item() == 3
    assert out.tokens_per_forward_canvas.item() == 1
    assert out.lengths.tolist() == [5] and out.step_of.shape == (1, 5)


def test_a_first_token_is_predicted_by_its_own_row():
    """Nothing stands before it, also in a row that is padded in front."""
    dlm = make_dlm(3)
    prompt = [MASK, 5, 6]
    logits = dlm(torch.tensor([prompt])).logits[0, 0]
    logits[MASK] = -torch.inf
    ids, mask = padded([prompt, [1, 2, 3, MASK, 5]], "left")
    out = generate(
        dlm, ids, attention_mask=mask, max_new_tokens=0, schedule="entropy", temperature=0.0
    )
    assert out.sequences[0, 2].item() == logits.argmax().item()
