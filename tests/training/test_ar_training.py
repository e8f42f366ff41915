"""The AR model's loss against its definition, and what its checkpoint says."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import pytest
import torch

import codila
from codila.training.ar import ARTraining, train_ar
from codila.training.ar_recipe import ARRecipe
from codila.training.blocks import blocks_of
from codila.training.export import export_ars

WINDOWS = [(0, 0), (3, 0), (2, 3), (70, 5)]


def naive_nll(training: ARTraining, batch, seen, row: int, start: int, size: int, name: str):
    """One block, position by position, from the paper's layout; ``seen`` is the corrupted batch."""
    own, model = training.recipe.of(name), training.models[name]
    dlm, table = training.dlm, training.models[name].get_input_embeddings().weight
    vocabulary, mask = training.bridge.valid_vocab, dlm.mask_token_id
    first = int(batch.padding[row])
    logits = dlm(seen[row : row + 1, first:]).logits[0]

    def fed(column: int) -> torch.Tensor:
        if not first <= column < seen.shape[1]:
            return table[dlm.eos_token_id]
        if seen[row, column] != mask:
            return table[seen[row, column]]
        z = logits[column - first - 1, :vocabulary].clone()
        z[list(training.bridge.banned_ids)] = -torch.inf
        if own.conditioning != "soft":
            z[z < z.topk(int(own.conditioning[-1])).values[-1]] = -torch.inf
        return z.softmax(-1) @ table[:vocabulary]

    left, right = own.window
    parts = [fed(c) for c in range(start - left, start)]
    parts += [fed(c) for c in range(start + size, start + size + right)]
    inner = [fed(c) for c in range(start, start + size)]
    if own.boundaries is not None:
        opening, closing = training.start.boundaries[name]
        inner = [table[opening], *inner, table[closing]]
    tokens = batch.ids[row, start : start + size]
    parts += [*inner, *table[tokens[:-1]]]
    out = model(inputs_embeds=torch.stack(parts)[None], use_cache=False).logits[0]
    log_p = out[-size:, :vocabulary].log_softmax(-1)
    return -log_p[torch.arange(size), tokens]


