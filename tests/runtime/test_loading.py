"""Loading a pair: what comes back, and an error that names what is wrong with a checkpoint."""

from __future__ import annotations

import json

import pytest
import torch
from huggingface_hub.errors import EntryNotFoundError
from safetensors.torch import load_file, save_file
from tiny_pairs import BRIDGE, EOS, MASK, WORDS, make_dlm, save_dlm, save_tokenizer

import codila
from codila.bridge import VocabularyBridge
from codila.models import checkpoint
from codila.models.ar import ARMetadata, load_ar
from codila.models.checkpoint import CheckpointError
from codila.models.loading import load_dlm


def edit_json(path, **changes) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(data | changes), encoding="utf-8")


def edit_weights(folder, change) -> None:
    path = folder / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path, metadata={"format": "pt"})


def test_a_pair_from_folders_generates(checkpoints):
    pair = codila.load(dlm=checkpoints / "dlm", ar=checkpoints / "ar")
    assert pair.dlm.dtype == pair.ar.dtype == torch.float32
    assert not pair.dlm.training and not pair.ar.training
    assert pair.bridge == BRIDGE
    ids = pair.tokenizer("w1 w2 w3", return_tensors="pt").input_ids
    assert ids.tolist() == [[1, 2, 3]]
    out = pair.generate(ids, max_new_tokens=8, seed=0)
    assert out.sequences.shape == (1, 11)
    assert not out.sequences.eq(MASK).any()


def test_loading_warns_of_nothing_and_prints_nothing(checkpoints, recwarn, capfd):
    codila.load(dlm=checkpoints / "dlm", ar=checkpoints / "ar")
    assert [str(w.message) for w in recwarn] == []
    assert capfd.readouterr() == ("", "")


def test_no_ar_model_leaves_the_baselines(checkpoints):
    pair = codila.load(dlm=checkpoints / "dlm")
    assert pair.ar is None and pair.bridge is None
    out = pair.generate(torch.tensor([[1]]), max_new_tokens=4, schedule="entropy", seed=0)
    assert out.sequences.shape == (1, 5)


def test_dtype_by_name_and_by_value(checkpoints):
    for dtype in ("float64", torch.float64):
        pair = codila.load(dlm=checkpoints / "dlm", ar=checkpoints / "ar", dtype=dtype)
        assert pair.dlm.dtype == pair.ar.dtype == torch.float64


def test_the_config_beside_the_ar_model_is_the_pairs(checkpoints, copied):
    folder = copied("ar")
    codila.GenerationConfig(block_size=2, entropy_threshold=0.5).save_pretrained(folder)
    edit_json(folder / "codila.json", conditioning="top-3")
    pair = codila.load(dlm=checkpoints / "dlm", ar=folder)
    assert (pair.config.block_size, pair.config.entropy_threshold) == (2, 0.5)
    assert pair.config.conditioning == "top-3"


def test_the_bridge_survives_its_file(copied):
    bridge = VocabularyBridge(75, (72, 72, 71), (73,), {3: 79, 79 - 5: 3})
    folder = copied("ar")
    edit_json(folder / "codila.json", bridge=bridge.to_json())
    assert ARMetadata.from_pretrained(folder).bridge == bridge
    assert bridge.banned_ids == (71, 72)


def test_an_id_map_outside_the_bridge_is_refused():
    with pytest.raises(ValueError, match="DLM id 75, outside the 75 bridged ids"):
        VocabularyBridge(75, (72,), id_map={75: 1})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pair": "huge"}, "no bundled pair 'huge'"),
        ({"pair": "tiny", "dlm": "folder"}, "not both"),
        ({}, "or dlm=FOLDER"),
    ],
)
def test_unclear_requests_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        codila.load(**arguments)


def test_an_unknown_dtype_is_refused(checkpoints):
    for name in ("float31", "load"):
        with pytest.raises(ValueError, match=f"dtype='{name}'"):
            codila.load(dlm=checkpoints / "dlm", dtype=name)


def test_a_folder_that_does_not_exist_is_named(tmp_path, checkpoints):
    with pytest.raises(CheckpointError, match="absent"):
        codila.load(dlm=tmp_path / "absent")
    with pytest.raises(CheckpointError, match="absent"):
        codila.load(dlm=checkpoints / "dlm", ar=tmp_path / "absent")


