"""The Dream-architecture model against transformers' Qwen2 with its causal mask taken away."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file
from tiny_pairs import EOS, MASK, WORDS, make_dlm
from transformers import AutoConfig, Qwen2Config, Qwen2ForCausalLM

from codila.models.dream import DreamConfig, DreamModel
from codila.models.loading import load_dlm

ROUNDING = {"atol": 2e-4, "rtol": 1e-4}


def as_qwen2(dlm: DreamModel) -> Qwen2ForCausalLM:
    """The same weights in transformers' class; eager attention, so that a float mask is added."""
    values = dlm.config.to_dict()
    names = ("model_type", "mask_token_id", "rope_scaling", "architectures")
    for name in names:
        values.pop(name)
    model = Qwen2ForCausalLM(Qwen2Config(**values, attn_implementation="eager"))
    model.load_state_dict(dlm.state_dict())
    return model.eval()


def random_ids(rows: int, length: int) -> torch.Tensor:
    ids = torch.randint(0, WORDS, (rows, length), generator=torch.Generator().manual_seed(0))
    ids[:, length // 2 :: 2] = MASK
    return ids


@torch.no_grad()
@pytest.mark.parametrize("tied", [False, True])
def test_logits_equal_qwen2_without_the_causal_mask(tied):
    dlm = make_dlm(dtype=torch.float32, tie_word_embeddings=tied, rope_theta=50_000.0)
    ids = random_ids(2, 12)
    everything = torch.zeros(2, 1, 12, 12)
    expected = as_qwen2(dlm)(ids, attention_mask=everything).logits
    torch.testing.assert_close(dlm(ids).logits, expected, **ROUNDING)
    causal = as_qwen2(dlm)(ids).logits
    assert (causal - expected).abs().max() > 0.1, "the two masks should differ here"


@torch.no_grad()
def test_padded_rows_equal_qwen2_with_the_padding_taken_out():
    dlm = make_dlm(dtype=torch.float32)
    ids, keep = random_ids(2, 10), torch.ones(2, 10, dtype=torch.int64)
    ids[0, :4], keep[0, :4] = EOS, 0
    out = dlm(ids, keep).logits
    reference = as_qwen2(dlm)
    for row, first in ((0, 4), (1, 0)):
        size = 10 - first
        expected = reference(
            ids[row : row + 1, first:], attention_mask=torch.zeros(1, 1, size, size)
        )
        torch.testing.assert_close(out[row, first:], expected.logits[0], **ROUNDING)


@torch.no_grad()
def test_positions_count_from_the_first_real_token_and_may_be_given():
    dlm = make_dlm()
    ids = random_ids(1, 6)
    counted = torch.arange(6)[None]
    assert torch.equal(dlm(ids).logits, dlm(ids, position_ids=counted).logits)
    stretched = dlm(ids, position_ids=counted * 2).logits
    assert (stretched - dlm(ids).logits).abs().max() > 1e-3
    assert torch.isfinite(dlm(ids, torch.tensor([[0, 0, 0, 1, 1, 1]])).logits[:, 3:]).all()


@torch.no_grad()
@pytest.mark.parametrize("tied", [False, True])
def test_a_saved_model_comes_back_bit_for_bit(tmp_path, tied):
    dlm = make_dlm(dtype=torch.float32, tie_word_embeddings=tied)
    dlm.save_pretrained(tmp_path)
    again = load_dlm(tmp_path)
    assert again.state_dict().keys() == dlm.state_dict().keys()
    for name, tensor in dlm.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name
    assert (again.lm_head.weight is again.model.embed_tokens.weight) == tied
    ids = random_ids(1, 8)
    assert torch.equal(again(ids).logits, dlm(ids).logits)


def test_tensors_on_disk_carry_dreams_names(tmp_path):
    make_dlm(dtype=torch.float32).save_pretrained(tmp_path)
    names = set(load_file(tmp_path / "model.safetensors"))
    layer = "model.layers.0."
    attention = {f"{layer}self_attn.{n}_proj.bias" for n in "qkv"}
    assert {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"} < names
    assert attention < names
    assert f"{layer}self_attn.o_proj.bias" not in names


def test_dreams_config_keys_survive(tmp_path):
    dlm = make_dlm(dtype=torch.float32, rope_theta=123_456.0)
    dlm.save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    expected = {
        "model_type": "Dream", "mask_token_id": MASK, "eos_token_id": EOS, "pad_token_id": EOS,
        "rope_theta": 123_456.0, "rope_scaling": None, "vocab_size": 96,
        "tie_word_embeddings": False, "max_position_embeddings": 64,
    }  # fmt: skip
    assert {key: written.get(key) for key in expected} == expected
    assert "rope_parameters" not in written
    again = DreamConfig.from_pretrained(tmp_path)
    assert again.rope_parameters["rope_theta"] == 123_456.0
    assert again.to_dict() == dlm.config.to_dict()


def test_a_scaled_rotary_embedding_survives(tmp_path):
    scaling = {"rope_type": "linear", "factor": 2.0}
    config = DreamConfig(rope_theta=1e6, rope_scaling=scaling, mask_token_id=1)
    config.save_pretrained(tmp_path)
    again = DreamConfig.from_pretrained(tmp_path)
    assert again.rope_parameters == {**scaling, "rope_theta": 1e6}


def test_a_config_as_dream_publishes_it_is_read():
    """Keys of Dream's own config.json, among them some that only its remote code reads."""
    published = {
        "architectures": ["DreamModel"],
        "attention_dropout": 0.0,
        "auto_map": {"AutoConfig": "configuration_dream.DreamConfig"},
        "bos_token_id": 151643, "eos_token_id": 151643, "mask_token_id": 151666,
        "hidden_act": "silu", "hidden_size": 3584, "initializer_range": 0.02,
        "intermediate_size": 18944, "max_position_embeddings": 131072, "max_window_layers": 28,
        "model_type": "Dream", "num_attention_heads": 28, "num_hidden_layers": 28,
        "num_key_value_heads": 4, "pad_token_id": 151643, "rms_norm_eps": 1e-06,
        "rope_scaling": None, "rope_theta": 1000000.0, "sliding_window": None,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True,
        "use_sliding_window": False, "vocab_size": 152064,
    }  # fmt: skip
    config = DreamConfig.from_dict(published)
    assert config.rope_parameters["rope_theta"] == 1e6
    assert (config.mask_token_id, config.vocab_size) == (151666, 152064)
    assert set(config.layer_types) == {"full_attention"}
    assert config.to_dict()["rope_theta"] == 1e6


def test_the_protocol_of_the_decoding_loop(dlm):
    assert (dlm.shift, dlm.mask_token_id, dlm.eos_token_id, dlm.max_length) == (1, MASK, EOS, 64)
    assert dlm.lm_head.weight.shape == (96, 32) and dlm.lm_head.bias is None
    hidden = dlm.body(random_ids(2, 5))
    assert hidden.shape == (2, 5, 32)
    assert torch.equal(dlm.lm_head(hidden), dlm(random_ids(2, 5)).logits)
    assert make_dlm(eos_token_id=[EOS, 3]).eos_token_id == EOS


def test_importing_the_model_does_not_register_it_with_transformers():
    with pytest.raises(ValueError):
        AutoConfig.for_model("Dream")
