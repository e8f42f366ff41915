"""Streamers, stopping criteria, processors, end tokens, and several continuations of a prompt."""

from __future__ import annotations

import pytest
import torch
from test_generation_equals_naive import padded
from tiny_pairs import EOS, MASK, make_dlm, save_tokenizer
from transformers import (
    AutoTokenizer,
    MaxLengthCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
    TextIteratorStreamer,
    TextStreamer,
)

import codila
from codila.demo import TASKS
from codila.generation import generate

PROMPT = torch.tensor([[1, 2, 3]])
OPTIONS = {"max_new_tokens": 12, "temperature": 1.0, "top_p": 1.0, "seed": 5}


@pytest.fixture(scope="module")
def run(dlm, ar):
    def call(ids=PROMPT, **options):
        return generate(dlm, ids, ar_model=ar, **(OPTIONS | options))

    return call


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("words")
    save_tokenizer(folder, ["<end>", "<begin>", "<mask>"], mask_token="<mask>")
    return AutoTokenizer.from_pretrained(folder)


class Recorded:
    def __init__(self) -> None:
        self.seen: list[list[int]] = []
        self.ended = 0

    def put(self, value: torch.Tensor) -> None:
        self.seen.append(value.flatten().tolist())

    def end(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("schedule", ["static", "entropy"])
def test_a_text_streamer_gets_the_known_prefix_as_it_grows(run, schedule):
    streamer = Recorded()
    out = run(schedule=schedule, scope_blocks=0, streamer=streamer, output_history=True)
    prompt, *pieces = streamer.seen
    assert prompt == [1, 2, 3]
    assert streamer.ended == 1
    assert [t for piece in pieces for t in piece] == out.sequences[0, 3:].tolist()
    lengths = [int((h[0] == MASK).int().argmax()) for h in out.history[:-1]] + [15]
    grown = sorted(set(lengths) - {3})
    assert [len(p) for p in pieces] == [b - a for a, b in zip([3, *grown], grown, strict=False)]


def test_end_tokens_are_streamed_once(run):
    left_to_right = {"schedule": "entropy", "scope_blocks": 1, "block_size": 1}
    first = run(**left_to_right).sequences[0, 3].item()
    streamer = Recorded()
    out = run(**left_to_right, eos_token_id=first, streamer=streamer)
    assert out.sequences[0, 3:].tolist() == [first] * 12
    assert [t for piece in streamer.seen[1:] for t in piece] == [first]


def test_a_prompt_with_holes_is_streamed_from_the_left(run):
    streamer = Recorded()
    ids = torch.tensor([[1, MASK, 3, MASK, 5]])
    out = run(ids, max_new_tokens=0, streamer=streamer)
    assert streamer.seen[0] == [1]
    assert [t for piece in streamer.seen for t in piece] == out.sequences[0].tolist()


def test_transformers_streamers_print_the_text(run, tokenizer, capsys):
    out = run(streamer=TextStreamer(tokenizer, skip_prompt=True))
    text = tokenizer.decode(out.sequences[0, 3:])
    assert capsys.readouterr().out.split() == text.split()
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
    run(streamer=streamer)
    assert "".join(streamer).split() == text.split()


def test_a_streamer_follows_one_row(run):
    with pytest.raises(ValueError, match="a streamer follows one row, the batch has 2"):
        run(PROMPT.repeat(2, 1), streamer=Recorded())
    with pytest.raises(ValueError, match="a streamer follows one row, the batch has 2"):
        run(num_return_sequences=2, streamer=Recorded())


def test_a_criterion_sees_every_length_of_every_prefix_once(dlm, ar):
    seen: dict[int, list[list[int]]] = {1: [], 4: []}
    ids, mask = padded([[1, 2, 3], [4, 5]], "left")

    def watch(prefix: torch.Tensor, scores: None) -> torch.Tensor:
        assert prefix.shape[0] == 1 and scores is None
        seen[prefix[0, 0].item()].append(prefix[0].tolist())
        return torch.tensor([False])

    out = generate(
        dlm, ids, attention_mask=mask, ar_model=ar, stopping_criteria=watch, block_size=4, **OPTIONS
    )
    for row, prompt in enumerate(([1, 2, 3], [4, 5])):
        tokens = out.sequences[row, 3:].tolist()
        lengths = [len(p) - len(prompt) for p in seen[prompt[0]]]
        assert lengths == list(range(1, 13))
        assert all(p == prompt + tokens[: len(p) - len(prompt)] for p in seen[prompt[0]])


def test_a_stop_string_inside_a_block_is_not_jumped_over():
    pair = codila.load("tiny")
    ids = pair.tokenizer(TASKS[0].prompt, return_tensors="pt").input_ids
    options = dict(max_new_tokens=16, schedule="static", seed=3)
    plain = pair.generate(ids, **options)
    written = plain.sequences[0, ids.shape[1] :].tolist()
    stop = next(i for i in range(1, 8) if i % 4 != 3 and written[i] not in written[:i])
    criteria = StoppingCriteriaList(
        [StopStringCriteria(pair.tokenizer, pair.tokenizer.decode([written[stop]]))]
    )
    out = pair.generate(ids, stopping_criteria=criteria, **options)
    tokens = out.sequences[0, ids.shape[1] :].tolist()
    first = tokens.index(pair.dlm.eos_token_id)
    assert first <= stop + 1 and tokens[:first] == written[:first]
    assert set(tokens[first:]) == {pair.dlm.eos_token_id}
    assert pair.tokenizer.decode([written[stop]]) in pair.tokenizer.decode(tokens[:first])
    assert out.num_function_evaluations < plain.num_function_evaluations


def test_rows_stop_by_themselves(run):
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    plain = run(ids, eos_fill=False)
    criteria = [lambda prefix, scores: prefix[0, 0] == 4 and prefix.shape[1] == 5]
    out = run(ids, eos_fill=False, stopping_criteria=criteria)
    assert torch.equal(out.sequences[0], plain.sequences[0])
    assert torch.equal(out.sequences[1, :5], plain.sequences[1, :5])
    assert (out.sequences[1, 5:] == EOS).all()
    longest = MaxLengthCriteria(max_length=7)
    assert (run(ids, stopping_criteria=longest).sequences[:, 7:] == EOS).all()


def test_processors_are_applied_in_order(run):
    order = []

    def first(ids, logits):
        order.append(1)
        assert ids.shape == (logits.shape[0], 15)
        return logits

    def only_nine(ids, logits):
        order.append(2)
        out = torch.full_like(logits, -torch.inf)
        out[:, 9] = 0
        return out

    out = run(schedule="entropy", logits_processor=[first, only_nine], eos_fill=False)
    assert out.sequences[0, 3:].tolist() == [9] * 12
    assert order[:4] == [1, 2, 1, 2]


@pytest.mark.parametrize("schedule", ["static", "dynamic", "entropy"])
def test_suppressed_tokens_are_never_written(run, schedule):
    written = set(run(schedule=schedule, eos_fill=False).sequences[0, 3:].tolist())
    banned = sorted(written)[:6]
    out = run(schedule=schedule, suppress_tokens=banned, eos_fill=False)
    assert not set(out.sequences[0, 3:].tolist()) & set(banned)


@pytest.mark.parametrize("schedule", ["static", "dynamic", "entropy"])
def test_no_end_before_min_new_tokens(run, schedule):
    plain = run(schedule=schedule, eos_fill=False).sequences[0, 3:].tolist()
    options = dict(schedule=schedule, eos_token_id=plain[1], min_new_tokens=7)
    assert plain[1] not in run(**options).sequences[0, 3:10].tolist()
    everywhere = run(**(options | {"min_new_tokens": 12})).sequences[0, 3:]
    assert plain[1] not in everywhere.tolist()


def test_any_of_several_end_tokens_ends(run):
    plain = run(schedule="entropy", scope_blocks=1, block_size=1).sequences[0, 3:].tolist()
    ends = [MASK - 1, plain[4]]
    out = run(schedule="entropy", scope_blocks=1, block_size=1, eos_token_id=ends)
    stop = plain.index(plain[4]) + 1
    assert out.sequences[0, 3 : 3 + stop].tolist() == plain[:stop]
    assert (out.sequences[0, 3 + stop :] == ends[0]).all()
    assert out.tokens_per_forward.item() == pytest.approx(1)


def test_the_end_tokens_of_the_model_may_be_several():
    dlm = make_dlm(2)
    options = dict(schedule="entropy", scope_blocks=1, block_size=1) | OPTIONS
    plain = generate(dlm, PROMPT, **options).sequences[0, 3:].tolist()
    dlm.config.eos_token_id = [EOS, plain[3]]
    assert dlm.eos_token_ids == (EOS, plain[3])
    stop = plain.index(plain[3]) + 1
    out = generate(dlm, PROMPT, **options).sequences[0, 3:].tolist()
    assert out == plain[:stop] + [EOS] * (12 - stop)


def test_several_continuations_differ_and_are_those_of_their_seeds(dlm, ar):
    ids, mask = padded([[1, 2, 3], [4, 5]], "right")
    options = {k: v for k, v in OPTIONS.items() if k != "seed"} | {"ar_model": ar}
    out = generate(dlm, ids, attention_mask=mask, num_return_sequences=3, seed=20, **options)
    assert out.sequences.shape == (6, 15)
    assert len({tuple(row) for row in out.sequences[:3, 3:].tolist()}) == 3
    for row in range(6):
        prompt = torch.tensor([[1, 2, 3]] if row < 3 else [[4, 5]])
        one = generate(dlm, prompt, seed=20 + row, **options)
        assert out.sequences[row, -12:].tolist() == one.sequences[0, -12:].tolist()
    with pytest.raises(ValueError, match="2 seeds for 6 rows"):
        generate(dlm, ids, attention_mask=mask, num_return_sequences=3, seed=[1, 2], **options)
