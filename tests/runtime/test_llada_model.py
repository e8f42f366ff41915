"""LLaDA against its definition, written out on the tensors as its checkpoints name them."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_pairs import EOS, MASK, WORDS
from torch import Tensor

import codila
from codila.models.checkpoint import CheckpointError
from codila.models.llada import LladaConfig, LladaModel
from codila.models.loading import load_dlm

ROUNDING = {"atol": 2e-4, "rtol": 1e-4}
PUBLISHED = {
    "activation_type": "silu", "alibi": False, "architectures": ["LLaDAModelLM"],
    "auto_map": {"AutoModel": "modeling_llada.LLaDAModelLM"}, "attention_dropout": 0.0,
    "attention_layer_norm": False, "bias_for_layer_norm": False, "block_group_size": 1,
    "block_type": "llama", "d_model": 4096, "embedding_dropout": 0.0, "embedding_size": 126464,
    "eos_token_id": 126081, "include_bias": False, "include_qkv_bias": False,
    "init_device": "meta", "layer_norm_type": "rms", "layer_norm_with_affine": True,
    "mask_token_id": 126336, "max_sequence_length": 4096, "mlp_hidden_size": 12288,
    "mlp_ratio": 4, "model_type": "llada", "multi_query_attention": None, "n_heads": 32,
    "n_kv_heads": 32, "n_layers": 32, "pad_token_id": 126081, "residual_dropout": 0.0,
    "rms_norm_eps": 1e-05, "rope": True, "rope_full_precision": True, "rope_theta": 500000.0,
    "scale_logits": False, "vocab_size": 126464, "weight_tying": False,
}  # fmt: skip
"""LLaDA-8B's settings, by the names its config.json gives them."""

TINY = PUBLISHED | {
    "d_model": 32, "n_heads": 4, "n_kv_heads": 4, "n_layers": 2, "mlp_hidden_size": 48,
    "max_sequence_length": 64, "vocab_size": 90, "embedding_size": 96, "mask_token_id": MASK,
    "eos_token_id": EOS, "pad_token_id": EOS,
}  # fmt: skip


