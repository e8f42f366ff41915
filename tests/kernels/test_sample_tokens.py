"""`sample_tokens`: generator, kept set, exact distribution, independence of rows."""

from __future__ import annotations

import math

import pytest
import torch
from kernel_definitions import distribution, kept_ids

import codila_kernels as ck
from codila_kernels import reference
from codila_kernels.reference import philox_4x32, philox_uniform


def draw(logits, count=None, seeds=None, **options):
    if count is not None:
        logits = logits.expand(count, -1)
    rows = logits.shape[0]
    seeds = torch.arange(rows) if seeds is None else seeds
    counters = torch.tensor([[7, 3]], dtype=torch.int32).expand(rows, 2)
    return ck.sample_tokens(logits, seeds, counters, **options)


@pytest.mark.parametrize(
    "counter, key, words",
    [
        ("00000000 00000000 00000000 00000000", "00000000 00000000",
         "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
         "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
         "d16cfe09 94fdcceb 5001e420 24126ea1"),
    ],
)  # fmt: skip
def test_philox_known_answers(counter, key, words):
    """The known answers published with Random123, the generator's own library."""

    def parse(text):
        return torch.tensor([[int(word, 16) for word in text.split()]])

    assert torch.equal(philox_4x32(parse(counter), parse(key)), parse(words))


def test_uniform_takes_both_seed_words_and_both_counters():
    seeds = torch.tensor([5, 5 + (1 << 32), 5, 5, -5])
    counters = torch.tensor([[1, 2], [1, 2], [2, 1], [1, 2], [1, 2]], dtype=torch.int32)
    u = philox_uniform(seeds, counters)
    assert len(set(u.tolist())) == 4 and u[0] == u[3]
    assert ((u >= 0) & (u < 1)).all()


def chi_square_p(counts, probabilities):
    """Upper tail of Pearson's statistic over the ids of nonzero probability."""
    total = sum(counts)
    cells = [(n, p * total) for n, p in zip(counts, probabilities, strict=True) if p > 0]
    statistic = sum((n - e) ** 2 / e for n, e in cells)
    half = torch.tensor([(len(cells) - 1) / 2, statistic / 2], dtype=torch.float64)
    return torch.special.gammaincc(half[0], half[1]).item()


@pytest.mark.parametrize(
    "options",
    [
        dict(),
        dict(temperature=0.5),
        dict(top_k=5),
        dict(top_p=0.8),
        dict(temperature=1.7, top_k=7, top_p=0.6, valid_vocab=11, banned_ids=(0, 4)),
    ],
    ids=str,
)
def test_frequencies_match_the_exact_distribution(options, generator):
    """chi^2 over 20 000 fixed seeds at p > 1e-3, and no draw outside the kept set."""
    logits = torch.randn(1, 12, generator=generator) * 1.5
    temperature = options.get("temperature", 1.0)
    row = distribution(
        logits[0].tolist(), temperature, options.get("valid_vocab"), options.get("banned_ids", ())
    )
    kept = kept_ids(row, options.get("top_k"), options.get("top_p"))
    mass = math.fsum(row.probabilities[i] for i in kept)
    exact = [row.probabilities[i] / mass if i in kept else 0.0 for i in range(12)]
    ids, probs = draw(logits, 20_000, **options)
    counts = torch.bincount(ids, minlength=12).tolist()
    assert {i for i, n in enumerate(counts) if n} <= set(kept)
    assert chi_square_p(counts, exact) > 1e-3
    torch.testing.assert_close(
        probs.double(), torch.tensor(exact).double()[ids], rtol=1e-5, atol=1e-7
    )


@pytest.mark.parametrize("width", [12, 300], ids=["short list only", "beyond the short list"])
@pytest.mark.parametrize("top_p", [1e-6, 0.3, 0.8, 0.999, 1.0])
@pytest.mark.parametrize("top_k", [None, 0, 1, 5, 100])
def test_exactly_the_nucleus_is_kept(top_p, top_k, width, generator):
    """Every kept id has its share of the uniform, and no other: walk u over a fine grid of seeds.

    The logits are multiples of 1/4 with many ties, so that the edge of the set cuts through equals.
    """
    logits = (torch.randn(1, width, generator=generator) * 2).round() / 4
    top_k = top_k if top_k is None else min(top_k, width)
    row = distribution(logits[0].tolist(), 1.0)
    kept = kept_ids(row, top_k, top_p)
    ids, probs = draw(logits.double(), 6000, top_p=top_p, top_k=top_k)
    assert set(ids.tolist()) <= set(kept)
    mass = math.fsum(row.probabilities[i] for i in kept)
    exact = torch.tensor([p / mass for p in row.probabilities], dtype=torch.float64)
    torch.testing.assert_close(probs, exact[ids], rtol=1e-9, atol=1e-12)  # so the mass is right


