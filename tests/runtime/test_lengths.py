"""Holes of unknown length: expand and delete, as steps of a canvas and in whole generations."""

from __future__ import annotations

import random

import naive
import pytest
import torch
from test_generation_equals_naive import PAIRS, padded, pair, random_config
from test_infilling import with_holes
from tiny_pairs import EOS, MASK

from codila.canvas import Canvas
from codila.generation import generate
from codila.lengths import resize

EXPAND, END = 7, 8


def canvas_of(rows: list[list[int]], mask=None) -> Canvas:
    return Canvas.start(
        torch.tensor(rows),
        None if mask is None else torch.tensor(mask),
        length=0,
        block_size=2,
        mask_token_id=9,
        eos_token_ids=(END,),
    )


def commit(canvas: Canvas, row: int, tokens: dict[int, int], step: int) -> None:
    for column, token in tokens.items():
        canvas.tokens[row, column], canvas.step_of[row, column] = token, step


def test_expand_becomes_two_masks_and_delete_goes():
    canvas = canvas_of([[1, 9, 9, 2, 9, 3], [1, 9, 9, 9, 9, 3]])
    commit(canvas, 0, {0: EXPAND, 3: 4}, step=0)
    commit(canvas, 1, {1: END, 2: 5}, step=0)
    room = resize(canvas, torch.tensor([3, 3]), 0, expand=EXPAND, delete=END)
    assert room.tolist() == [2, 3]
    assert canvas.seen_ids.tolist() == [[1, 9, 9, 9, 2, 4, 3], [1, 9, 5, 9, 3, END, END]]
    assert canvas.attention_mask.int().tolist() == [[1] * 7, [1] * 5 + [0] * 2]
    assert canvas.step_of[:, :6].tolist() == [[-1, -1, -1, -1, 0, -1], [-1, 0, -1, -1, -1, -1]]
    assert canvas.starts.tolist() == [[0, 2], [0, 2]]
    # a second edit drops the padding that nothing needs any more
    commit(canvas, 0, {0: END, 1: END, 2: 6}, step=1)
    resize(canvas, room, 1, expand=EXPAND, delete=END)
    assert canvas.seen_ids.tolist() == [[1, 6, 2, 4, 3], [1, 9, 5, 9, 3]]
    assert canvas.attention_mask is None


def test_given_and_older_tokens_are_no_edits():
    canvas = canvas_of([[1, 9, EXPAND, END, 9]])
    commit(canvas, 0, {0: END}, step=0)
    before = canvas.seen_ids.tolist()
    room = torch.tensor([1])
    assert resize(canvas, room, 1, expand=EXPAND, delete=END) is room
    assert canvas.seen_ids.tolist() == before


def test_more_expands_than_room_spend_it_from_the_right():
    canvas = canvas_of([[1, 9, 9, 9]])
    commit(canvas, 0, {0: EXPAND, 1: EXPAND, 2: EXPAND}, step=0)
    assert resize(canvas, torch.tensor([2]), 0, expand=EXPAND, delete=END).tolist() == [0]
    assert canvas.seen_ids.tolist() == [[1, 9, 9, 9, 9, 9]]


@pytest.mark.parametrize("case", range(30))
def test_every_row_of_a_padded_batch_equals_the_naive_decoder(case):
    rng = random.Random(2000 + case)
    dlm, ar = pair(case % PAIRS)
    config = random_config(rng, dlm)
    prompts, seed = [with_holes(rng) for _ in range(3)], rng.randrange(2**40)
    dlm.config.eos_token_id = EOS
    plain = config.updated(max_new_tokens=rng.choice([0, 0, 4]))
    drafts = [naive.decode(dlm, ar, p, plain, seed + r) for r, p in enumerate(prompts)]
    written = [
        token
        for prompt, draft in zip(prompts, drafts, strict=True)
        for given, token in zip([*prompt, *[MASK] * 9], draft.tokens, strict=False)
        if given == MASK
    ]
    common = sorted(set(written), key=lambda v: (-written.count(v), v))
    expand = common[0]  # what this pair likes to write: so both edits happen
    dlm.config.eos_token_id = common[1] if len(common) > 1 else EOS
    budget = rng.choice([0, 1, 2, 5])
    config = plain.updated(expand_budget=budget, expand_token_id=expand)

    expected = [naive.decode(dlm, ar, p, config, seed + row) for row, p in enumerate(prompts)]
    ids, mask = padded(prompts, rng.choice(["left", "right"]))
    out = generate(dlm, ids, ar_model=ar, attention_mask=mask, generation_config=config, seed=seed)
    gap = (mask == 0).sum(-1).tolist()
    canvas = out.sequences.shape[1] - out.step_of.shape[1]
    for row, want in enumerate(expected):
        end = canvas + int(out.lengths[row])
        assert out.sequences[row, gap[row] : end].tolist() == want.tokens
    assert out.num_function_evaluations.tolist() == [row.forwards for row in expected]
    dlm.config.eos_token_id = EOS


def test_the_expand_token_is_not_written_where_lengths_stand(monkeypatch):
    dlm, ar = pair(0)
    ids = torch.tensor([[1, MASK, MASK, MASK, MASK, 2]])
    options = dict(ar_model=ar, max_new_tokens=0, temperature=0.0)
    first = generate(dlm, ids, **options).sequences[0, 1].item()
    monkeypatch.setattr(dlm.config, "expand_token_id", first, raising=False)
    assert first not in generate(dlm, ids, **options).sequences[0, 1:5].tolist()
