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
from codila.training.engine import Loop, NonFiniteLoss, Part
from codila.training.export import export_dlm


def loop_of(recipe: DLMRecipe, folder: Path) -> Loop:
    training = DLMTraining(recipe)
    config = dataclasses.replace(recipe.loop(), checkpoint_every=2, log_every=1, eval_every=100)
    return Loop(training, config, dataclasses.asdict(recipe), folder)


def state_of(loop: Loop) -> dict[str, torch.Tensor]:
    return loop.task.module.state_dict()


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
    (part,) = training.batch_loss(training.module, 3, 3)
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
    assert part.loss.item() == pytest.approx(total / count, rel=1e-4)
    assert part.tokens == batch.ids.numel()


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
    for name, value in state_of(whole).items():
        assert torch.equal(value, state_of(second)[name]), name
    steps = [json.loads(line)["step"] for line in (tmp_path / "broken/log.jsonl").open()]
    assert steps == sorted(steps)


def test_sigterm_saves_and_the_run_goes_on(dlm_recipe: DLMRecipe, tmp_path: Path) -> None:
    loop = loop_of(dlm_recipe, tmp_path)
    whole = loop.task.batch_loss

    def interrupted(module, index: int, step: int):
        if index == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        return whole(module, index, step)

    loop.task.batch_loss = interrupted
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

    def broken(module, index: int, step: int):
        yield Part(torch.tensor(float("nan"), requires_grad=True), {}, True, 1)

    loop.task.batch_loss = broken
    before = {k: v.clone() for k, v in state_of(loop).items()}
    with pytest.raises(NonFiniteLoss, match="step 0: .*; the batch is in"):
        loop.run()
    assert all(torch.equal(v, before[k]) for k, v in state_of(loop).items())
    saved = torch.load(tmp_path / "bad-batch-0-0.pt")
    assert torch.equal(saved["ids"], loop.task.train(0).ids)


def test_a_save_that_fails_leaves_the_old_checkpoint(
    dlm_recipe: DLMRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = loop_of(dlm_recipe, tmp_path)
    loop.save()

    def full_disk(payload, file):
        file.write(b"half")
        raise OSError(28, "No space left on device")

    loop._train_step()
    monkeypatch.setattr(torch, "save", full_disk)
    with pytest.raises(OSError, match="checkpoint-1.pt could not be written, what was there is"):
        loop.save()
    monkeypatch.undo()
    assert sorted(p.name for p in tmp_path.glob("checkpoint*")) == ["checkpoint-0.pt"]
    assert loop_of(dlm_recipe, tmp_path).step == 0


def test_a_folder_that_cannot_be_written_is_an_error_before_the_first_step(
    dlm_recipe: DLMRecipe, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OSError):
        loop_of(dlm_recipe, tmp_path / "file")


def test_the_last_checkpoints_are_kept(dlm_recipe: DLMRecipe, tmp_path: Path) -> None:
    loop = loop_of(dlm_recipe, tmp_path)
    loop.config = dataclasses.replace(loop.config, keep_checkpoints=2, checkpoint_every=1)
    loop.run()
    names = sorted(p.name for p in tmp_path.glob("checkpoint*"))
    assert names == ["checkpoint-5.pt", "checkpoint-6.pt"]


def test_the_average_of_the_weights_is_what_is_handed_out(
    dlm_recipe: DLMRecipe, tmp_path: Path
) -> None:
    """By its definition, step by step; a resumed run goes on with the same average."""
    config = dataclasses.replace(dlm_recipe.loop(), ema=0.5, steps=5, checkpoint_every=100)
    whole = Loop(DLMTraining(dlm_recipe), config, {}, tmp_path)
    mean = [p.detach().clone() for p in whole.trained]
    for _ in range(3):
        whole._train_step()
        mean = [0.5 * m + 0.5 * p.detach() for m, p in zip(mean, whole.trained, strict=True)]
    for kept, expected in zip(whole.ema, mean, strict=True):
        torch.testing.assert_close(kept, expected)
    whole.save()
    resumed = Loop(DLMTraining(dlm_recipe), config, {}, tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(whole.ema, resumed.ema, strict=True))
    whole.run()
    assert all(torch.equal(p, m) for p, m in zip(whole.trained, whole.ema, strict=True))
    (tmp_path / "checkpoint-5.pt").unlink()
    resumed.run()
    for name, value in state_of(whole).items():
        assert torch.equal(value, state_of(resumed)[name]), name


def test_accumulated_micro_batches_are_one_large_batch(
    dlm_recipe: DLMRecipe, tmp_path: Path
) -> None:
    """The gradient of a step is the mean of the gradients of its micro-batches."""
    loop = loop_of(dlm_recipe, tmp_path)
    loop.config = dataclasses.replace(loop.config, accumulate=3, grad_clip=1e9)
    expected = [torch.zeros_like(p) for p in loop.trained]
    for index in (0, 1, 2):
        (part,) = loop.task.batch_loss(loop.task.module, index, 0)
        for total, grad in zip(
            expected, torch.autograd.grad(part.loss / 3, loop.trained), strict=True
        ):
            total += grad
    loop._train_step()
    for p, grad in zip(loop.trained, expected, strict=True):
        torch.testing.assert_close(p.grad, grad, rtol=1e-4, atol=1e-6)


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
    (part,) = training.batch_loss(training.module, 0, 0)
    part.loss.backward()
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
