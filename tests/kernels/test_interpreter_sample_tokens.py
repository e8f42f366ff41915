"""`sample_tokens` in the interpreter, against the definition in Python's own arithmetic.

The kernel's exponentials are float32: off by at most ``(4 |d| + 4) u`` relative, with d the
exponent of a term. Hence the token must be that of the definition for some uniform within that
much of the row's own, on either side, and the kept set, where it comes from exact ties and distant
edges, must be the same. Where all weights are powers of two the exponentials are exact, and so is
the token.
"""

from __future__ import annotations

import math

import pytest
import torch
from interpreter_checks import INTERPRETER
from kernel_definitions import (
    U,
    distribution,
    drawn_token,
    kept_ids,
    mean,
    philox_word,
    sampling_weights,
)

import codila_kernels as ck

pytestmark = [*INTERPRETER, pytest.mark.usefixtures("quick_device_functions")]


def words_of(seed, counter):
    position, step = (int(n) & 0xFFFFFFFF for n in counter)
    return (position, step, 0, 0), (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)


def draw(logits, generator, **options):
    rows = logits.shape[0]
    seeds = torch.randint(-(2**62), 2**62, (rows,), generator=generator)
    counters = torch.randint(-(2**31), 2**31, (rows, 2), generator=generator).to(torch.int32)
    ids, probs = ck.sample_tokens(logits, seeds, counters, impl="triton", **options)
    assert (ids.dtype, probs.dtype) == (torch.int64, torch.float32)
    pairs = zip(seeds.tolist(), counters.tolist(), strict=True)
    uniforms = [philox_word(*words_of(seed, counter)) * 2.0**-32 for seed, counter in pairs]
    return ids.tolist(), probs.tolist(), uniforms


def check(logits, generator, temperature=1.0, top_k=None, top_p=None, **columns):
    """Every row's token and probability, within the error that float32 exponentials allow."""
    options = dict(temperature=temperature, top_k=top_k, top_p=top_p, **columns)
    ids, probs, uniforms = draw(logits, generator, **options)
    for r, values in enumerate(logits.tolist()):
        row = distribution(values, temperature, **columns)
        kept = kept_ids(row, top_k, top_p)
        weights = sampling_weights_of(row)
        error = (4 * mean(row, 1) + 4 + 4 * max(-row.exponents[i] for i in kept)) * U
        error += len(kept) * 2.0**-40  # weights are rounded down
        wanted = {
            drawn_token(weights, kept, min(max(uniforms[r] + shift, 0.0), 1 - 2.0**-33))[0]
            for shift in (-error, 0.0, error)
        }
        assert min(wanted) <= ids[r] <= max(wanted) and ids[r] in kept, (r, ids[r], wanted)
        share = weights[ids[r]] / sum(weights[i] for i in kept)
        assert abs(probs[r] - share) <= (2 * error + U) * share + 2.0**-40, (r, probs[r], share)


def sampling_weights_of(row):
    return sampling_weights(row.exponents, 1.0)


def powers_of_two(rows, width, generator):
    """Logits at T = 1 / log2(e) whose weights are 1, 1/2, 1/4, ...: many ties, exact in float32."""
    return -torch.randint(0, 9, (rows, width), generator=generator).float()


EXACT = dict(temperature=1 / math.log(2))
"""exp(z / T) = 2^z."""


def check_exact(logits, generator, **limits):
    """Token and probability with not a bit of tolerance, for logits that are whole numbers."""
    ids, probs, uniforms = draw(logits, generator, **EXACT, **limits)
    for r, values in enumerate(logits.tolist()):
        row = distribution(values, EXACT["temperature"])
        kept = kept_ids(row, limits.get("top_k"), limits.get("top_p"))
        weights = [int(2.0 ** (z - max(values)) * 2.0**40) for z in values]
        token, share = drawn_token(weights, kept, uniforms[r])
        assert ids[r] == token, (r, limits)
        assert probs[r] == torch.tensor(share, dtype=torch.float64).float().item()