def write_checkpoint(folder, **changes) -> dict:
    """Random tensors under LLaDA's names, written without any of the library's code."""
    config = TINY | changes
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    generator = torch.Generator().manual_seed(0)
    d, m = config["d_model"], config["mlp_hidden_size"]
    kv = d // config["n_heads"] * config["n_kv_heads"]
    shapes = {"wte": (config["embedding_size"], d), "ln_f": (d,)}
    if not config["weight_tying"]:
        shapes["ff_out"] = (config["embedding_size"], d)
    for i in range(config["n_layers"]):
        layer = {
            "q_proj": (d, d), "k_proj": (kv, d), "v_proj": (kv, d), "attn_out": (d, d),
            "ff_proj": (m, d), "up_proj": (m, d), "ff_out": (d, m), "attn_norm": (d,),
            "ff_norm": (d,),
        }  # fmt: skip
        shapes |= {f"blocks.{i}.{name}": shape for name, shape in layer.items()}
    tensors = {
        f"model.transformer.{name}.weight": torch.randn(shape, generator=generator)
        * (0.25 if len(shape) == 2 else 0.1)
        + (len(shape) == 1)
        for name, shape in shapes.items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return config


def definition(folder, ids: list[int]) -> Tensor:
    """Logits ``[L, V]`` of one unpadded row: pre-norm blocks of RoPE attention and SwiGLU."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    weights = load_file(folder / "model.safetensors")
    w = {k.removeprefix("model.transformer.").removesuffix(".weight"): v.double()
         for k, v in weights.items()}  # fmt: skip
    heads, kv_heads = config["n_heads"], config["n_kv_heads"]
    size, length = config["d_model"] // heads, len(ids)

    def norm(x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]).sqrt() * weight

    def rotate(x: Tensor) -> Tensor:  # [heads, L, size]; halves are pairs
        frequency = config["rope_theta"] ** (-torch.arange(0, size, 2).double() / size)
        angle = torch.arange(length).double()[:, None] * frequency
        a, b = x[..., : size // 2], x[..., size // 2 :]
        cos, sin = angle.cos(), angle.sin()
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    x = w["wte"][ids]
    for i in range(config["n_layers"]):
        front = f"blocks.{i}."
        layer = {k.removeprefix(front): v for k, v in w.items() if k.startswith(front)}
        h = norm(x, layer["attn_norm"])

        def split(name: str, count: int, h=h, layer=layer) -> Tensor:
            return (h @ layer[name].T).view(length, count, size).transpose(0, 1)

        q, k = rotate(split("q_proj", heads)), rotate(split("k_proj", kv_heads))
        k = k.repeat_interleave(heads // kv_heads, dim=0)
        v = split("v_proj", kv_heads).repeat_interleave(heads // kv_heads, dim=0)
        attention = (q @ k.transpose(1, 2) / math.sqrt(size)).softmax(-1)  # nothing is hidden
        mixed = (attention @ v).transpose(0, 1).reshape(length, -1)
        x = x + mixed @ layer["attn_out"].T
        h = norm(x, layer["ff_norm"])
        gate = torch.nn.functional.silu(h @ layer["ff_proj"].T)
        x = x + (gate * (h @ layer["up_proj"].T)) @ layer["ff_out"].T
    return norm(x, w["ln_f"]) @ w.get("ff_out", w["wte"]).T


def random_ids(rows: int, length: int) -> Tensor:
    ids = torch.randint(0, WORDS, (rows, length), generator=torch.Generator().manual_seed(0))
    ids[:, length // 2 :: 2] = MASK
    return ids


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize(
    "changes", [{}, {"n_kv_heads": 2}, {"weight_tying": True}, {"rope_theta": 10_000.0}]
)
def test_logits_equal_the_definition(tmp_path, changes, attention):
    write_checkpoint(tmp_path, **changes)
    model = load_dlm(tmp_path, attn_implementation=attention)
    ids = random_ids(2, 12)
    out = model(ids).logits
    for row in range(2):
        torch.testing.assert_close(
            out[row], definition(tmp_path, ids[row].tolist()).float(), **ROUNDING
        )
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == bool(
        changes.get("weight_tying")
    )


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_padded_rows_equal_the_definition(tmp_path, attention):
    write_checkpoint(tmp_path)
    model = load_dlm(tmp_path, attn_implementation=attention)
    ids, keep = random_ids(2, 10), torch.ones(2, 10, dtype=torch.int64)
    keep[0, :4] = 0
    out = model(ids, keep).logits
    want = definition(tmp_path, ids[0, 4:].tolist()).float()
    torch.testing.assert_close(out[0, 4:], want, **ROUNDING)


def test_the_published_configuration_is_read():
    config = LladaConfig.from_dict(PUBLISHED)
    assert (config.hidden_size, config.num_hidden_layers, config.intermediate_size) == (
        4096, 32, 12288,
    )  # fmt: skip
    assert config.rope_parameters["rope_theta"] == 500_000.0
    assert (config.rms_norm_eps, config.max_position_embeddings) == (1e-5, 4096)
    assert (config.mask_token_id, config.eos_token_id) == (126336, 126081)
    assert not config.tie_word_embeddings
    again = LladaConfig.from_dict(config.to_dict())
    assert again.to_dict() == config.to_dict()
    assert {k: config.to_dict()[k] for k in ("d_model", "n_heads", "mlp_hidden_size")} == {
        "d_model": 4096, "n_heads": 32, "mlp_hidden_size": 12288,
    }  # fmt: skip


def test_a_width_given_by_its_ratio():
    values = {k: v for k, v in TINY.items() if k != "mlp_hidden_size"} | {"mlp_ratio": 3}
    assert LladaConfig.from_dict(values).intermediate_size == 96


@pytest.mark.parametrize(
    "change", [{"block_type": "sequential"}, {"alibi": True}, {"include_qkv_bias": True}]
)
def test_another_architecture_is_refused(tmp_path, change):
    write_checkpoint(tmp_path, **change)
    with pytest.raises(CheckpointError, match=next(iter(change))):
        load_dlm(tmp_path)


@torch.no_grad()
def test_a_saved_model_comes_back_bit_for_bit_under_lladas_names(tmp_path):
    write_checkpoint(tmp_path / "first")
    model = load_dlm(tmp_path / "first")
    model.save_pretrained(tmp_path / "second")
    first = load_file(tmp_path / "first" / "model.safetensors")
    second = load_file(tmp_path / "second" / "model.safetensors")
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    ids = random_ids(1, 8)
    assert torch.equal(load_dlm(tmp_path / "second")(ids).logits, model(ids).logits)


def test_a_position_is_predicted_by_its_own_row(tmp_path):
    write_checkpoint(tmp_path)
    model = load_dlm(tmp_path)
    assert isinstance(model, LladaModel) and model.shift == 0
    ids = torch.tensor([[5, 6, MASK, 7]])
    logits = model(ids).logits[0, 2]
    logits[MASK] = -torch.inf
    out = codila.generate(model, ids, max_new_tokens=0, schedule="entropy", temperature=0.0)
    assert out.sequences[0, 2].item() == logits.argmax().item()
