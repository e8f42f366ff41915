"""What the paper's scale needs: sizes beforehand, adapters, checkpointing, compilation, bf16."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import Qwen3Config

import codila
from benchmarks.decode import PRESETS
from benchmarks.memory import peak_bytes
from codila.models.dream import DreamConfig, DreamModel
from codila.training import estimate
from codila.training.ar import ARTraining, train_ar
from codila.training.ar_recipe import ARRecipe
from codila.training.dlm import DLMRecipe
from codila.training.dry_run import examples, sizes
from codila.training.engine import Loop
from codila.training.export import export_ars


@pytest.fixture
def alone(ar_recipe: ARRecipe) -> ARRecipe:
    return dataclasses.replace(ar_recipe, variants={"ar": {}}, optimizer="adamw", lr=0.003)


@pytest.mark.parametrize(
    ("changes", "close"),
    [
        ({"activation_checkpointing": True}, 1e-6),
        ({"compile": True}, 1e-3),
        ({"chunk_blocks": 3}, 1e-3),
    ],
)
def test_ways_to_save_memory_or_time_give_the_same_weights(
    alone: ARRecipe, tmp_path: Path, changes: dict, close: float
) -> None:
    plain = train_ar(alone, tmp_path / "plain").models["ar"].state_dict()
    other = train_ar(dataclasses.replace(alone, **changes), tmp_path / "other")
    for name, value in other.models["ar"].state_dict().items():
        torch.testing.assert_close(value, plain[name], rtol=close, atol=close, msg=name)


def test_bf16_trains_fp32_weights(alone: ARRecipe, tmp_path: Path) -> None:
    training = train_ar(dataclasses.replace(alone, precision="bf16"), tmp_path)
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert all(p.dtype == torch.float32 for p in training.models.parameters())
    plain = train_ar(alone, tmp_path / "plain")
    assert records[-1]["validation"]["ar/B4"] == pytest.approx(plain.evaluate()["ar/B4"], rel=0.02)


def test_adapters_are_all_that_learns_and_are_merged_on_export(
    alone: ARRecipe, dlm_folder: Path, tmp_path: Path
) -> None:
    pytest.importorskip("peft")
    lora = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"]}
    recipe = dataclasses.replace(alone, lora=lora, lr=0.05, steps=6)
    start = ARTraining(recipe).models["ar"].state_dict()
    training = train_ar(recipe, tmp_path / "run")
    after = training.models["ar"].state_dict()
    changed = {name for name in start if not torch.equal(start[name], after[name])}
    assert changed and all("lora_" in name for name in changed)
    (folder,) = export_ars(training, tmp_path)
    pair = codila.load(dlm=dlm_folder, ar=folder)
    assert not any("lora" in name for name in pair.ar.state_dict())
    key = "model.layers.0.self_attn.q_proj"
    a, b = (after[f"{key}.lora_{x}.default.weight"] for x in "AB")
    merged = after[f"{key}.base_layer.weight"] + 2.0 * b @ a
    torch.testing.assert_close(
        pair.ar.state_dict()[f"{key}.weight"], merged.bfloat16().float(), rtol=1e-2, atol=1e-3
    )
    resumed = train_ar(recipe, tmp_path / "run").models["ar"].state_dict()
    assert all(torch.equal(value, after[name]) for name, value in resumed.items())


def test_the_dry_run_shows_three_examples_and_the_first_loss(alone: ARRecipe) -> None:
    training = ARTraining(alone)
    text = examples(training)
    assert text.count("--- example") == 3 and text.count("def ") >= 3
    assert "⟦" in text and "<|mask|>" not in text
    (part,) = training.batch_loss(training.module, 0, 0)
    assert f"first loss {part.loss.item():.4f}" in text


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with the configurations of Dream-7B and Qwen3-0.6B, and nothing else."""
    root, sizes = tmp_path_factory.mktemp("published"), PRESETS["dream-7b"]
    DreamConfig(
        vocab_size=152_064, mask_token_id=151_666, eos_token_id=151_643, **sizes.dlm
    ).save_pretrained(root / "dlm")
    Qwen3Config(vocab_size=151_936, tie_word_embeddings=True, **sizes.ar).save_pretrained(
        root / "ar"
    )
    return {name: root / name for name in ("dlm", "ar")}


def test_the_sizes_of_the_paper_s_run_come_from_configurations(published: dict[str, Path]) -> None:
    recipe = ARRecipe(
        dlm=str(published["dlm"]), init=str(published["ar"]), data=("a.jsonl",), steps=32_000,
        chunk_blocks=256,
    )  # fmt: skip
    text = sizes(recipe)
    gib = {line[:24].strip(): float(line[24:].split()[0]) for line in text.splitlines()}
    assert gib["DLM weights"] == pytest.approx(7.616e9 * 2 / 2**30, rel=0.01)
    assert gib["AR weights"] == pytest.approx(0.596e9 * 4 / 2**30, rel=0.01)
    assert gib["gradients"] == gib["AR weights"] and gib["optimizer"] == 2 * gib["gradients"]
    assert gib["together, per process"] < 80, "the paper trained on one GPU of 80 GB"
    sharded = sizes(dataclasses.replace(recipe, shard="all"), processes=8)
    shard = {line[:24].strip(): float(line[24:].split()[0]) for line in sharded.splitlines()}
    assert shard["DLM weights"] == pytest.approx(gib["DLM weights"] / 8, abs=0.01)


def real_vocabulary(folder: Path, recipe: DLMRecipe) -> Path:
    """A DLM of small widths over 151,643 words and Dream's control tokens, 152,064 columns."""
    words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(151_643)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    control = ["<|endoftext|>", *(f"<|{i}|>" for i in range(151_644, 151_666)), "<|mask|>"]
    words.add_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    config = DreamConfig(
        **(recipe.model | {"vocab_size": 152_064}), mask_token_id=151_666, eos_token_id=151_643
    )
    DreamModel(config).save_pretrained(folder)
    words.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    settings["mask_token"] = "<|mask|>"
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def test_a_step_at_the_real_vocabulary_stays_under_the_estimate(
    dlm_recipe: DLMRecipe, ar_recipe: ARRecipe, tmp_path: Path
) -> None:
    """152,064 columns, small widths: the vocabulary is what a step's memory is made of."""
    answer = " ".join(f"w{7 * i}" for i in range(63))
    lines = [json.dumps({"prompt": f"w{i}", "response": answer}) for i in range(60)]
    (tmp_path / "words.jsonl").write_text("\n".join(lines))
    recipe = dataclasses.replace(
        ar_recipe,
        dlm=str(real_vocabulary(tmp_path / "dlm", dlm_recipe)),
        tokenizer=None,
        model=ar_recipe.model | {"vocab_size": 151_936},
        boundaries=("<|151644|>", "<|151645|>"),
        embeddings_from_dlm=False,
        data=(str(tmp_path / "words.jsonl"),),
        validation=20,
        max_length=72,
        variants={"ar": {}},
        optimizer="adamw",
        block_sizes=(4,),
        rows=4,
        chunk_blocks=16,
        eos_block_share=1.0,
        t_range=(0.9, 1.0),
    )
    training = ARTraining(recipe)
    assert training.bridge.valid_vocab > 151_600
    parts = estimate.memory(recipe, training.dlm, {"ar": training.models["ar"]})
    loop = Loop(training, recipe.loop(), {}, tmp_path / "run")
    peak, _ = peak_bytes(loop._train_step, torch.device("cpu"))
    expected = sum(parts.values()) - parts["DLM weights"] - parts["AR weights"]
    assert 0.6 * expected < peak < expected, (peak / 2**20, expected / 2**20)