def test_philox_known_answers():
    """The definition, and the token that the kernel draws from equal logits with it."""
    assert philox_word((0,) * 4, (0, 0)) == 0x6627E8D5
    assert philox_word((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2) == 0x408F276D
    pi = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344)
    assert philox_word(pi, (0xA4093822, 0x299F31D0)) == 0xD16CFE09
    seeds = torch.tensor([0, -1, -(2**63), 2**62 + 12345])
    counters = torch.tensor([[0, 0], [-1, -1], [2**31 - 1, -(2**31)], [7, 3]], dtype=torch.int32)
    ids, _ = ck.sample_tokens(torch.zeros(4, 1000), seeds, counters, impl="triton")
    for r in range(4):
        word = philox_word(*words_of(seeds[r].item(), counters[r]))
        assert ids[r].item() == word * 1000 >> 32
    assert ids[0].item() == 0x6627E8D5 * 1000 >> 32


def test_kernel_generator_matches_the_published_words():
    """All four counter words and both key words, through the function that the kernel calls."""
    import triton
    import triton.language as tl

    from codila_kernels.kernels.sample_tokens import PHILOX_ROUNDS

    @triton.jit
    def words(out_ptr, seed_ptr, counter_ptr, ROUNDS: tl.constexpr):
        c0, c1 = tl.load(counter_ptr), tl.load(counter_ptr + 1)
        c2, c3 = tl.load(counter_ptr + 2), tl.load(counter_ptr + 3)
        word, _, _, _ = tl.philox(tl.load(seed_ptr), c0, c1, c2, c3, ROUNDS)
        tl.store(out_ptr, word.to(tl.int64))

    pi = [0x243F6A88, 0x85A308D3 - 2**32, 0x13198A2E, 0x03707344]
    for counter, seed, word in (([0] * 4, 0, 0x6627E8D5), ([-1] * 4, -1, 0x408F276D),
                                (pi, 0x299F31D0A4093822, 0xD16CFE09)):  # fmt: skip
        out = torch.zeros(1, dtype=torch.int64)
        words[(1,)](out, torch.tensor([seed]), torch.tensor(counter, dtype=torch.int32),
                    PHILOX_ROUNDS)  # fmt: skip
        assert out.item() == word


@pytest.mark.parametrize(
    "width, limits, why",
    [
        (1, dict(top_p=0.5), "one column"),
        (64, dict(), "one chunk, untruncated"),
        (65, dict(top_k=65), "a chunk of one column, and a limit that limits nothing"),
        (197, dict(), "a prime width over chunks"),
        (197, dict(top_k=1), "the arg-max"),
        (197, dict(top_k=150), "an edge below the short list, among ties across chunks"),
        (197, dict(top_p=1e-6), "a nucleus of one token"),
        (197, dict(top_p=0.5), "an edge among ties"),
        (197, dict(top_p=0.97), "a nucleus longer than a chunk and than the short list"),
        (197, dict(top_k=90, top_p=0.9), "a nucleus of what top-k keeps"),
        (20, dict(top_k=7, top_p=0.8), "all of the row on the short list"),
    ],
)
def test_exact_weights(width, limits, why, generator):
    check_exact(powers_of_two(2, width, generator), generator, **limits)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("limits", [dict(top_k=100), dict(top_p=0.9)], ids=str)
def test_low_precision_with_many_ties(dtype, limits, generator):
    check_exact(powers_of_two(2, 150, generator).to(dtype), generator, **limits)


def test_ties_of_positive_and_negative_zero(generator):
    logits = torch.tensor([[-0.0, 0.0, -0.0, 0.0, -1.0]]).expand(3, 5)
    for limits in (dict(top_k=2), dict(top_p=0.5)):
        check_exact(logits, generator, **limits)


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(temperature=0.1, top_p=0.8),
        dict(temperature=1.7, top_k=120),
        dict(temperature=0.7, top_k=60, top_p=0.95, valid_vocab=140, banned_ids=(0, 63, 64, 149)),
    ],
    ids=str,
)
def test_random_logits(options, generator):
    check(torch.randn(3, 150, generator=generator) * 3, generator, **options)


