"""Batches of the toy corpus."""

from __future__ import annotations

from collections import Counter
from importlib import resources

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from codila.toy.corpus import encode_corpus
from codila.training.corpus import Corpus
from codila.training.data import Batch, Batches

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


def pairs_of(batch: Batch) -> list[tuple[int, ...]]:
    """The rows of a batch without their padding, up to and with the end token."""
    out = []
    for row, padding in zip(batch.ids.tolist(), batch.padding.tolist(), strict=True):
        answer = row[batch.prompt_length :]
        out.append((*row[padding : batch.prompt_length], *answer[: answer.index(EOS) + 1]))
    return out


def test_an_epoch_meets_every_pair_once(corpus: Corpus) -> None:
    batches = Batches(corpus, 4, EOS)
    met = [pair for step in range(batches.per_epoch) for pair in pairs_of(batches(step))]
    pairs = [
        (*corpus.prompts[i].tolist(), *corpus.bodies[i].tolist()) for i in range(len(corpus.bodies))
    ]
    assert len(met) == len(pairs) // 4 * 4
    assert not Counter(met) - Counter(pairs)


def test_prompts_are_padded_on_the_left_as_decoding_pads_them(corpus: Corpus) -> None:
    batches, padded = Batches(corpus, 8, EOS), 0
    for step in range(30):
        batch = batches(step)
        lengths = batch.prompt_length - batch.padding
        assert int(lengths.max()) == batch.prompt_length
        assert (batch.attention_mask is None) == (int(lengths.min()) == batch.prompt_length)
        if batch.attention_mask is None:
            continue
        padded += 1
        at = torch.arange(batch.ids.shape[1])
        assert torch.equal(batch.attention_mask, at >= batch.padding[:, None])
    assert padded


def test_like_lengths_come_together(corpus: Corpus) -> None:
    """A batch's prompts spread far less than the corpus's."""
    batches = Batches(corpus, 8, EOS)
    spread = [int(batches(step).padding.max()) for step in range(batches.per_epoch)]
    lengths = [len(corpus.prompts[i]) for i in range(len(corpus.prompts))]
    assert np.median(spread) <= 2 < max(lengths) - min(lengths)


def test_answers_may_be_padded_beyond_their_need(corpus: Corpus) -> None:
    plain = Batches(corpus, 8, EOS, region=None)
    more = Batches(corpus, 8, EOS, region=None, extra=40)
    extra = [more(s).answer.shape[1] - plain(s).answer.shape[1] for s in range(60)]
    assert min(extra) == 0 and 24 < max(extra) <= 40 and len(set(extra)) > 3


def test_members_are_the_only_ones_met(corpus: Corpus) -> None:
    members = np.array([3, 5, 8, 13, 21, 34])
    batches = Batches(corpus, 2, EOS, members=members)
    met = {pair for step in range(batches.per_epoch) for pair in pairs_of(batches(step))}
    assert met == {(*corpus.prompts[i].tolist(), *corpus.bodies[i].tolist()) for i in members}


def test_the_order_is_a_function_of_seed_and_step(corpus: Corpus) -> None:
    one, two = Batches(corpus, 8, EOS, seed=5), Batches(corpus, 8, EOS, seed=5)
    far = one.per_epoch + 3
    expected = one(far).ids
    for step in (0, 7, far):
        one(step)
    assert torch.equal(two(far).ids, expected)
    assert not torch.equal(one(0).ids, one(one.per_epoch).ids)


def test_too_few_pairs_are_an_error(corpus: Corpus) -> None:
    with pytest.raises(ValueError, match="gives no batch of 2000"):
        Batches(corpus, 2000, EOS)
    with pytest.raises(ValueError, match="does not fit a region of 8"):
        Batches(corpus, 8, EOS, region=8)
    with pytest.raises(ValueError, match="gives no batch of"):
        Batches(corpus, 5000, EOS)
