"""Seeds, streamers, history, counts, and stopping at the end token."""

from __future__ import annotations

import pytest
import torch
from tiny_pairs import EOS, MASK, make_ar, make_dlm, save_tokenizer
from transformers import AutoTokenizer, TextDiffusionStreamer

import codila
from codila.generation import generate

PROMPTS = torch.tensor([[1, 2, 3], [4, 5, 6]])
OPTIONS = {
    "max_new_tokens": 8,
    "schedule": "dynamic",
    "entropy_threshold": 2.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "eos_fill": False,
}


@pytest.fixture(scope="module")
def run(dlm, ar):
    def call(ids=PROMPTS, **options):
        return generate(dlm, ids, ar_model=ar, **(OPTIONS | options))

    return call


def test_the_same_seed_gives_the_same_tokens(run):
    assert torch.equal(run(seed=5).sequences, run(seed=5).sequences)
    assert not torch.equal(run(seed=5).sequences, run(seed=6).sequences)


def test_row_r_draws_from_seed_plus_r(run):
    batch = run(seed=40).sequences
    for row in range(2):
        single = run(PROMPTS[row : row + 1], seed=40 + row).sequences
        assert torch.equal(batch[row], single[0])


def test_a_list_gives_every_row_its_own_seed(run):
    swapped = run(PROMPTS.flip(0), seed=[41, 40]).sequences.flip(0)
    assert torch.equal(swapped, run(seed=40).sequences)
    assert torch.equal(run(PROMPTS[:1].repeat(2, 1), seed=[7, 7]).sequences.unique(dim=0),
                       run(PROMPTS[:1], seed=7).sequences)  # fmt: skip


