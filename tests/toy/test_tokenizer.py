"""The tokenizers and the encoded corpus."""

import string
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from codila.toy import pairs
from codila.toy.corpus import Ragged, encode_corpus
from codila.toy.tokenizer import AR_TOKENS, DLM_TOKENS, save_tokenizers, train_tokenizer

BASE = 1024
CORPUS = [prompt + body for prompt, body in pairs("train", 3000, seed=0)]


@pytest.fixture(scope="module")
def base() -> Tokenizer:
    return train_tokenizer(CORPUS, BASE)


@pytest.fixture(scope="module")
def folders(base: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tokenizers")
    save_tokenizers(base, folder / "dlm", folder / "ar")
    return folder / "dlm", folder / "ar"


def test_ids_of_the_two_tokenizers(folders: tuple[Path, Path]) -> None:
    dlm, ar = (AutoTokenizer.from_pretrained(folder) for folder in folders)
    assert dlm.convert_tokens_to_ids(list(DLM_TOKENS)) == [1024, 1025, 1026]
    assert ar.convert_tokens_to_ids(list(AR_TOKENS)) == [1024, 1025, 1026, 1027, 1028]
    assert (dlm.eos_token_id, dlm.pad_token_id, dlm.bos_token_id) == (1024, 1024, 1025)
    assert dlm.mask_token_id == 1026
    assert (ar.eos_token_id, ar.pad_token_id) == (1024, 1024)
    assert dlm.convert_ids_to_tokens(range(BASE)) == ar.convert_ids_to_tokens(range(BASE))


def test_encoding_adds_nothing_and_decodes_back(folders: tuple[Path, Path]) -> None:
    texts = [text for pair in pairs("test", 300, seed=1) for text in pair]
    texts += ["naïve 漢字 🙂\n\ttab", " don 't , x . ", "1234567", ""]
    for folder in folders:
        tokenizer = AutoTokenizer.from_pretrained(folder)
        for text in texts:
            ids = tokenizer(text).input_ids
            assert max(ids, default=0) < BASE
            assert tokenizer.decode(ids) == text


def test_prompt_and_body_encode_apart(base: Tokenizer) -> None:
    for prompt, body in pairs("train", 300, seed=2):
        apart = base.encode(prompt).ids + base.encode(body).ids
        assert base.encode(prompt + body).ids == apart


def test_digits_stand_alone(base: Tokenizer) -> None:
    numerals = [token for token in base.get_vocab() if set(token) & set(string.digits)]
    assert sorted(numerals) == list(string.digits)


def test_too_little_text_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("codila.toy.tokenizer.stdlib_source", list)
    with pytest.raises(ValueError, match="give more text"):
        train_tokenizer(["x = 1\n"], BASE)


def test_corpus_holds_the_pairs(base: Tokenizer) -> None:
    corpus = encode_corpus(base, 500, seed=4)
    assert corpus.prompts.ids.dtype == np.int32 and corpus.dropped == 0
    for i, (prompt, body) in enumerate(pairs("train", 500, seed=4)):
        assert base.decode(corpus.prompts[i].tolist()) == prompt
        *ids, end = corpus.bodies[i].tolist()
        assert base.decode(ids) == body and end == BASE


def test_corpus_drops_what_is_too_long(base: Tokenizer) -> None:
    whole = encode_corpus(base, 2000, seed=5, max_prompt=200, max_body=200)
    short = encode_corpus(base, 2000, seed=5, max_prompt=30, max_body=30)
    prompts, bodies = np.diff(whole.prompts.offsets), np.diff(whole.bodies.offsets)
    fits = (prompts <= 30) & (bodies <= 30)
    assert len(short.prompts) == len(short.bodies) == fits.sum() == 2000 - short.dropped
    assert 0 < short.dropped < 2000


def test_lengths_fit_the_canvas(base: Tokenizer) -> None:
    corpus = encode_corpus(base, 5000, seed=6)
    assert corpus.dropped <= 5
    assert 24 <= np.median(np.diff(corpus.bodies.offsets)) <= 40


def test_ragged_indexing() -> None:
    ragged = Ragged.concatenate([Ragged.of([[1, 2], []]), Ragged.of([]), Ragged.of([[3]])])
    assert [row.tolist() for row in ragged[:]] == [[1, 2], [], [3]]
    assert ragged[-1].tolist() == [3] and len(ragged) == 3
    with pytest.raises(IndexError):
        ragged[3]
    assert len(Ragged.concatenate([])) == 0