@pytest.mark.parametrize("which", ["dlm", "ar"])
class TestDamagedWeights:
    def load(self, folder, which):
        return (load_dlm if which == "dlm" else load_ar)(folder)

    def test_missing_tensor(self, copied, which):
        folder = copied(which)
        edit_weights(folder, lambda t: t.pop("model.layers.1.mlp.up_proj.weight"))
        with pytest.raises(CheckpointError, match=r"missing keys.*layers\.1\.mlp\.up_proj"):
            self.load(folder, which)

    def test_unexpected_tensor(self, copied, which):
        folder = copied(which)
        edit_weights(folder, lambda t: t.update({"model.layers.7.extra": torch.zeros(2)}))
        with pytest.raises(CheckpointError, match=r"unexpected keys.*layers\.7\.extra"):
            self.load(folder, which)

    def test_tensor_of_another_shape(self, copied, which):
        folder = copied(which)
        edit_weights(folder, lambda t: t.update({"model.norm.weight": torch.zeros(5)}))
        with pytest.raises(CheckpointError, match=r"model\.norm\.weight|mismatch"):
            self.load(folder, which)

    def test_truncated_file(self, copied, which):
        folder = copied(which)
        path = folder / "model.safetensors"
        path.write_bytes(path.read_bytes()[:-100])
        with pytest.raises(CheckpointError, match=f"{folder}: the checkpoint cannot be read"):
            self.load(folder, which)

    def test_no_weights(self, copied, which):
        folder = copied(which)
        (folder / "model.safetensors").unlink()
        with pytest.raises(CheckpointError, match="the checkpoint cannot be read"):
            self.load(folder, which)

    def test_no_config(self, copied, which):
        folder = copied(which)
        (folder / "config.json").unlink()
        with pytest.raises(CheckpointError, match=r"config\.json|cannot be read"):
            self.load(folder, which)


def test_an_unknown_family_is_named(copied):
    folder = copied("dlm")
    edit_json(folder / "config.json", model_type="qwen2")
    with pytest.raises(
        CheckpointError, match=r"model_type 'qwen2'.*supported: \['Dream', 'llada'\]"
    ):
        load_dlm(folder)


def test_a_config_that_is_not_json_is_named(copied):
    folder = copied("dlm")
    (folder / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"config\.json is not JSON"):
        load_dlm(folder)


def test_a_diffusion_model_without_a_mask_token_is_refused(copied):
    folder = copied("dlm")
    edit_json(folder / "config.json", mask_token_id=None)
    with pytest.raises(CheckpointError, match="mask_token_id and eos_token_id are needed"):
        load_dlm(folder)


def test_no_codila_json(copied):
    folder = copied("ar")
    (folder / "codila.json").unlink()
    with pytest.raises(CheckpointError, match=r"has no codila\.json"):
        load_ar(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": 2}, "format 2, this version reads 1"),
        ({"window": [-1, 1]}, r"window \(-1, 1\) has a negative side"),
        ({"bridge": BRIDGE.to_json() | {"valid_vocab": 81}}, "80 embedding rows, the bridge needs"),
        ({"boundaries": [73, 80]}, "80 embedding rows, the bridge needs 81"),
    ],
)
def test_a_codila_json_that_does_not_fit_is_refused(copied, changes, message):
    folder = copied("ar")
    edit_json(folder / "codila.json", **changes)
    with pytest.raises(ValueError, match=message):
        load_ar(folder)


@pytest.mark.parametrize("key", ["block_sizes", "boundaries", "conditioning", "dlm", "bridge"])
def test_a_codila_json_without_a_key_names_it(copied, key):
    folder = copied("ar")
    path = folder / "codila.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    del data[key]
    path.write_text(json.dumps(data), encoding="utf-8")
    with pytest.raises(CheckpointError, match=f"codila.json has no key '{key}'"):
        load_ar(folder)


@pytest.mark.parametrize(
    ("fact", "value"), [("vocab_size", 97), ("mask_token_id", 71), ("shift", 0)]
)
def test_an_ar_model_for_another_diffusion_model_is_refused(checkpoints, copied, fact, value):
    folder = copied("ar")
    path = folder / "codila.json"
    facts = json.loads(path.read_text(encoding="utf-8"))["dlm"]
    edit_json(path, dlm=facts | {fact: value})
    with pytest.raises(CheckpointError, match=f"trained for a DLM with {fact}={value}"):
        codila.load(dlm=checkpoints / "dlm", ar=folder)


