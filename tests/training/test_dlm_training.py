"""The DLM's loss against its definition; the run's robustness."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
from pathlib import Path

import pytest
import torch

from codila.models.loading import load_dlm
from codila.training.dlm import DLMRecipe, DLMTraining, masked_nll, train_dlm
from codila.training.engine import Loop, NonFiniteLoss
from codila.training.export import export_dlm


def loop_of(recipe: DLMRecipe, folder: Path) -> Loop:
    training = DLMTraining(recipe)
    return Loop(
        training.model,
        dataclasses.replace(recipe.loop(), checkpoint_every=2, log_every=1, eval_every=100),
        dataclasses.asdict(recipe),
        folder,
        training.batch_loss,
        training.evaluate,
    )


def test_masked_nll_reads_the_hidden_state_before_the_position(dlm_recipe: DLMRecipe) -> None:
    training = DLMTraining(dlm_recipe)
    batch = training.train(0)
    masked = torch.rand(batch.answer.shape) < 0.5
    got = masked_nll(training.model, batch, masked)
    ids = batch.ids.clone()
    ids[:, batch.prompt_length :][masked] = training.model.mask_token_id
    log_p = training.model(ids).logits.log_softmax(-1)
    expected = [
        -log_p[r, batch.prompt_length + j - 1, batch.answer[r, j]]
        for r, j in masked.nonzero().tolist()
    ]
    torch.testing.assert_close(got, torch.stack(expected), rtol=1e-4, atol=1e-5)


def test_loss_is_the_weighted_nelbo(dlm_recipe: DLMRecipe) -> None:
    """Recomputed token by token from the definition, on the same draw of masks."""
    from codila.training.corruption import mask_units, stratified_times

    training = DLMTraining(dlm_recipe)
    loss, _, tokens = training.batch_loss(3)
    batch = training.train(3)
    generator = torch.Generator().manual_seed(3)
    rows, length = batch.answer.shape
    t = stratified_times(rows, 0.05, 1.0, generator)
    masked = mask_units(rows, length, 1, t, generator)
    nll = iter(masked_nll(training.model, batch, masked).tolist())
    total = count = 0.0
    for r in range(rows):
        for j in range(length):
            weight = 0.1 if batch.tail[r, j] else 1.0
            count += weight
            if masked[r, j]:
                total += weight * next(nll) / max(t[r].item(), 0.1)
    assert loss.item() == pytest.approx(total / count, rel=1e-4)
    assert tokens == batch.ids.numel()


def test_a_killed_run_resumed_equals_the_unbroken_one(
    dlm_recipe: DLMRecipe, tmp_path: Path
) -> None:
    whole = loop_of(dlm_recipe, tmp_path / "whole")
    whole.run()
    first = loop_of(dlm_recipe, tmp_path / "broken")
    for _ in range(3):
        first._train_step()
        if first.step == 2:
            first.save()
        first._log({"loss": {}})
    # killed in step 4: what came after the checkpoint of step 2 is lost
    second = loop_of(dlm_recipe, tmp_path / "broken")
    assert second.step == 2
    second.run()
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name
    steps = [json.loads(line)["step"] for line in (tmp_path / "broken/log.jsonl").open()]
    assert steps == sorted(steps)


def test_sigterm_saves_and_the_run_goes_on(dlm_recipe: DLMRecipe, tmp_path: Path) -> None:
    loop = loop_of(dlm_recipe, tmp_path)
    step = loop.batch_loss

    def interrupted(index: int):
        if index == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return step(index)

    loop.batch_loss = interrupted
    with pytest.raises(SystemExit, match="stopped at step 4"):
        loop.run()
    assert loop_of(dlm_recipe, tmp_path).step == 4


def test_another_recipe_in_the_same_folder_is_refused(
    dlm_recipe: DLMRecipe, tmp_path: Path
) -> None:
    loop_of(dlm_recipe, tmp_path).save()
    with pytest.raises(ValueError, match="another configuration .*rows"):
        loop_of(dataclasses.replace(dlm_recipe, rows=4), tmp_path)
    assert loop_of(dataclasses.replace(dlm_recipe, steps=9), tmp_path).config.steps == 9


def test_a_loss_that_is_no_number_stops_the_run(dlm_recipe: DLMRecipe, tmp_path: Path) -> None:
    loop = loop_of(dlm_recipe, tmp_path)
    loop.batch_loss = lambda step: (torch.tensor(float("nan"), requires_grad=True), {}, 1)
    before = {k: v.clone() for k, v in loop.model.state_dict().items()}
    with pytest.raises(NonFiniteLoss, match="step 0"):
        loop.run()
    assert all(torch.equal(v, before[k]) for k, v in loop.model.state_dict().items())


def test_a_save_that_fails_leaves_the_old_checkpoint(
    dlm_recipe: DLMRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = loop_of(dlm_recipe, tmp_path)
    loop.save()

    def full_disk(payload, path):
        Path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(OSError):
        loop.save()
    monkeypatch.undo()
    assert loop_of(dlm_recipe, tmp_path).step == 0


def test_training_lowers_the_loss_and_the_export_loads(
    dlm_recipe: DLMRecipe, tmp_path: Path
) -> None:
    recipe = dataclasses.replace(dlm_recipe, steps=30)
    model = train_dlm(recipe, tmp_path / "run")
    records = [json.loads(line) for line in (tmp_path / "run/log.jsonl").open()]
    losses = [r["loss"]["nll"] for r in records if "loss" in r]
    assert losses[-1] < 0.85 * 7.0  # log(1088) = 6.99 nats before the first step
    export_dlm(model, recipe.tokenizer, tmp_path / "dlm")
    loaded = load_dlm(tmp_path / "dlm")
    for name, value in model.state_dict().items():
        torch.testing.assert_close(loaded.state_dict()[name], value.bfloat16().float())
    assert not list(tmp_path.glob("*.tmp")) and not list(tmp_path.glob("*.old"))


def test_init_starts_from_a_checkpoint(dlm_recipe: DLMRecipe, dlm_folder: Path) -> None:
    training = DLMTraining(dataclasses.replace(dlm_recipe, init=str(dlm_folder)))
    expected = load_dlm(dlm_folder).state_dict()
    assert all(torch.equal(v, expected[k]) for k, v in training.model.state_dict().items())
    assert training.model.training
    loss, _, _ = training.batch_loss(0)
    loss.backward()
    assert all(p.grad is not None for p in training.model.parameters())


def test_an_interrupt_within_an_update_keeps_the_checkpoint_before_it(
    dlm_recipe: DLMRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C twice, between the two optimizers: half a step must not be what is resumed."""
    recipe = dataclasses.replace(dlm_recipe, steps=4)
    unbroken = train_dlm(recipe, tmp_path / "unbroken").state_dict()
    step = torch.optim.AdamW.step
    calls = 0

    def interrupted(self, *args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train_dlm(recipe, tmp_path / "run")
    resumed = train_dlm(recipe, tmp_path / "run").state_dict()
    assert all(torch.equal(value, resumed[name]) for name, value in unbroken.items())
