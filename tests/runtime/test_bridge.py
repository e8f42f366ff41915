"""The vocabulary bridge: derived from two tokenizers, put into the tables, undone on disk."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_pairs import BOUNDARIES, EOS, MASK, make_ar, make_dlm, save_tokenizer
from tokenizers import AddedToken, Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerFast

import codila
from codila.bridge import VocabularyBridge
from codila.generation import generate
from codila.models.ar import ARMetadata, load_ar, put_in_dlm_order, save_ar
from codila.models.checkpoint import CheckpointError

DATA = os.environ.get("CODILA_TEST_DATA")
QWEN3_ROWS, THINK = 151_936, (151_667, 151_668)


@pytest.fixture(scope="module")
def qwen3():
    if not DATA:
        pytest.skip("CODILA_TEST_DATA is not set")
    return AutoTokenizer.from_pretrained(Path(DATA) / "qwen3-tokenizer")


def dream_like(qwen3, folder: Path, *added: str) -> PreTrainedTokenizerFast:
    """Qwen's ranks and shared control tokens, then Dream's own from 151665 on."""
    data = json.loads(qwen3.backend_tokenizer.to_str())
    data["added_tokens"] = [t for t in data["added_tokens"] if t["id"] < 151_665]
    backend = Tokenizer.from_str(json.dumps(data))
    backend.add_tokens([AddedToken(t, special=True, normalized=False) for t in added])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|endoftext|>", mask_token="<|mask|>"
    )


def test_dream_and_qwen3(qwen3, tmp_path):
    dream = dream_like(qwen3, tmp_path, "<|beginoftext|>", "<|mask|>")
    assert dream.convert_tokens_to_ids(["<|endoftext|>", "<|mask|>"]) == [151_643, 151_666]
    assert qwen3.convert_tokens_to_ids(["</tool_response>", "<think>"]) == [151_666, 151_667]
    bridge = VocabularyBridge.between(
        dream, qwen3, mask_token_id=151_666, ar_rows=QWEN3_ROWS, boundaries=THINK
    )
    # everything up to the last shared token, by itself; Dream's own two are out
    assert bridge == VocabularyBridge(151_665, ())
    metadata = ARMetadata.from_pretrained  # the file says it all
    saved = ARMetadata.of(
        make_dlm(vocab_size=152_064, mask_token_id=151_666), bridge, block_sizes=(4,),
        boundaries=THINK,
    )  # fmt: skip
    saved.save_pretrained(tmp_path)
    assert metadata(tmp_path).bridge == bridge and metadata(tmp_path).boundaries == THINK


def test_dreamon_has_an_expand_token_where_qwen3_thinks(qwen3, tmp_path):
    dreamon = dream_like(qwen3, tmp_path, "<|beginoftext|>", "<|mask|>", "<|expand|>")
    expand = dreamon.convert_tokens_to_ids("<|expand|>")
    assert expand == 151_667 == qwen3.convert_tokens_to_ids("<think>")
    bridge = VocabularyBridge.between(
        dreamon, qwen3, mask_token_id=151_666, ar_rows=QWEN3_ROWS, boundaries=THINK,
        expand_token_id=expand,
    )  # fmt: skip
    assert bridge.valid_vocab == 151_668
    assert bridge.banned_ids == (151_665, 151_666)
    spare = bridge.id_map.pop(expand)
    assert not bridge.id_map
    assert 151_669 <= spare < QWEN3_ROWS and spare not in THINK
    with pytest.raises(ValueError, match="rows are all in use.*resize_token_embeddings"):
        VocabularyBridge.between(
            dreamon, qwen3, mask_token_id=151_666, ar_rows=151_669, boundaries=THINK,
            expand_token_id=expand,
        )  # fmt: skip


def words(*order: int) -> list[str]:
    return [f"w{i}" for i in order]


def tokenizer_of(folder: Path, order: list[int], added: list[str], **named: str):
    save_tokenizer(folder, added, words=words(*order), **named)
    return AutoTokenizer.from_pretrained(folder)


def test_permuted_ranks_and_other_control_tokens(tmp_path):
    ours = tokenizer_of(tmp_path / "a", list(range(6)), ["<end>", "<mask>"], mask_token="<mask>")
    theirs = tokenizer_of(tmp_path / "b", [3, 0, 1, 2, 5, 4], ["<think>", "</think>", "<end>"])
    bridge = VocabularyBridge.between(ours, theirs, mask_token_id=7, ar_rows=12, boundaries=(6, 7))
    assert bridge == VocabularyBridge(7, (), id_map={0: 1, 1: 2, 2: 3, 3: 0, 4: 5, 5: 4, 6: 8})
    rows = bridge.ar_rows().tolist()
    for i, token in enumerate([*words(*range(6)), "<end>"]):
        assert theirs.convert_ids_to_tokens(rows[i]) == token


def test_end_tokens_are_one_whatever_they_are_called(tmp_path):
    ours = tokenizer_of(tmp_path / "a", [0, 1], ["<end>", "<mask>"], mask_token="<mask>")
    theirs = tokenizer_of(tmp_path / "b", [0, 1], ["<stop>", "</s>"], eos_token="</s>")
    assert VocabularyBridge.between(ours, theirs, mask_token_id=3, ar_rows=4).id_map == {2: 3}


def test_a_mask_in_the_middle_is_banned(tmp_path):
    ours = tokenizer_of(tmp_path / "a", [0, 1], ["<mask>", "<begin>", "<end>"], mask_token="<mask>")
    theirs = tokenizer_of(tmp_path / "b", [0, 1], ["<end>"])
    bridge = VocabularyBridge.between(ours, theirs, mask_token_id=2, ar_rows=3)
    assert bridge.banned_ids == (2, 3) and bridge.valid_vocab == 5
    assert bridge.ar_rows().tolist() == [0, 1, 2, 0, 2]


def test_a_vocabulary_that_lacks_words_is_refused(tmp_path):
    ours = tokenizer_of(tmp_path / "a", list(range(6)), ["<end>", "<mask>"], mask_token="<mask>")
    theirs = tokenizer_of(tmp_path / "b", [0, 1, 2], ["<end>"])
    with pytest.raises(ValueError, match=r"does not extend.*3 tokens are missing, first \['w3'"):
        VocabularyBridge.between(ours, theirs, mask_token_id=7, ar_rows=12)


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def permuted(request, tmp_path):
    """A checkpoint whose AR model has its rows elsewhere, and the plain one that it is."""
    dlm = make_dlm()
    plain, moved = (make_ar(dlm, 3, tied=request.param) for _ in range(2))
    rows = moved.get_input_embeddings().weight.shape[0]
    place = torch.randperm(rows, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        for table in {moved.model.embed_tokens.weight, moved.lm_head.weight}:
            table[place] = table.clone()
    bridge = VocabularyBridge(
        75, (MASK,), plain.codila.bridge.suppressed_ids, dict(enumerate(place[:75].tolist()))
    )
    boundaries = (int(place[BOUNDARIES[0]]), int(place[BOUNDARIES[1]]))
    metadata = ARMetadata.of(dlm, bridge, block_sizes=(4,), boundaries=boundaries)
    save_ar(moved, tmp_path / "ar", metadata=metadata)
    plain.codila = ARMetadata.of(
        dlm, VocabularyBridge(75, (MASK,), bridge.suppressed_ids), block_sizes=(4,),
        boundaries=BOUNDARIES,
    )  # fmt: skip
    return dlm, plain, tmp_path / "ar"


@pytest.mark.parametrize("conditioning", ["soft", "top-3", "top-1"])
def test_a_permuted_ar_model_writes_what_the_plain_one_writes(permuted, conditioning):
    dlm, plain, folder = permuted
    moved = load_ar(folder, dtype=torch.float64)
    assert torch.equal(
        moved.get_input_embeddings().weight[:75], plain.get_input_embeddings().weight[:75]
    )
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])
    options = dict(max_new_tokens=12, temperature=1.0, top_p=1.0, seed=4, conditioning=conditioning)
    want = generate(dlm, ids, ar_model=plain, **options)
    assert torch.equal(generate(dlm, ids, ar_model=moved, **options).sequences, want.sequences)


def test_what_is_saved_again_is_in_the_ar_models_own_order(permuted, tmp_path):
    _, _, folder = permuted
    model = load_ar(folder, dtype=torch.float64)
    save_ar(model, tmp_path / "again")
    first = load_file(folder / "model.safetensors")
    second = load_file(tmp_path / "again" / "model.safetensors")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    for name in ("codila.json", "config.json"):
        texts = [json.loads((f / name).read_text()) for f in (folder, tmp_path / "again")]
        assert texts[0] == texts[1]
    assert model.config.vocab_size == model.get_input_embeddings().weight.shape[0]
    assert load_ar(tmp_path / "again").codila == model.codila


def test_rows_that_agree_are_left_where_they_are():
    ar = make_ar(make_dlm())
    table = ar.get_input_embeddings().weight
    put_in_dlm_order(ar, ar.codila.bridge)
    assert ar.get_input_embeddings().weight is table and not hasattr(ar, "codila_order")


def test_saving_replaces_a_folder_as_a_whole(tmp_path):
    dlm = make_dlm(dtype=torch.float32)
    ar = make_ar(dlm, dtype=torch.float32)
    (tmp_path / "ar").mkdir()
    (tmp_path / "ar" / "stale.json").write_text("{}")
    save_ar(ar, tmp_path / "ar")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ar"]
    assert not (tmp_path / "ar" / "stale.json").exists()
    del ar.codila
    with pytest.raises(ValueError, match=r"carries no codila.json"):
        save_ar(ar, tmp_path / "ar")
    assert (tmp_path / "ar" / "codila.json").is_file()


def test_pushing_uploads_what_is_saved(monkeypatch):
    from codila.models import ar as module

    seen = {}

    class Hub:
        def create_repo(self, repo_id, private, exist_ok):
            seen["repo"] = (repo_id, private, exist_ok)
            return f"https://example/{repo_id}"

        def upload_folder(self, repo_id, folder_path):
            seen["files"] = sorted(p.name for p in Path(folder_path).iterdir())
            assert repo_id == "someone/codila-ar"

    monkeypatch.setattr(module, "HfApi", Hub)
    ar = make_ar(make_dlm(dtype=torch.float32), dtype=torch.float32)
    assert codila.push_ar(ar, "someone/codila-ar", private=True).endswith("someone/codila-ar")
    assert seen["repo"] == ("someone/codila-ar", True, True)
    assert {"codila.json", "config.json", "model.safetensors"} <= set(seen["files"])


class TestAnyCausalLM:
    """A folder without codila.json, as block decoder."""

    @pytest.fixture
    def folders(self, tmp_path):
        from tiny_pairs import save_dlm

        dlm = make_dlm(dtype=torch.float32)
        save_dlm(tmp_path / "dlm", dlm)
        make_ar(dlm, dtype=torch.float32).save_pretrained(tmp_path / "lm")
        save_tokenizer(
            tmp_path / "lm", ["<end>", "<call>", "</call>", "<think>", "</think>"],
            words=words(*range(1, 70), 0),
        )  # fmt: skip
        return {"dlm": tmp_path / "dlm", "ar": tmp_path / "lm"}

    @pytest.mark.parametrize("boundaries", [("<think>", "</think>"), None])
    def test_it_decodes_and_says_that_it_was_not_trained(self, folders, boundaries):
        with pytest.warns(UserWarning, match="was not trained on soft tokens"):
            pair = codila.load(**folders, ar_block_sizes=(2, 4), ar_boundaries=boundaries)
        assert pair.ar.codila.block_sizes == (2, 4)
        assert pair.bridge.id_map[0] == 69 and pair.bridge.id_map[1] == 0
        ids = pair.tokenizer("w1 w2", return_tensors="pt").input_ids
        out = pair.generate(ids, max_new_tokens=8, block_size=4, seed=0)
        assert not (out.sequences == MASK).any() and (out.sequences[:, 2:] <= EOS).all()

    def test_without_block_sizes_it_is_an_error(self, folders):
        with pytest.raises(CheckpointError, match="give ar_block_sizes= and ar_boundaries="):
            codila.load(**folders)

    def test_boundaries_that_it_does_not_have(self, folders):
        with pytest.raises(ValueError, match=r"has no tokens \['<soft>'\]"):
            codila.load(**folders, ar_block_sizes=(4,), ar_boundaries=("<soft>", "</think>"))

    def test_a_trained_model_brings_its_own(self, folders, tmp_path):
        dlm = make_dlm(dtype=torch.float32)
        save_ar(make_ar(dlm, dtype=torch.float32), tmp_path / "ar")
        save_tokenizer(tmp_path / "ar", ["<end>"])
        with pytest.raises(ValueError, match=r"are for a model without codila.json"):
            codila.load(dlm=folders["dlm"], ar=tmp_path / "ar", ar_block_sizes=(4,))
