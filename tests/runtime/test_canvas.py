"""The canvas: padding, the block grid, frontier and scope, commits, filling after the end."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from codila.canvas import Canvas

MASK, EOS = 9, 8


def start(ids: list[list[int]], mask=None, length: int = 6, block_size: int = 2) -> Canvas:
    return Canvas.start(
        torch.tensor(ids, dtype=torch.int64),
        None if mask is None else torch.tensor(mask),
        length=length,
        block_size=block_size,
        mask_token_id=MASK,
        eos_token_ids=(EOS,),
    )


def canvas_of(rows: list[list[int]], length: int | None = None, block_size: int = 2) -> Canvas:
    """A canvas that stands as ``rows`` say."""
    canvas = start([[0]] * len(rows), length=length or len(rows[0]), block_size=block_size)
    canvas.tokens.copy_(torch.tensor(rows))
    canvas.step_of[~canvas.masked] = 0  # committed, not given
    return canvas


def test_a_canvas_is_masks_behind_the_prompt():
    canvas = start([[1, 2, 3]])
    assert canvas.ids.tolist() == [[1, 2, 3] + [MASK] * 6]
    assert canvas.tokens.tolist() == [[MASK] * 6]
    assert canvas.masked.all() and canvas.unfinished.all()
    assert canvas.attention_mask is None
    assert canvas.step_of.tolist() == [[-1] * 6]


def test_the_last_block_is_completed_with_ends_that_the_model_does_not_see():
    canvas = start([[1]], length=5, block_size=4)
    assert canvas.seen_ids.tolist() == [[1] + [MASK] * 5]
    assert canvas.tokens.tolist() == [[MASK] * 5 + [EOS] * 3]
    assert canvas.starts.tolist() == [[0, 4]]
    candidates = canvas.candidates(0)
    assert candidates.position[0].tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert candidates.masked[0].tolist() == [[True] * 4, [True, False, False, False]]
    canvas.tokens[:, :5] = 0
    assert not canvas.unfinished.any()


def test_masks_in_a_prompt_are_decoded_in_place():
    canvas = start([[1, MASK, MASK, MASK, 5, MASK, 7, 7], [1, 2, 3, MASK, MASK, 6, 7, 7]], length=0)
    assert canvas.prompt_length == 1 and canvas.length == 7
    # a block starts at the first mask that no block covers; the second row has one block less
    assert canvas.starts.tolist() == [[0, 2, 4], [2, 7, 7]]
    candidates = canvas.candidates(0)
    assert candidates.position[0].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert candidates.masked[0].tolist() == [[True, True], [True, False], [True, False]]
    assert candidates.masked[1].tolist() == [[True, True], [False, False], [False, False]]
    assert canvas.candidates(1).position[1].tolist() == [[2, 3]]
    assert canvas.given[1].tolist() == [True, True, False, False, True, True, True]


def test_a_hole_and_a_canvas_share_a_block_where_they_are_close():
    canvas = start([[1, MASK, 3]], length=3, block_size=4)
    assert canvas.prompt_length == 1
    assert canvas.starts.tolist() == [[0, 4]]
    assert canvas.candidates(0).masked[0].tolist() == [
        [True, False, True, True],
        [True, False, False, False],
    ]


def test_an_end_fills_its_hole_and_no_other():
    canvas = start([[1, MASK, MASK, MASK, 5, MASK, MASK]], length=0)
    canvas.tokens[0, 0] = EOS
    canvas.step_of[0, 0] = 0
    canvas.fill_after_eos(3)
    assert canvas.tokens.tolist() == [[EOS, EOS, EOS, 5, MASK, MASK]]


def test_a_given_end_fills_nothing():
    canvas = start([[1, EOS, MASK, MASK]], length=0)
    canvas.fill_after_eos(0)
    assert canvas.masked.sum() == 2


def test_any_of_several_ends_fills_with_the_first():
    canvas = start([[1]], length=4)
    canvas.eos_token_ids = (EOS, 5)
    canvas.tokens[0, 0], canvas.step_of[0, 0] = 5, 0
    canvas.fill_after_eos(1)
    assert canvas.tokens.tolist() == [[5, EOS, EOS, EOS]]


@pytest.mark.parametrize(
    ("ids", "mask"),
    [
        ([[7, 7, 1, 2], [1, 2, 3, 4]], [[0, 0, 1, 1], [1, 1, 1, 1]]),
        ([[1, 2, 7, 7], [1, 2, 3, 4]], [[1, 1, 0, 0], [1, 1, 1, 1]]),
        ([[7, 1, 2, 7], [1, 2, 3, 4]], [[0, 1, 1, 0], [1, 1, 1, 1]]),
    ],
    ids=["left", "right", "both"],
)
def test_padding_is_moved_to_the_left(ids, mask):
    canvas = start(ids, mask)
    assert canvas.ids[:, :4].tolist() == [[7, 7, 1, 2], [1, 2, 3, 4]]
    assert canvas.padding.tolist() == [2, 0]
    assert canvas.attention_mask is not None
    assert canvas.attention_mask.int().tolist() == [[0, 0, 1, 1] + [1] * 6, [1] * 10]


def test_a_mask_of_ones_is_no_mask():
    assert start([[1, 2]], [[1, 1]]).attention_mask is None


def test_padding_may_hold_the_mask_token():
    assert start([[MASK, 1]], [[0, 1]]).padding.tolist() == [1]


def test_candidates_start_at_the_leftmost_block_with_a_mask():
    canvas = canvas_of([[1, 1, 1, MASK, 1, 1, MASK, MASK], [MASK] * 8, [1] * 7 + [MASK]])
    position, masked, ids = canvas.candidates(2)
    assert position[0].tolist() == [[2, 3], [4, 5]]
    assert masked[0].tolist() == [[False, True], [False, False]]
    assert ids[0].tolist() == [[1, MASK], [1, 1]]
    assert position[1].tolist() == [[0, 1], [2, 3]]
    assert masked[2].tolist() == [[False, True], [False, False]]  # nothing behind the last block


def test_scope_counts_blocks_and_zero_is_the_whole_canvas():
    canvas = canvas_of([[1, 1, MASK, MASK, 1, MASK]])
    assert canvas.candidates(1).position.shape == (1, 1, 2)
    assert canvas.candidates(10).position.shape == (1, 3, 2)
    whole = canvas.candidates(0)
    assert whole.position.flatten().tolist() == list(range(6))
    assert torch.equal(whole.masked.flatten(), canvas.masked[0])


def test_a_row_without_masks_has_no_masked_candidate():
    assert not canvas_of([[1, 2, 3, 4]]).candidates(2).masked.any()


def commit(canvas: Canvas, position: list[list[int]], ids: list[list[int]], write: Tensor) -> None:
    canvas.commit(torch.tensor(position), torch.tensor(ids), write, step=3)


def test_commit_writes_masked_positions_only():
    canvas = canvas_of([[1, MASK, MASK, 4], [MASK, MASK, 3, MASK]])
    write = torch.tensor([[True, True, False], [True, True, True]])
    commit(canvas, [[0, 1, 2], [3, 2, 0]], [[5, 5, 5], [6, 6, 6]], write)
    assert canvas.tokens.tolist() == [[1, 5, MASK, 4], [6, MASK, 3, 6]]
    assert canvas.step_of.tolist() == [[0, 3, -1, 0], [3, -1, 0, 3]]
    assert canvas.ids[:, 0].tolist() == [0, 0]  # the prompt


def test_a_position_of_minus_one_that_is_not_written_is_dropped():
    canvas = canvas_of([[MASK, MASK]])
    commit(canvas, [[-1, 1]], [[5, 6]], torch.tensor([[False, True]]))
    assert canvas.tokens.tolist() == [[MASK, 6]]


def test_the_rest_is_filled_once_everything_left_of_an_end_is_known():
    canvas = canvas_of(
        [
            [1, EOS, MASK, 2, MASK, MASK],  # fill; a known token stays
            [1, MASK, EOS, MASK, MASK, MASK],  # something is unknown left of it
            [EOS, MASK, EOS, MASK, MASK, MASK],  # the first end decides
            [1, 2, MASK, MASK, MASK, MASK],  # no end
        ]
    )
    canvas.fill_after_eos(7)
    assert canvas.tokens.tolist() == [
        [1, EOS, EOS, 2, EOS, EOS],
        [1, MASK, EOS, MASK, MASK, MASK],
        [EOS] * 6,
        [1, 2, MASK, MASK, MASK, MASK],
    ]
    assert canvas.step_of[0].tolist() == [0, 0, 7, 0, 7, 7]
    assert canvas.unfinished.tolist() == [False, True, False, True]


def test_a_selection_is_a_copy_of_its_rows():
    canvas = start([[7, 1], [1, 2], [3, 4]], [[0, 1], [1, 1], [1, 1]])
    part = canvas.select(torch.tensor([2, 0]))
    assert part.ids[:, :2].tolist() == [[3, 4], [7, 1]]
    assert part.padding.tolist() == [0, 1]
    part.tokens.fill_(5)
    part.step_of.fill_(1)
    assert canvas.masked.all() and (canvas.step_of == -1).all()


@pytest.mark.parametrize(
    ("ids", "mask", "message"),
    [
        ([[]], None, r"input_ids are \[1, 0\].*at least one token"),
        ([[1, 2]], [[1]], r"attention_mask is \[1, 1\], input_ids are \[1, 2\]"),
        ([[1, 2], [3, 4]], [[1, 1], [0, 0]], "prompt 1 is empty"),
        ([[1, 2, 3]], [[1, 0, 1]], "zeros inside a prompt"),
    ],
)
def test_prompts_that_cannot_be_decoded_are_refused(ids, mask, message):
    with pytest.raises(ValueError, match=message):
        start(ids, mask)


@pytest.mark.parametrize(
    ("ids", "mask", "message"),
    [
        ([[1, 2]], None, "max_new_tokens is 0, and no prompt holds the mask token 9"),
        ([[MASK, 2]], [[0, 1]], "max_new_tokens is 0"),
        ([[1, MASK], [1, 2]], None, r"nothing to decode in prompts \[1\]"),
    ],
)
def test_nothing_to_decode_is_an_error(ids, mask, message):
    with pytest.raises(ValueError, match=message):
        start(ids, mask, length=0)