def test_a_seed_does_not_touch_torchs_generator(run):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    run(seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_no_seed_draws_one_from_torchs_generator(run):
    torch.manual_seed(3)
    first, second = run().sequences, run().sequences
    assert not torch.equal(first, second)
    torch.manual_seed(3)
    assert torch.equal(run().sequences, first)


def test_temperature_zero_needs_no_seed(run):
    assert torch.equal(run(temperature=0.0).sequences, run(temperature=0.0, seed=9).sequences)


def test_padding_does_not_move_the_draws(run):
    padded = torch.cat([torch.full((2, 2), EOS), PROMPTS], dim=1)
    mask = torch.tensor([[0, 0, 1, 1, 1]] * 2)
    out = run(padded, attention_mask=mask, seed=40)
    assert torch.equal(out.sequences[:, 2:], run(seed=40).sequences)


class Recorder:
    """A streamer that keeps what it is given."""

    def __init__(self) -> None:
        self.calls: list[tuple] = []

    def put(self, value):
        self.calls.append(("put", value.clone(), None))

    def put_draft(self, value, *, masked):
        self.calls.append(("draft", value.clone(), masked.clone()))

    def end(self):
        self.calls.append(("end", None, None))


def test_a_streamer_gets_the_prompt_a_draft_per_step_and_the_tokens(run):
    streamer = Recorder()
    out = run(PROMPTS[:1], seed=2, diffusion_streamer=streamer, output_history=True)
    kinds = [kind for kind, _, _ in streamer.calls]
    steps = int(out.num_function_evaluations)
    assert kinds == ["put"] + ["draft"] * steps + ["put", "end"]
    assert torch.equal(streamer.calls[0][1], PROMPTS[:1])
    assert torch.equal(streamer.calls[-2][1], out.sequences[0, 3:])
    drafts = streamer.calls[1:-2]
    for (_, draft, masked), canvas in zip(drafts, out.history, strict=True):
        known = canvas[0, 3:]
        assert torch.equal(masked, known == MASK)
        assert torch.equal(draft[~masked], known[~masked])
        assert (draft[masked] != MASK).all(), "a masked candidate shows its most probable token"
    assert not drafts[-1][2].any()


def test_positions_outside_the_scope_are_drafted_as_masks(run):
    streamer = Recorder()
    run(
        PROMPTS[:1],
        schedule="static",
        entropy_threshold=None,
        block_size=2,
        scope_blocks=1,
        seed=2,
        diffusion_streamer=streamer,
    )
    first = streamer.calls[1]
    assert first[1][2:].tolist() == [MASK] * 6 and first[2].tolist() == [False] * 2 + [True] * 6


def test_transformers_text_diffusion_streamer_prints_drafts_and_text(run, tmp_path, capsys):
    save_tokenizer(tmp_path, ["<end>", "<begin>", "<mask>"], mask_token="<mask>")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    streamer = TextDiffusionStreamer(tokenizer, skip_prompt=True)
    out = run(PROMPTS[:1], seed=2, diffusion_streamer=streamer)
    printed = capsys.readouterr().out
    steps = int(out.num_function_evaluations)
    assert printed.count("\033[33m") == steps  # every draft in yellow
    final = printed.rpartition("\033[J")[2]
    assert final == tokenizer.decode(out.sequences[0, 3:]) + "\n"


def test_a_step_by_step_history_ends_in_the_result(run):
    out = run(seed=3, output_history=True)
    assert len(out.history) == int(out.num_function_evaluations.max())
    assert torch.equal(out.history[-1], out.sequences)
    for step, canvas in enumerate(out.history):
        assert torch.equal(canvas[:, :3], PROMPTS)
        expected = torch.where(out.step_of <= step, out.sequences[:, 3:], MASK)
        assert torch.equal(canvas[:, 3:], expected)
    assert run(seed=3).history is None


def test_counts(run):
    out = run(seed=3, max_new_tokens=7)
    assert out.sequences.shape == (2, 10) and out.step_of.shape == (2, 7)
    forwards = out.num_function_evaluations
    assert torch.equal(forwards, out.step_of.amax(-1) + 1)
    torch.testing.assert_close(out.tokens_per_forward_canvas, 7 / forwards)
    for row, tokens in enumerate(out.sequences[:, 3:].tolist()):
        used = tokens.index(EOS) + 1 if EOS in tokens else 7
        assert out.tokens_per_forward[row].item() == pytest.approx(used / forwards[row].item())


@pytest.fixture(scope="module")
def ending():
    """A pair whose end token is one that it writes in the middle of the canvas."""
    dlm = make_dlm(11)
    ar = make_ar(dlm, 11)
    options = {"ar_model": ar, "max_new_tokens": 16, "block_size": 4, "seed": 0, "scope_blocks": 1}
    out = generate(dlm, PROMPTS[:1], **options)
    dlm.config.eos_token_id = int(out.sequences[0, 3 + 5])
    return dlm, options


def test_once_an_end_is_reached_the_rest_is_filled(ending):
    dlm, options = ending
    eos = dlm.eos_token_id
    whole = generate(dlm, PROMPTS[:1], eos_fill=False, **options)
    out = generate(dlm, PROMPTS[:1], **options)
    tokens = out.sequences[0, 3:].tolist()
    first = whole.sequences[0, 3:].tolist().index(eos)
    known = (first // 4 + 1) * 4  # the block of the end is written as a whole
    assert tokens[:known] == whole.sequences[0, 3 : 3 + known].tolist()
    assert tokens[known:] == [eos] * (16 - known)
    assert out.num_function_evaluations.item() == known // 4
    assert whole.num_function_evaluations.item() == 4
    assert out.tokens_per_forward.item() == pytest.approx((first + 1) / (known // 4))
    assert out.tokens_per_forward_canvas.item() == pytest.approx(16 / (known // 4))


def test_a_row_that_ends_leaves_the_batch_and_the_others_go_on(ending):
    dlm, options = ending
    options = options | {"seed": [0, 1, 0]}
    prompts = torch.tensor([[1, 2, 3], [9, 8, 7], [1, 2, 3]])
    out = generate(dlm, prompts, **options)
    single = generate(dlm, prompts[1:2], **(options | {"seed": 1}))
    assert torch.equal(out.sequences[1], single.sequences[0])
    assert torch.equal(out.sequences[0], out.sequences[2])
    assert out.num_function_evaluations[1] == single.num_function_evaluations[0]


def test_a_logits_processor_acts_on_what_is_committed(dlm):
    def only_even(sequences, logits):
        assert sequences.shape[0] == logits.shape[0]
        return logits.index_fill(1, torch.arange(1, 96, 2), -torch.inf)

    out = generate(
        dlm, PROMPTS, max_new_tokens=4, schedule="entropy", logits_processor=only_even, seed=0
    )
    assert (out.sequences[:, 3:] % 2 == 0).all()


def test_named_options_beat_the_config_and_the_config_the_default(dlm, ar):
    config = codila.GenerationConfig(max_new_tokens=4, block_size=2)
    out = generate(dlm, PROMPTS, ar_model=ar, generation_config=config, seed=0)
    assert out.sequences.shape == (2, 7) and out.num_function_evaluations.max() <= 2
    out = generate(dlm, PROMPTS, ar_model=ar, generation_config=config, max_new_tokens=6, seed=0)
    assert out.sequences.shape == (2, 9)
