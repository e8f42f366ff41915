"""Checkpoints as the hub has them: shards, dtypes, attention implementations, buffers, adapters."""

from __future__ import annotations

import importlib.util
import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_llada_model import random_ids, write_checkpoint
from tiny_pairs import MASK, make_ar, make_dlm, save_dlm

import codila
from codila.models.checkpoint import CheckpointError
from codila.models.loading import load_dlm

FAMILIES = ("Dream", "llada")


@pytest.fixture(params=FAMILIES)
def folder(request, tmp_path):
    """A checkpoint of each family, float32."""
    if request.param == "llada":
        write_checkpoint(tmp_path / "dlm")
    else:
        save_dlm(tmp_path / "dlm", make_dlm(dtype=torch.float32))
    return tmp_path / "dlm"


@torch.no_grad()
def test_shards_are_one_model(folder, tmp_path):
    model = load_dlm(folder)
    model.save_pretrained(tmp_path / "shards", max_shard_size="10KB")
    shards = sorted((tmp_path / "shards").glob("model-*.safetensors"))
    assert len(shards) > 2
    ids = random_ids(2, 9)
    assert torch.equal(load_dlm(tmp_path / "shards")(ids).logits, model(ids).logits)
    shards[1].write_bytes(shards[1].read_bytes()[:-40])
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_dlm(tmp_path / "shards")
    shards[1].unlink()
    with pytest.raises(CheckpointError, match="cannot be read"):
        load_dlm(tmp_path / "shards")


def test_every_tensor_is_accounted_for_in_one_error(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    names = sorted(tensors)
    gone, bent = names[0], next(n for n in names if tensors[n].ndim == 2 and n != names[0])
    del tensors[gone]
    tensors[bent] = tensors[bent][:-1].contiguous()
    tensors["model.stray.weight"] = torch.zeros(2)
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(CheckpointError) as caught:
        load_dlm(folder)
    message = str(caught.value)
    for kind in ("missing keys", "mismatched keys", "unexpected keys"):
        assert kind in message
    assert "stray" in message


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_the_rounded_model(folder, dtype):
    whole, half = load_dlm(folder), load_dlm(folder, dtype=dtype)
    assert {p.dtype for p in half.parameters()} == {dtype}
    for name, tensor in whole.state_dict().items():
        assert torch.equal(half.state_dict()[name], tensor.to(dtype)), name
    ids = random_ids(1, 8)
    gap = (half(ids).logits.float() - whole(ids).logits).abs().max()
    assert gap < 0.1 * whole(ids).logits.abs().max()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotary_frequencies_are_right_after_loading(folder, dtype):
    """They are in no checkpoint, and a loader that leaves them unset gives finite nonsense."""
    model = load_dlm(folder, dtype=dtype)
    theta = json.loads((folder / "config.json").read_text(encoding="utf-8"))["rope_theta"]
    size = model.config.hidden_size // model.config.num_attention_heads
    want = theta ** (-torch.arange(0, size, 2).float() / size)
    torch.testing.assert_close(model.model.rotary_emb.inv_freq.float(), want)


@torch.no_grad()
def test_attention_implementations_agree(folder):
    ids, keep = random_ids(2, 11), torch.ones(2, 11, dtype=torch.int64)
    keep[0, :3] = 0
    sdpa = load_dlm(folder, attn_implementation="sdpa")
    eager = load_dlm(folder, attn_implementation="eager")
    assert eager.config._attn_implementation == "eager"
    for mask in (None, keep):
        real = slice(None) if mask is None else keep.bool()
        torch.testing.assert_close(
            eager(ids, mask).logits[real], sdpa(ids, mask).logits[real], atol=2e-4, rtol=1e-4
        )


def test_generation_is_the_same_whatever_the_attention(folder):
    ids, keep = torch.tensor([[1, 2, 3, 4], [0, 0, 5, 6]]), torch.tensor([[1] * 4, [0, 0, 1, 1]])
    options = dict(schedule="entropy", max_new_tokens=6, temperature=0.0, attention_mask=keep)
    out = [
        codila.generate(
            load_dlm(folder, attn_implementation=kind, dtype=torch.float64), ids, **options
        ).sequences
        for kind in ("sdpa", "eager")
    ]
    assert torch.equal(*out)


def test_a_models_own_generate_decodes_by_diffusion(folder):
    model = load_dlm(folder)
    ids = torch.tensor([[1, 2, 3]])
    options = dict(schedule="entropy", max_new_tokens=6, seed=1)
    ours = codila.generate(model, ids, **options)
    assert torch.equal(model.generate(ids, **options).sequences, ours.sequences)
    with pytest.raises(ValueError, match="needs ar_model="):
        model.generate(ids, max_new_tokens=6)


@pytest.mark.parametrize("key", ["mask_token_id", "eos_token_id"])
def test_a_config_without_a_special_id_is_refused(folder, key):
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(config | {key: None}), encoding="utf-8")
    with pytest.raises(CheckpointError, match="mask_token_id and eos_token_id are needed"):
        load_dlm(folder)


def test_a_device_and_a_device_map_exclude_each_other(folder):
    with pytest.raises(ValueError, match="device='cpu' and device_map"):
        codila.load(dlm=folder, device="cpu", device_map="auto")


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="needs accelerate")
def test_a_device_map_places_the_model(folder):
    model = load_dlm(folder, device_map="cpu")
    assert torch.equal(model(random_ids(1, 5)).logits, load_dlm(folder)(random_ids(1, 5)).logits)


def test_an_adapter_without_peft_says_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "peft", None)
    with pytest.raises(ImportError, match="pip install peft"):
        load_dlm(folder, adapter="anywhere")


@torch.no_grad()
@pytest.mark.skipif(importlib.util.find_spec("peft") is None, reason="needs peft")
def test_an_adapter_is_merged(folder, tmp_path):
    from peft import LoraConfig, get_peft_model

    base = load_dlm(folder)
    ids = random_ids(1, 7)
    before = base(ids).logits
    tuned = get_peft_model(base, LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    for name, p in tuned.named_parameters():
        if "lora_B" in name:
            p.normal_()
    want = tuned(ids).logits
    tuned.save_pretrained(tmp_path / "adapter")
    merged = load_dlm(folder, adapter=tmp_path / "adapter")
    assert (want - before).abs().max() > 1e-2
    torch.testing.assert_close(merged(ids).logits, want, atol=1e-4, rtol=1e-4)
    (tmp_path / "adapter" / "adapter_config.json").unlink()
    with pytest.raises(CheckpointError, match="adapter"):
        load_dlm(folder, adapter=tmp_path / "adapter")


def test_an_ar_model_goes_with_either_family(folder):
    dlm = load_dlm(folder, dtype=torch.float64)
    ar = make_ar(dlm)
    out = codila.generate(dlm, torch.tensor([[1, 2, 3]]), ar_model=ar, max_new_tokens=8, seed=0)
    assert not (out.sequences == MASK).any()
    assert out.num_function_evaluations.item() == 2
