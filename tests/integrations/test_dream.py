"""`diffusion_generate`: Dream's algorithms against their definitions, and CoDiLA in their place."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "runtime")]

import naive_dream  # noqa: E402
from tiny_pairs import EOS, MASK, WORDS, make_ar, make_dlm  # noqa: E402

import codila  # noqa: E402

ALGORITHMS = ("origin", "maskgit_plus", "topk_margin", "entropy")


@pytest.fixture(scope="module")
def dlm():
    model = make_dlm(dtype=torch.float32)
    return codila.attach(model, make_ar(model, dtype=torch.float32))


def random_case(rng: random.Random) -> dict[str, Any]:
    return {
        "alg": rng.choice(ALGORITHMS),
        "steps": rng.choice([1, 2, 3, 5, 8, 12]),
        "temperature": rng.choice([0.0, 0.1, 0.7, 1.0]),
        "top_p": rng.choice([None, 0.9, 0.6]),
        "top_k": rng.choice([None, None, 5]),
        "alg_temp": rng.choice([None, None, 0.0, 0.3]),
        "eps": rng.choice([1e-3, 0.1]),
    }


def random_prompts(rng: random.Random, rows: int) -> tuple[list[list[int]], torch.Tensor, Any]:
    """Left-padded; with masks inside for one case in three."""
    prompts = [[rng.randrange(WORDS) for _ in range(rng.randint(2, 5))] for _ in range(rows)]
    if rng.random() < 0.34:
        for prompt in prompts:
            prompt[rng.randrange(1, len(prompt))] = MASK
    width = max(map(len, prompts))
    ids = torch.tensor([[EOS] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    return prompts, ids, mask


@pytest.mark.parametrize("case", range(100))
def test_compat_dream_is_token_for_token_as_published(dlm, case):
    rng = random.Random(case)
    options, new = random_case(rng), rng.randint(1, 7)
    _, ids, mask = random_prompts(rng, rng.choice([1, 1, 2, 3]))
    torch.manual_seed(case)
    want, history = naive_dream.published(dlm, ids, mask, new, **options)
    torch.manual_seed(case)
    out = dlm.diffusion_generate(
        ids,
        attention_mask=mask,
        max_new_tokens=new,
        compat="dream",
        return_dict_in_generate=True,
        output_history=True,
        **options,
    )
    assert out.sequences.tolist() == want.tolist()
    assert [x.tolist() for x in out.history] == [x.tolist() for x in history]


@pytest.mark.parametrize("case", range(60))
def test_every_row_of_a_padded_batch_is_the_corrected_definition(case):
    rng = random.Random(5000 + case)
    model = make_dlm(case % 3)
    codila.attach(model)
    options, new, seed = random_case(rng), rng.randint(0, 7), rng.randrange(2**40)
    source = rng.choice(["sampled", "raw"])
    prompts, ids, mask = random_prompts(rng, 3)
    if new == 0 and not all(MASK in p for p in prompts):
        new = 4
    out = model.diffusion_generate(
        ids, attention_mask=mask, max_new_tokens=new, confidence_source=source, seed=seed, **options
    )
    for row, prompt in enumerate(prompts):
        want, _ = naive_dream.corrected(
            model, prompt, new, seed=seed + row, source=source, **options
        )
        assert out[row, ids.shape[1] - len(prompt) :].tolist() == want


def revealed(history: list[torch.Tensor], new: int) -> list[int]:
    left = [new, *[int((x == MASK).sum()) for x in history]]
    return [a - b for a, b in zip(left, left[1:], strict=False)]


@pytest.mark.parametrize(("new", "steps"), [(48, 48), (48, 24), (48, 12)])
def test_the_published_schedule_is_uneven_and_the_corrected_one_is_not(dlm, new, steps):
    options = dict(
        max_new_tokens=new, steps=steps, alg="entropy", return_dict_in_generate=True,
        output_history=True,
    )  # fmt: skip
    ids, k = torch.tensor([[1, 2, 3]]), new // steps
    old = revealed(dlm.diffusion_generate(ids, compat="dream", **options).history, new)
    assert old == [k - 1] + [k] * (steps - 2) + [k + 1]
    new_ = revealed(dlm.diffusion_generate(ids, **options).history, new)
    assert new_ == [k] * steps


def test_steps_that_do_not_divide_differ_by_one_and_it_ends_when_all_is_known(dlm):
    options = dict(alg="entropy", return_dict_in_generate=True, output_history=True)
    ids = torch.tensor([[1, 2, 3]])
    out = dlm.diffusion_generate(ids, max_new_tokens=10, steps=4, **options)
    assert revealed(out.history, 10) == [3, 3, 2, 2]
    out = dlm.diffusion_generate(ids, max_new_tokens=5, steps=64, **options)
    assert revealed(out.history, 5) == [1] * 5


def test_unequal_masks_in_a_batch(dlm):
    """Published, the count is the mean: one row keeps masks, in another known tokens go."""
    ids = torch.tensor([[1, 2, 3, 4, 5, MASK], [MASK, MASK, MASK, MASK, MASK, 6]])
    options = dict(max_new_tokens=0, steps=2, alg="entropy", temperature=0.0)
    old = dlm.diffusion_generate(ids, compat="dream", **options)
    assert bool(((old == MASK) & (ids != MASK)).any())
    new = dlm.diffusion_generate(ids, **options)
    assert not (new == MASK).any()
    assert torch.equal(new[ids != MASK], ids[ids != MASK])


def test_ties_decode_from_the_left(dlm):
    """At a low temperature most confidences tie: the rule is what decides."""
    flat = lambda step, x, logits: torch.zeros_like(logits).index_fill(2, torch.tensor([5]), 9.0)  # noqa: E731
    out = dlm.diffusion_generate(
        torch.tensor([[1, 2]]),
        max_new_tokens=6,
        steps=6,
        alg="maskgit_plus",
        generation_logits_hook_func=flat,
        return_dict_in_generate=True,
        output_history=True,
    )
    assert [(x[0] == MASK).int().argmax().item() for x in out.history[:-1]] == [3, 4, 5, 6, 7]


@pytest.mark.parametrize("compat", ["dream", None])
@pytest.mark.parametrize("alg", ALGORITHMS)
def test_hooks_are_called_as_published(dlm, alg, compat):
    calls = []

    def on_tokens(step, x, logits):
        calls.append(("tokens", step, None if logits is None else tuple(logits.shape)))
        return x

    def on_logits(step, x, logits):
        calls.append(("logits", step, tuple(logits.shape)))
        return logits

    ids = torch.tensor([[1, 2, 3]])
    dlm.diffusion_generate(
        ids, max_new_tokens=4, steps=4, alg=alg, compat=compat, temperature=0.0,
        generation_tokens_hook_func=on_tokens, generation_logits_hook_func=on_logits,
    )  # fmt: skip
    shape = (1, 7, dlm.config.vocab_size)
    assert calls[0] == ("tokens", None, None)
    steps = (len(calls) - 1) // 2
    assert steps == 4 or compat is None
    for step in range(steps):
        assert calls[1 + 2 * step : 3 + 2 * step] == [
            ("logits", step, shape),
            ("tokens", step, shape),
        ]


def test_a_hook_changes_what_is_decoded(dlm):
    def only_seven(step, x, logits):
        out = torch.full_like(logits, -50.0)
        out[..., 7] = 50.0
        return out

    def first_is_nine(step, x, logits):
        x = x.clone()
        x[:, 3] = 9
        return x

    for compat in ("dream", None):
        out = dlm.diffusion_generate(
            torch.tensor([[1, 2, 3]]), max_new_tokens=3, steps=3, alg="entropy", compat=compat,
            generation_logits_hook_func=only_seven, generation_tokens_hook_func=first_is_nine,
        )  # fmt: skip
        assert out.tolist() == [[1, 2, 3, 9, 7, 7]]


@pytest.mark.parametrize("compat", ["dream", None])
def test_return_sequences_differ_and_are_reproduced_by_their_seed(dlm, compat):
    def run(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        own = {} if compat else {"seed": seed}
        return dlm.diffusion_generate(
            torch.tensor([[1, 2, 3], [4, 5, 6]]), max_new_tokens=8, steps=8, alg="entropy",
            temperature=1.0, num_return_sequences=3, compat=compat, **own,
        )  # fmt: skip

    out = run(4)
    assert out.shape == (6, 11)
    assert out[:, :3].tolist() == [[1, 2, 3]] * 3 + [[4, 5, 6]] * 3
    assert len({tuple(row) for row in out[:3].tolist()}) == 3
    assert torch.equal(run(4), out) and not torch.equal(run(5), out)


@pytest.mark.parametrize(
    ("alg", "schedule"), [(None, "static"), ("codila", "static"), ("codila_dynamic", "dynamic")]
)
def test_without_an_algorithm_of_dreams_it_is_codila(dlm, alg, schedule):
    model = make_dlm(dtype=torch.float32)
    ar = make_ar(model, dtype=torch.float32)
    ids, options = torch.tensor([[1, 2, 3]]), dict(max_new_tokens=8, seed=3, temperature=0.7)
    want = codila.generate(model, ids, ar_model=ar, schedule=schedule, **options)
    assert torch.equal(dlm.diffusion_generate(ids, alg=alg, **options), want.sequences)
    out = dlm.diffusion_generate(
        ids, alg=alg, return_dict_in_generate=True, output_history=True, **options
    )
    assert torch.equal(out.sequences, want.sequences)
    assert torch.equal(out.history[-1], want.sequences)


@pytest.mark.parametrize(("steps", "block_size"), [(16, 1), (8, 2), (6, 3), (4, 4), (2, 8), (1, 8)])
def test_steps_choose_the_block_size(dlm, steps, block_size):
    model = make_dlm(dtype=torch.float32)
    ar = make_ar(model, dtype=torch.float32)
    ids = torch.tensor([[1, 2, 3]])
    want = codila.generate(
        model, ids, ar_model=ar, max_new_tokens=16, block_size=block_size, seed=0
    )
    out = dlm.diffusion_generate(ids, max_new_tokens=16, steps=steps, seed=0)
    assert torch.equal(out, want.sequences)


def test_a_config_object_is_read_and_keywords_beat_it(dlm):
    config = SimpleNamespace(
        temperature=0.0, top_p=None, steps=4, alg="entropy", max_new_tokens=4, eps=1e-3,
        return_dict_in_generate=True, output_history=True, unrelated=object(),
    )  # fmt: skip
    ids = torch.tensor([[1, 2, 3]])
    out = dlm.diffusion_generate(ids, config)
    assert len(out.history) == 4
    assert len(dlm.diffusion_generate(ids, config, steps=2).history) == 2
    config.alg = None  # CoDiLA: what such an object holds by default is no wish
    assert dlm.diffusion_generate(ids, config).sequences.shape == (1, 7)
    assert dlm.diffusion_generate(ids, alg="entropy", max_length=9, steps=6).shape == (1, 9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alg": "best"}, "alg='best': expected one of"),
        ({"alg": "entropy", "block_size": 4}, r"\['block_size'\] are not read by alg='entropy'"),
        ({"alg_temp": 0.3}, r"\['alg_temp'\] belong to Dream's algorithms"),
        ({"speed": 3}, "unknown generation option"),
        ({"alg": "entropy", "steps": 0}, "steps=0"),
        ({"compat": "llada", "alg": "entropy"}, "compat='llada'"),
        ({"mask_token_id": 3}, f"mask_token_id=3, the model's is {MASK}"),
        ({"max_new_tokens": None, "max_length": 2, "alg": "entropy"}, "has 3 tokens already"),
        ({"max_new_tokens": 0, "alg": "entropy"}, "nothing to decode"),
        ({"generation_tokens_hook_func": print}, "the hooks are called by Dream's algorithms"),
    ],
)
def test_what_cannot_be_done_is_an_error(dlm, options, message):
    with pytest.raises(ValueError, match=message):
        dlm.diffusion_generate(torch.tensor([[1, 2, 3]]), **({"max_new_tokens": 4} | options))


def test_codila_without_an_ar_model_is_an_error():
    model = codila.attach(make_dlm())
    with pytest.raises(ValueError, match="needs an AR model"):
        model.diffusion_generate(torch.tensor([[1, 2, 3]]), max_new_tokens=4)
    assert model.diffusion_generate(torch.tensor([[1]]), alg="entropy", max_new_tokens=4).shape
