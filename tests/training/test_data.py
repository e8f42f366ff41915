"""Batches of the toy corpus."""

from __future__ import annotations

from importlib import resources

import pytest
import torch
from tokenizers import Tokenizer

from codila.toy.corpus import Corpus, encode_corpus
from codila.training.data import Batches

EOS = 1024


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    path = resources.files("codila") / "pretrained" / "tiny" / "dlm" / "tokenizer.json"
    return encode_corpus(Tokenizer.from_file(str(path)), 1200, seed=3)


def test_answers_are_whole_and_padded_with_eos(corpus: Corpus) -> None:
    batches = Batches(corpus, 8, EOS, full_region=0.5)
    lengths = set()
    for step in range(30):
        batch = batches(step)
        lengths.add(batch.answer.shape[1])
        assert batch.answer.shape[1] % 8 == 0
        for row, tail in zip(batch.answer, batch.tail, strict=True):
            first_eos = int((row == EOS).nonzero()[0])
            assert (row[first_eos:] == EOS).all()
            assert tail.nonzero().flatten().tolist() == list(range(first_eos + 1, row.numel()))
    assert 64 in lengths and min(lengths) < 64


def test_an_epoch_meets_no_pair_twice(corpus: Corpus) -> None:
    batches = Batches(corpus, 4, EOS, full_region=0.0)
    rows = [tuple(r.tolist()) for s in range(batches.per_epoch) for r in batches(s).ids]
    pairs = {
        (*corpus.prompts[i].tolist(), *corpus.bodies[i].tolist()) for i in range(len(corpus.bodies))
    }
    stripped = [tuple(r[: r.index(EOS) + 1]) for r in rows]
    assert set(stripped) <= pairs
    assert len(stripped) >= 0.7 * len(corpus.bodies)


def test_the_order_is_a_function_of_seed_and_step(corpus: Corpus) -> None:
    one, two = Batches(corpus, 8, EOS, seed=5), Batches(corpus, 8, EOS, seed=5)
    far = one.per_epoch + 3
    expected = one(far).ids
    for step in (0, 7, far):
        one(step)
    assert torch.equal(two(far).ids, expected)
    assert not torch.equal(one(0).ids, one(one.per_epoch).ids)


def test_too_few_pairs_are_an_error(corpus: Corpus) -> None:
    with pytest.raises(ValueError, match="no prompt length has"):
        Batches(corpus, 1000, EOS)
    with pytest.raises(ValueError, match="gives no batch of"):
        Batches(corpus, 5000, EOS)
