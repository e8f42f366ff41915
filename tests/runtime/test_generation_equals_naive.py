"""`generate` against the decoder of `naive`, token for token, on random models and options."""

from __future__ import annotations

import functools
import random
from typing import Any

import naive
import pytest
import torch
from tiny_pairs import AR_VOCAB, EOS, MASK, WORDS, make_ar, make_dlm

from codila.block_decoder import BlockDecoder
from codila.bridge import VocabularyBridge
from codila.config import GenerationConfig
from codila.generation import generate
from codila.schedules import SCHEDULES

CASES = 60
PAIRS = 4


@functools.cache
def pair(kind: int) -> tuple[Any, Any]:
    """Pairs that differ in sharpness, boundaries, window, bridge and tying."""
    dlm = make_dlm(kind, sharpness=(1.0, 2.0, 3.0, 6.0)[kind])
    suppressed = tuple(range(71, AR_VOCAB))
    bridge, boundaries = VocabularyBridge(AR_VOCAB, (MASK,), suppressed), (73, 74)
    if kind == 1:  # some tokens stand elsewhere in the AR model's tables
        bridge = VocabularyBridge(73, (MASK,), (71,), {5: 76, 71: 5, 9: 10, 10: 9})
    elif kind == 2:
        boundaries = None
    elif kind == 3:  # the AR model's rows end before the mask token
        bridge = VocabularyBridge(71, (MASK,), suppressed)
    window = ((0, 0), (3, 2), (2, 0), (0, 0))[kind]
    return dlm, make_ar(
        dlm, kind, bridge=bridge, boundaries=boundaries, tied=kind != 3, window=window
    )


def random_config(rng: random.Random, dlm: Any) -> GenerationConfig:
    schedule = rng.choice(
        ["static", "static", "dynamic", "dynamic", "dynamic", "dynamic"]
        + ["entropy", "confidence", "margin", "threshold"]
        + ["ar_likelihood", "ar_likelihood", "ar_frontier", "ar_frontier"]
    )
    threshold = rng.choice([-1.0, float("inf"), None, None, None, None])
    if threshold is None:  # between the model's own entropies, so that prefixes of all lengths fit
        logits = dlm(torch.tensor([[1] + [MASK] * 12])).logits[0, :, :71]
        entropy = torch.distributions.Categorical(logits=logits).entropy()
        threshold = entropy.quantile(rng.uniform(0.3, 0.9)).item()
    temperature, top_p = rng.choice([(0.0, 1.0), (0.0, 0.8), (0.7, 0.8), (0.1, 0.8), (1.0, 1.0)])
    return GenerationConfig(
        max_new_tokens=rng.randint(4, 10),
        block_size=rng.choice([1, 2, 3, 3, 4, 4, 4]),
        schedule=schedule,
        blocks_per_step=rng.choice([1, 2, 9]),
        entropy_threshold=threshold,
        confidence_threshold=rng.choice([0.1, 0.4, 0.9]),
        block_gap=rng.choice([0, 1]) if schedule == "static" else 0,
        skip_certain=schedule in ("static", "dynamic") and rng.random() < 0.4,
        joint_threshold=rng.choice([0.001, 0.1, 1.0]),
        scope_blocks=rng.choice([0, 1, 2, 10]),
        tokens_per_step=rng.choice([1, 2, 3]),
        temperature=temperature,
        top_p=top_p,
        top_k=rng.choice([0, 0, 5]),
        conditioning=rng.choice(["soft", "soft", "top-1", "top-3"]),
        conditioning_temperature=rng.choice([1.0, 1.0, 0.6]),
        confidence_source=rng.choice(["raw", "raw", "sampled"]),
        eos_fill=rng.random() < 0.5,
    )


def padded(prompts: list[list[int]], side: str) -> tuple[torch.Tensor, torch.Tensor]:
    width = max(map(len, prompts))
    ids, mask = [], []
    for prompt in prompts:
        gap = width - len(prompt)
        ids.append([EOS] * gap + prompt if side == "left" else prompt + [EOS] * gap)
        ones = [1] * len(prompt)
        mask.append([0] * gap + ones if side == "left" else ones + [0] * gap)
    return torch.tensor(ids), torch.tensor(mask)