@torch.no_grad()
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("boundaries", [("<think>", "</think>"), None])
@pytest.mark.parametrize(("unit", "size"), [(None, 2), (None, 8), (16, 4)])
def test_the_loss_is_that_of_the_naive_sequence(
    ar_recipe: ARRecipe, unit: int | None, size: int, boundaries, window: tuple[int, int]
) -> None:
    recipe = dataclasses.replace(
        ar_recipe,
        mask_unit=unit,
        block_sizes=(size,),
        window=window,
        boundaries=boundaries,
        eos_block_share=1.0,
        random_offset=True,
    )
    training = ARTraining(recipe)
    index = next(i for i in range(50) if training.train(i).attention_mask is not None)
    batch = training.train(index)
    rows = training.masked_rows(batch, 0, torch.Generator().manual_seed(index))
    seen = rows.seen
    for name in ("ar", "ar-top3"):
        blocks = blocks_of(rows, size, window)
        got = training.module.nll(name, rows, blocks)
        places = (rows.masked & rows.eligible).repeat_interleave(rows.unit // size, 1).nonzero()
        assert len(places) == len(got) > 3
        for i in (0, len(places) // 2, len(places) - 1):
            row, block = places[i].tolist()
            start = rows.first + block * size
            assert torch.equal(blocks.ids[i], batch.ids[row, start : start + size])
            expected = naive_nll(training, batch, seen, row, start, size, name)
            torch.testing.assert_close(got[i], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("norm", ["nelbo", "masked_mean"])
def test_the_loss_of_a_step_weighs_its_blocks_by_one_over_t(ar_recipe: ARRecipe, norm: str) -> None:
    recipe = dataclasses.replace(ar_recipe, loss_norm=norm, variants={"ar": {}})
    training = ARTraining(recipe)
    (part,) = training.batch_loss(training.module, 5, 1)
    batch = training.train(5)
    generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + 5)
    rows = training.masked_rows(batch, 1, generator)
    blocks = blocks_of(rows, 4)
    with torch.no_grad():
        nll = training.module.nll("ar", rows, blocks)
    assert set(blocks.weight.tolist()) <= set(rows.weight.tolist())
    assert rows.weight.max() <= 10.0  # the floor
    tokens = int(rows.eligible.sum()) * 4 if norm == "nelbo" else nll.numel()
    expected = (nll.sum(-1) * blocks.weight).sum().item() / tokens
    assert part.loss.item() == pytest.approx(expected, rel=1e-4)
    assert part.figures["ar/B4"] == pytest.approx((nll.sum().item(), nll.numel()), rel=1e-4)


def test_chunks_add_up_to_the_whole(ar_recipe: ARRecipe) -> None:
    whole = ARTraining(ar_recipe)
    chunked = ARTraining(dataclasses.replace(ar_recipe, chunk_blocks=7))
    for training, least in ((whole, 1), (chunked, 3)):
        parts = list(training.batch_loss(training.module, 2, 0))
        assert len(parts) >= least and [p.is_last for p in parts].index(True) == len(parts) - 1
        for part in parts:
            part.loss.backward()
    for a, b in zip(whole.models.parameters(), chunked.models.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-5)


def test_models_trained_side_by_side_do_not_influence_each_other(
    ar_recipe: ARRecipe, tmp_path: Path
) -> None:
    together = train_ar(ar_recipe, tmp_path / "together").models["ar"].state_dict()
    alone = dataclasses.replace(ar_recipe, variants={"ar": {}})
    apart = train_ar(alone, tmp_path / "alone").models["ar"].state_dict()
    for name, value in together.items():
        torch.testing.assert_close(value, apart[name], rtol=1e-4, atol=1e-6)


def test_the_dlm_is_frozen_and_the_table_learns_from_soft_tokens(ar_recipe: ARRecipe) -> None:
    training = ARTraining(ar_recipe)
    assert not any(p.requires_grad for p in training.dlm.parameters())
    (part,) = training.batch_loss(training.module, 0, 0)
    part.loss.backward()
    assert all(p.grad is None for p in training.dlm.parameters())
    table = training.models["ar"].get_input_embeddings().weight
    assert table.grad is not None and (table.grad.abs().sum(-1) > 0).sum() > 900


def test_frozen_embeddings_stay(ar_recipe: ARRecipe, tmp_path: Path) -> None:
    recipe = dataclasses.replace(ar_recipe, freeze_embeddings=True, variants={"ar": {}}, steps=2)
    before = ARTraining(recipe).models["ar"].state_dict()
    after = train_ar(recipe, tmp_path).models["ar"].state_dict()
    table = "model.embed_tokens.weight"
    assert torch.equal(before[table], after[table])
    changed = [name for name in before if not torch.equal(before[name], after[name])]
    assert "model.layers.0.self_attn.q_proj.weight" in changed


def test_one_t_per_batch(ar_recipe: ARRecipe) -> None:
    training = ARTraining(dataclasses.replace(ar_recipe, t_per="batch", weight_floor=0.0))
    rows = training.masked_rows(training.train(0), 0, torch.Generator().manual_seed(0))
    assert len(set(rows.weight.tolist())) == 1


def test_a_batch_in_which_nothing_would_be_trained_on_gets_a_block(ar_recipe: ARRecipe) -> None:
    recipe = dataclasses.replace(ar_recipe, t_range=(0.0, 0.001), eos_block_share=0.0, rows=1)
    training = ARTraining(recipe)
    for index in range(20):
        rows = training.masked_rows(training.train(index), 2, torch.Generator().manual_seed(index))
        assert len(blocks_of(rows, 8).ids) >= 1


def test_exported_models_form_pairs_with_their_dlm(
    ar_recipe: ARRecipe, dlm_folder: Path, tmp_path: Path
) -> None:
    recipe = dataclasses.replace(
        ar_recipe, variants=ar_recipe.variants | {"ar-window": {"window": (4, 2)}}
    )
    export_ars(train_ar(recipe, tmp_path / "run"), tmp_path)
    expected = {"ar": "soft", "ar-top3": "top-3", "ar-top1": "top-1", "ar-window": "soft"}
    for folder, conditioning in expected.items():
        pair = codila.load(dlm=dlm_folder, ar=tmp_path / folder)
        assert pair.config.conditioning == conditioning
        assert pair.ar.codila.block_sizes == (2, 4, 8)
        assert pair.ar.codila.boundaries == (1027, 1028)
        assert pair.ar.codila.window == ((4, 2) if folder == "ar-window" else (0, 0))
        assert pair.dlm.mask_token_id >= pair.bridge.valid_vocab  # no distribution holds it
        ids = pair.tokenizer("def f(nums):\n", return_tensors="pt").input_ids
        out = pair.generate(ids, max_new_tokens=16, seed=0)
        assert out.sequences.shape == (1, ids.shape[1] + 16)


def test_a_run_goes_on_from_the_models_of_an_earlier_one(
    ar_recipe: ARRecipe, tmp_path: Path
) -> None:
    first = train_ar(ar_recipe, tmp_path / "run")
    export_ars(first, tmp_path / "models")
    second = ARTraining(dataclasses.replace(ar_recipe, init=str(tmp_path / "models"), model=None))
    for name, model in second.models.items():
        expected = first.models[name].state_dict()
        for key, value in model.state_dict().items():
            assert torch.equal(value, expected[key].bfloat16().float()), (name, key)


def test_validation_prints_both_yardsticks_and_samples_are_decoded(
    ar_recipe: ARRecipe, tmp_path: Path
) -> None:
    recipe = dataclasses.replace(ar_recipe, variants={"ar": {}}, steps=2, sample_every=2)
    training = train_ar(recipe, tmp_path)
    record = json.loads((tmp_path / "log.jsonl").read_text().splitlines()[-1])["validation"]
    for size in (2, 4, 8):
        assert {f"dlm/B{size}", f"ar/B{size}", f"ar/B{size}/top-1"} <= set(record)
        assert {f"ar/B{size}@0.25", f"ar/B{size}@0.9"} <= set(record)
        places = [record[f"ar/B{size}/place{j + 1}"] for j in range(size)]
        assert sum(places) / size == pytest.approx(record[f"ar/B{size}"], rel=1e-3)
        at = {t: record[f"ar/B{size}{'' if t == 0.5 else f'@{t}'}"] for t in (0.25, 0.5, 0.9)}
        mean = sum(t * v for t, v in at.items()) / 1.65
        assert record[f"ar/B{size}/perplexity"] == pytest.approx(math.exp(mean), rel=1e-3)
    assert record == pytest.approx(training.evaluate())
    text = (tmp_path / "samples.txt").read_text()
    assert text.startswith("=== step 2\n--- ar, B = 8\ndef ")


def test_an_untrained_model_that_ignores_its_input_is_no_better_than_the_dlm(
    ar_recipe: ARRecipe,
) -> None:
    """The first yardstick by hand: the DLM's NLL of the same tokens, each on its own."""
    training = ARTraining(dataclasses.replace(ar_recipe, variants={"ar": {}}))
    batch = training.train(1)
    rows = training.masked_rows(batch, 1, torch.Generator().manual_seed(1))
    blocks = blocks_of(rows, 4)
    own = training._independent(rows, blocks)
    z = rows.logits[:, : training.bridge.valid_vocab].double()
    expected = -z.log_softmax(-1)[blocks.rows.flatten(), blocks.ids.flatten()]
    torch.testing.assert_close(own.flatten().double(), expected, rtol=1e-5, atol=1e-5)
