"""The AR model's loss against its definition, and what its checkpoint says."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

import codila
from codila.training.ar import ARRecipe, ARTraining, masked_blocks, train_ar
from codila.training.export import export_ars

NAMES = ("soft", "top-3", "top-1")


def blocks_of(training: ARTraining, size: int):
    batch = training.train(0)
    t = torch.full((batch.ids.shape[0],), 0.5)
    options = {"weight_floor": 0.1, "eos_block_share": 1.0}
    return batch, masked_blocks(
        training.dlm, batch, size, t, torch.Generator().manual_seed(0), **options
    )


def test_blocks_hold_the_dlm_rows_of_their_positions(ar_recipe: ARRecipe) -> None:
    from codila.training.corruption import mask_units

    training = ARTraining(ar_recipe)
    batch, blocks = blocks_of(training, 4)
    rows, length = batch.answer.shape
    t = torch.full((rows,), 0.5)
    masked = mask_units(rows, length, 4, t, torch.Generator().manual_seed(0))
    ids = batch.ids.clone()
    ids[:, batch.prompt_length :][masked] = training.dlm.mask_token_id
    logits = training.dlm(ids).logits[:, batch.prompt_length - 1 : -1]
    torch.testing.assert_close(blocks.logits, logits[masked], rtol=1e-4, atol=1e-5)
    assert torch.equal(blocks.ids.flatten(), batch.answer[masked])
    assert blocks.weight.unique().tolist() == [2.0]
    assert blocks.tokens == rows * length


@pytest.mark.parametrize("conditioning", NAMES)
@pytest.mark.parametrize("size", [2, 8])
def test_block_nll_is_that_of_the_naive_sequence(
    ar_recipe: ARRecipe, conditioning: str, size: int
) -> None:
    training = ARTraining(ar_recipe)
    _, blocks = blocks_of(training, size)
    got = training.block_nll(conditioning, blocks)
    model = training.models[conditioning]
    embed = model.get_input_embeddings().weight
    opening, closing = training.decoders[conditioning].boundaries
    z = blocks.logits[:, :1056].clone()
    z[:, training.dlm.mask_token_id] = -torch.inf
    if conditioning != "soft":
        k = int(conditioning[-1])
        kept = torch.full_like(z, -torch.inf)
        top = z.topk(k, -1)
        z = kept.scatter(1, top.indices, top.values)
    soft = (z.softmax(-1) @ embed).view(*blocks.ids.shape, -1)
    for i in (0, 5):
        x = blocks.ids[i]
        parts = [embed[opening][None], soft[i], embed[closing][None], embed[x[:-1]]]
        logits = model(inputs_embeds=torch.cat(parts)[None]).logits[0, :, :1056]
        expected = -logits[size + 1 :].log_softmax(-1)[torch.arange(size), x]
        torch.testing.assert_close(got[i], expected, rtol=1e-4, atol=1e-4)


def test_models_trained_side_by_side_do_not_influence_each_other(
    ar_recipe: ARRecipe, tmp_path: Path
) -> None:
    import dataclasses

    together = train_ar(ar_recipe, tmp_path / "together").models["soft"].state_dict()
    alone = dataclasses.replace(ar_recipe, conditioning=("soft",))
    apart = train_ar(alone, tmp_path / "alone").models["soft"].state_dict()
    for name, value in together.items():
        torch.testing.assert_close(value, apart[name], rtol=1e-4, atol=1e-6)


def test_the_dlm_is_frozen(ar_recipe: ARRecipe, tmp_path: Path) -> None:
    training = ARTraining(ar_recipe)
    assert not any(p.requires_grad for p in training.dlm.parameters())
    loss, _, _ = training.batch_loss(0)
    loss.backward()
    assert all(p.grad is None for p in training.dlm.parameters())
    table = training.models["soft"].get_input_embeddings().weight
    assert table.grad is not None and (table.grad.abs().sum(-1) > 0).sum() > 900


def test_exported_models_form_pairs_with_their_dlm(
    ar_recipe: ARRecipe, dlm_folder: Path, tmp_path: Path
) -> None:
    export_ars(train_ar(ar_recipe, tmp_path / "run"), tmp_path)
    for folder, conditioning in (("ar", "soft"), ("ar-top3", "top-3"), ("ar-top1", "top-1")):
        pair = codila.load(dlm=dlm_folder, ar=tmp_path / folder)
        assert pair.config.conditioning == conditioning
        assert pair.ar.codila.block_sizes == (2, 4, 8)
        assert pair.ar.codila.boundaries == (1027, 1028)
        assert pair.bridge.banned_ids == (1026,)
        ids = pair.tokenizer("def f(nums):\n", return_tensors="pt").input_ids
        out = pair.generate(ids, max_new_tokens=16, seed=0)
        assert out.sequences.shape == (1, ids.shape[1] + 16)


def test_a_run_goes_on_from_the_models_of_an_earlier_one(
    ar_recipe: ARRecipe, tmp_path: Path
) -> None:
    first = train_ar(ar_recipe, tmp_path / "run")
    export_ars(first, tmp_path / "models")
    second = ARTraining(dataclasses.replace(ar_recipe, init=str(tmp_path / "models")))
    for conditioning, model in second.models.items():
        expected = first.models[conditioning].state_dict()
        for name, value in model.state_dict().items():
            assert torch.equal(value, expected[name].bfloat16().float()), (conditioning, name)