class TestTokenizers:
    def test_words_that_differ(self, checkpoints, copied):
        folder = copied("ar")
        words = [f"w{i}" for i in range(WORDS)]
        words[11], words[12] = words[12], words[11]
        save_tokenizer(folder, ["<end>"], words=words)
        with pytest.raises(CheckpointError, match=r"2 ids differ, first 11: 'w11' against 'w12'"):
            codila.load(dlm=checkpoints / "dlm", ar=folder)

    def test_words_that_an_id_map_moves(self, checkpoints, copied):
        folder = copied("ar")
        words = [f"w{i}" for i in range(WORDS)]
        words[11], words[12] = words[12], words[11]
        save_tokenizer(folder, ["<end>"], words=words)
        bridge = VocabularyBridge(80, (MASK,), BRIDGE.suppressed_ids, {11: 12, 12: 11})
        edit_json(folder / "codila.json", bridge=bridge.to_json())
        assert codila.load(dlm=checkpoints / "dlm", ar=folder).bridge == bridge

    def test_control_tokens_may_differ(self, checkpoints):
        pair = codila.load(dlm=checkpoints / "dlm", ar=checkpoints / "ar")
        assert pair.tokenizer.convert_ids_to_tokens([EOS, 71, MASK]) == [
            "<end>",
            "<begin>",
            "<mask>",
        ]

    def test_none_at_all(self, copied):
        folder = copied("dlm")
        (folder / "tokenizer.json").unlink()
        (folder / "tokenizer_config.json").unlink()
        with pytest.raises(CheckpointError, match="no usable tokenizer"):
            codila.load(dlm=folder)

    def test_code_in_the_folder_is_neither_run_nor_asked_for(self, copied, capfd):
        folder = copied("dlm")
        code = "raise SystemExit('code from the folder was run')"
        (folder / "tokenization_own.py").write_text(code, encoding="utf-8")
        edit_json(
            folder / "tokenizer_config.json",
            tokenizer_class="OwnTokenizer",
            auto_map={"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]},
        )
        with pytest.raises(CheckpointError, match="no usable tokenizer"):
            codila.load(dlm=folder)
        assert "y/N" not in capfd.readouterr().out

    def test_more_ids_than_the_model_has_rows(self, tmp_path):
        save_dlm(tmp_path, make_dlm(dtype=torch.float32, vocab_size=73))
        save_tokenizer(tmp_path, ["<end>", "<begin>", "<mask>", "<one too many>"])
        with pytest.raises(CheckpointError, match="the tokenizer has 74 ids, the model 73"):
            codila.load(dlm=tmp_path)

    @pytest.mark.parametrize(
        ("added", "message"),
        [
            (["<end>", "<mask>"], "mask_token_id is 72 in config.json and 71 in the tokenizer"),
            (["<begin>", "<end>", "<mask>"], "eos_token_id is 70 in config.json and 71"),
        ],
    )
    def test_ids_that_the_config_contradicts(self, copied, added, message):
        folder = copied("dlm")
        save_tokenizer(folder, added, mask_token="<mask>")
        with pytest.raises(CheckpointError, match=message):
            codila.load(dlm=folder)


def test_code_in_an_ar_folder_is_never_run(copied, monkeypatch):
    folder = copied("ar")
    (folder / "evil.py").write_text(f"open({str(folder / 'RAN')!r}, 'w')\nclass Evil: pass\n")
    edit_json(
        folder / "config.json",
        model_type="evil",
        auto_map={"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"},
    )
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # what transformers would ask
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_ar(folder)
    assert not (folder / "RAN").exists()


def test_the_files_of_a_hub_model_are_found(copied, monkeypatch):
    folder = copied("ar")

    def download(repo, name):
        assert repo == "someone/codila-ar"
        if not (folder / name).is_file():
            raise EntryNotFoundError(name)
        return str(folder / name)

    monkeypatch.setattr(checkpoint, "hf_hub_download", download)
    assert ARMetadata.from_pretrained("someone/codila-ar").bridge == BRIDGE
    assert checkpoint.checkpoint_file("someone/codila-ar", "codila_generation_config.json") is None
    (folder / "codila.json").unlink()
    with pytest.raises(CheckpointError, match=r"someone/codila-ar has no codila\.json"):
        load_ar("someone/codila-ar")


def test_an_ar_folder_may_stand_in_for_a_bundled_one(checkpoints):
    message = "tokenizers|vocab_size"  # it is found, and belongs to another diffusion model
    with pytest.raises(CheckpointError, match=message):
        codila.load("tiny", ar=checkpoints / "ar")


@pytest.mark.parametrize("device", ["foo", "meta", "xpu", "cuda:77"])
def test_a_device_that_cannot_be_used_is_refused(device):
    with pytest.raises(ValueError, match=f"device='{device}' cannot be used here"):
        codila.load("tiny", device=device)


def test_a_saved_conditioning_wins_over_the_trained_one(checkpoints, copied):
    folder = copied("ar")
    codila.GenerationConfig(conditioning="top-3").save_pretrained(folder)
    assert codila.load(dlm=checkpoints / "dlm", ar=folder).config.conditioning == "top-3"
    codila.GenerationConfig(block_size=2).save_pretrained(folder)
    assert codila.load(dlm=checkpoints / "dlm", ar=folder).config.conditioning == "soft"