def test_token_is_the_first_whose_cumulative_probability_exceeds_u(generator):
    logits = torch.randn(500, 40, generator=generator).double()
    seeds = torch.arange(500) * 977 - 250
    counters = torch.stack((torch.arange(500), torch.arange(500) % 7), -1).to(torch.int32)
    ids, _ = ck.sample_tokens(logits, seeds, counters, temperature=0.7)
    u = philox_uniform(seeds, counters)
    for r, values in enumerate(logits.tolist()):
        cumulative, token = 0.0, 0
        for token, p in enumerate(distribution(values, 0.7).probabilities):  # noqa: B007
            cumulative += p
            if cumulative > u[r].item():
                break
        assert ids[r].item() == token


@pytest.mark.parametrize("u, token", [(0.0, 2), (1 - 2.0**-32, 5)])
def test_the_ends_of_the_uniform_stay_inside_the_kept_set(u, token, monkeypatch):
    """u = 0 must skip ids without weight, and the largest u must not run past the last."""
    logits = torch.tensor([[0.0, -math.inf, 3.0, 2.0, 0.0, 3.0, 1.0]])

    def constant(seeds, counters):
        return torch.full(seeds.shape, u, dtype=torch.float64)

    monkeypatch.setattr(reference, "philox_uniform", constant)
    for options in (dict(top_k=3), dict(top_p=0.7)):
        assert draw(logits, **options)[0].tolist() == [token]


@pytest.mark.parametrize(
    "options", [dict(), dict(top_p=0.9), dict(top_k=9), dict(temperature=0.1, top_p=0.8)], ids=str
)
def test_a_row_does_not_depend_on_its_batch(options, generator):
    logits = torch.randn(33, 1088, generator=generator) * 3
    seeds = torch.randint(-(2**62), 2**62, (33,), generator=generator)
    counters = torch.randint(0, 2**31 - 1, (33, 2), generator=generator).to(torch.int32)
    ids, probs = ck.sample_tokens(logits, seeds, counters, **options)
    order = torch.randperm(33, generator=generator)
    again = ck.sample_tokens(logits[order], seeds[order], counters[order], **options)
    assert torch.equal(again[0], ids[order]) and torch.equal(again[1], probs[order])
    for r in (0, 7, 32):
        one = slice(r, r + 1)
        alone = ck.sample_tokens(logits[one], seeds[one], counters[one], **options)
        assert alone[0] == ids[r] and alone[1] == probs[r]


def test_torch_generator_is_not_touched(generator):
    logits = torch.randn(4, 30, generator=generator)
    torch.manual_seed(1)
    first = draw(logits)
    state = torch.random.get_rng_state()
    torch.manual_seed(2)
    second = draw(logits)
    assert torch.equal(first[0], second[0])
    torch.manual_seed(1)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_zero_temperature_is_arg_max():
    logits = torch.tensor([[0.0, 5.0, 5.0], [1.0, 0.0, -1.0]])
    ids, probs = draw(logits, temperature=0, top_p=0.1, top_k=2)
    assert ids.tolist() == [1, 0] and probs.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("options", [dict(), dict(top_p=0.5), dict(top_k=2)], ids=str)
def test_rows_without_a_distribution(temperature, options, generator):
    logits = torch.randn(4, 100, generator=generator)
    logits[0] = -math.inf
    logits[1, 3] = math.nan
    logits[2, 3] = math.inf
    ids, probs = draw(logits, temperature=temperature, **options)
    assert (ids < 0).tolist() == [True, True, True, False]
    assert probs.isnan().tolist() == [True, True, True, False]


def test_shapes_and_dtypes_are_checked(generator):
    logits = torch.randn(2, 9, generator=generator)
    seeds, counters = torch.zeros(2, dtype=torch.int64), torch.zeros(2, 2, dtype=torch.int32)
    with pytest.raises(TypeError, match=r"expected \[2\] torch.int64"):
        ck.sample_tokens(logits, seeds.int(), counters)
    with pytest.raises(TypeError, match=r"expected \[2, 2\] torch.int32"):
        ck.sample_tokens(logits, seeds, counters.long())
    for top_p in (0.0, 1.5, math.nan):
        with pytest.raises(ValueError, match="0 < top_p <= 1"):
            ck.sample_tokens(logits, seeds, counters, top_p=top_p)
    for top_k, error in ((-1, ValueError), (10, ValueError), (2.0, TypeError)):
        with pytest.raises(error, match=r"from 0 \(off\) to the 9 columns"):
            ck.sample_tokens(logits, seeds, counters, top_k=top_k)