def test_offset_300_at_a_low_temperature(generator):
    """Multiples of 1/64, so that the offset itself is exact; strided rows."""
    near = (torch.randn(2, 300, generator=generator) * 64).round() / 64 + 300
    check(near[:, ::2], generator, temperature=0.1, top_p=0.9)
    check(near[:, :150], generator, temperature=0.1)


def test_a_grid_of_uniforms_walks_the_distribution(generator):
    """Over 64 draws of one row every token is exactly the one that its uniform asks for."""
    logits = torch.tensor([[0.0, -1.0, -math.inf, -3.0, -2.0, 0.0, -3.0]]).expand(64, 7)
    check_exact(logits, generator)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("options", [dict(), dict(top_p=0.5), dict(top_k=2)], ids=str)
def test_rows_without_a_distribution(temperature, options, generator):
    logits = torch.zeros(5, 80)
    logits[0] = -math.inf
    logits[1, 3] = math.nan
    logits[2, 70] = math.inf
    logits[3] = -math.inf
    logits[3, 75] = math.nan
    ids, probs, _ = draw(logits, generator, temperature=temperature, **options)
    assert [i < 0 for i in ids] == [math.isnan(p) for p in probs] == [True] * 4 + [False]
    assert set(ids[:4]) == {-1}


def test_one_hot_and_zero_temperature(generator):
    logits = torch.full((1, 130), -math.inf)
    logits[0, 129] = -5.0
    for options in (dict(), dict(top_k=3), dict(top_p=0.9)):
        assert draw(logits, generator, **options)[:2] == ([129], [1.0])
    ties = torch.tensor([[0.0, 5.0, 5.0], [1.0, 0.0, -1.0]])
    assert draw(ties, generator, temperature=0, top_p=0.1, top_k=2)[:2] == ([1, 0], [1.0, 1.0])


@pytest.mark.parametrize("options", [dict(), dict(top_k=40, top_p=0.9)], ids=str)
def test_a_row_does_not_depend_on_its_batch(options, generator):
    logits = torch.randn(4, 100, generator=generator) * 3
    seeds = torch.randint(-(2**62), 2**62, (4,), generator=generator)
    counters = torch.arange(8, dtype=torch.int32).view(4, 2)
    options = dict(options, impl="triton")
    ids, probs = ck.sample_tokens(logits, seeds, counters, **options)
    order = torch.tensor([2, 0, 3])
    again = ck.sample_tokens(logits[order], seeds[order], counters[order], **options)
    assert torch.equal(again[0], ids[order]) and torch.equal(again[1], probs[order])


def test_several_launches_are_one(generator, monkeypatch):
    from codila_kernels.kernels import sample_tokens as kernels

    monkeypatch.setattr(kernels, "ROWS_PER_LAUNCH", 2)
    check_exact(powers_of_two(5, 40, generator), generator, top_k=30)


def test_no_rows(generator):
    assert draw(torch.zeros(0, 9), generator, top_p=0.5) == ([], [], [])


def test_the_configs_of_the_chips_draw_the_same_tokens(generator):
    """Weights are integers: no chunk, group or list may show in a token."""
    from codila_kernels.configs import sample_tokens_config
    from codila_kernels.kernels.sample_tokens import sample_tokens_triton

    logits = torch.randn(1, 9001, generator=generator)
    rest = (torch.tensor([5]), torch.tensor([[1, 2]], dtype=torch.int32), 1.0)
    config = sample_tokens_config(9001, torch.float32, "sm_90")
    for top_p, top_k in ((0.1, 0), (0.9, 0), (0.9, 300)):
        ids, prob = sample_tokens_triton(logits, *rest, top_p, top_k, 9001, (), config)
        want = ck.sample_tokens(logits.double(), *rest[:2], top_p=top_p, top_k=top_k)
        # a float32 exponential moves a cumulative sum by 1e-6 at most; this u is farther away
        assert ids.item() == want[0].item()
        assert abs(prob.item() - want[1].item()) <= 1e-6 * want[1].item() + 1e-9