@pytest.mark.parametrize("case", range(CASES))
def test_every_row_of_a_padded_batch_equals_the_naive_decoder(case):
    rng = random.Random(case)
    dlm, ar = pair(case % PAIRS)
    config = random_config(rng, dlm)
    if not SCHEDULES[config.schedule].uses_ar and rng.random() < 0.5:
        ar = None  # a baseline on the DLM's whole vocabulary
    prompts = [[rng.randrange(WORDS) for _ in range(rng.randint(1, 5))] for _ in range(2)]
    seed = rng.randrange(2**40)
    dlm.config.eos_token_id = EOS
    if config.eos_fill:  # a random model seldom writes a given token: make one of its own the end
        draft = naive.decode(dlm, ar, prompts[0], config, seed).tokens[len(prompts[0]) :]
        dlm.config.eos_token_id = draft[len(draft) // 3]

    expected = [naive.decode(dlm, ar, p, config, seed + row) for row, p in enumerate(prompts)]
    ids, mask = padded(prompts, rng.choice(["left", "right"]))
    out = generate(dlm, ids, ar_model=ar, attention_mask=mask, generation_config=config, seed=seed)

    for row, want in enumerate(expected):
        assert out.sequences[row, -len(want.tokens) :].tolist() == want.tokens
    assert out.num_function_evaluations.tolist() == [row.forwards for row in expected]


@pytest.mark.parametrize("seed", range(4))
def test_partial_blocks_with_holes_equal_the_naive_decoder(seed):
    dlm, ar = pair(seed)
    config = GenerationConfig(
        max_new_tokens=16,
        schedule="dynamic",
        entropy_threshold=(3.2, 1.6, 1.0, 0.4)[seed],
        temperature=1.0,
        top_p=1.0,
        eos_fill=False,
    )
    expected = naive.decode(dlm, ar, [1, 2], config, seed)
    out = generate(dlm, torch.tensor([[1, 2]]), ar_model=ar, generation_config=config, seed=seed)
    assert 0 < expected.ar_tokens < 16, "the case should mix the AR model and the DLM's sampler"
    assert out.sequences[0].tolist() == expected.tokens
    assert out.num_function_evaluations.item() == expected.forwards


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("temperature", "top_p"), [(0.0, 1.0), (0.7, 0.8)])
def test_a_batch_equals_its_single_runs(side, temperature, top_p):
    dlm, ar = make_dlm(7, sharpness=3.0), make_ar(make_dlm(7), 7)
    prompts = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 3]]
    options = dict(
        ar_model=ar,
        max_new_tokens=8,
        schedule="dynamic",
        entropy_threshold=1.5,
        temperature=temperature,
        top_p=top_p,
    )
    ids, mask = padded(prompts, side)
    batch = generate(dlm, ids, attention_mask=mask, seed=[11, 12, 13], **options)
    for row, prompt in enumerate(prompts):
        one = generate(dlm, torch.tensor([prompt]), seed=11 + row, **options)
        assert batch.sequences[row, 5:].tolist() == one.sequences[0, len(prompt) :].tolist()
        assert batch.sequences[row, 5 - len(prompt) : 5].tolist() == prompt
        assert batch.num_function_evaluations[row] == one.num_function_evaluations[0]
        assert batch.step_of[row].tolist() == one.step_of[0].tolist()


@pytest.mark.parametrize("sharpness", [0.5, 40.0])
def test_certain_blocks_need_no_ar_model(sharpness, monkeypatch):
    """A sharp DLM's arg-max is the mode of any joint of its marginals; a flat one shows nothing."""
    dlm = make_dlm(1, sharpness=sharpness)
    ar, calls = make_ar(dlm), []
    decode = BlockDecoder.decode
    monkeypatch.setattr(
        BlockDecoder, "decode", lambda self, *a, **k: calls.append(1) or decode(self, *a, **k)
    )
    ids, options = torch.tensor([[1, 2, 3]]), dict(max_new_tokens=4, temperature=0.0)
    out = generate(dlm, ids, ar_model=ar, skip_certain=True, **options)
    assert bool(calls) == (sharpness < 1)
    if not calls:
        logits = dlm(torch.tensor([[1, 2, 3, *[MASK] * 4]])).logits[0, 2:6, :AR_VOCAB]
        logits[:, MASK] = -torch.inf
        assert out.sequences[0, 3:].tolist() == logits.argmax(-1).tolist()


def test_the_random_cases_reach_every_rule():
    """Guards the cases themselves: a rule that no case reaches would be untested."""
    configs = [random_config(random.Random(case), pair(case % PAIRS)[0]) for case in range(CASES)]
    for field, values in {
        "schedule": 8, "confidence_source": 2, "conditioning": 3, "scope_blocks": 4,
        "blocks_per_step": 3, "temperature": 4, "top_k": 2, "eos_fill": 2,
    }.items():  # fmt: skip
        assert len({getattr(c, field) for c in configs}) == values, field
    assert any(c.max_new_tokens % c.block_size for c in configs)
    assert any(c.confidence_source == "sampled" and c.temperature == 0 for c in configs)
