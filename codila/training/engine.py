"""The training loop of the from-scratch recipes: one process, exact resume, atomic checkpoints.

A run lives in a folder: ``config.json`` (what it was started with), ``log.jsonl`` (one record per
logged step and per validation) and ``checkpoint.pt`` (weights, optimizer state, step). Everything
random is a function of the seed and the step, so a run killed anywhere and resumed equals the
unbroken one.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from codila.training.optim import build_optimizers, wsd_factor


@dataclasses.dataclass(frozen=True)
class LoopConfig:
    """What the loop itself needs to know.

    ``steps`` may be changed on resume (the decay phase moves with it); nothing else may.
    """

    steps: int
    warmup: int = 50
    decay_fraction: float = 0.3
    muon_lr: float = 0.015
    adam_lr: float = 0.004
    grad_clip: float = 1.0
    seed: int = 0
    log_every: int = 10
    eval_every: int = 250
    checkpoint_every: int = 250


class NonFiniteLoss(RuntimeError):
    """The loss stopped being a number; the last checkpoint is from before that step."""


def save_atomically(payload: Any, path: Path) -> None:
    """``torch.save`` so that ``path`` always holds a whole file, the old one or the new one."""
    scratch = path.with_name(path.name + ".tmp")
    torch.save(payload, scratch)
    with scratch.open("rb") as written:
        os.fsync(written.fileno())
    os.replace(scratch, path)


class Loop:
    """Train ``model`` (a module, or a ModuleDict of independent ones) for ``config.steps`` steps.

    Args:
        model: its direct children in a ModuleDict are clipped apart, so that models trained side
            by side do not influence each other.
        config: see :class:`LoopConfig`.
        recipe: the whole configuration of the run; resuming with another one is an error.
        folder: the run's folder, created if need be.
        batch_loss: step -> (loss to differentiate, figures to log, tokens processed).
        evaluate: model -> figures, called every ``eval_every`` steps and at the end.
    """

    def __init__(
        self,
        model: nn.Module,
        config: LoopConfig,
        recipe: dict[str, Any],
        folder: Path,
        batch_loss: Callable[[int], tuple[Tensor, dict[str, float], int]],
        evaluate: Callable[[], dict[str, float]],
    ) -> None:
        self.model, self.config, self.folder = model, config, folder
        self.batch_loss, self.evaluate = batch_loss, evaluate
        self.recipe = json.loads(json.dumps(recipe))
        self.optimizers = build_optimizers(model, muon_lr=config.muon_lr, adam_lr=config.adam_lr)
        self.step = 0
        self.tokens = 0
        self.seconds = 0.0
        self._stop = False
        self._updating = False
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / "checkpoint.pt").exists():
            self._resume()
        (folder / "config.json").write_text(json.dumps(self.recipe, indent=2) + "\n")

    def run(self) -> None:
        """Train to the end; SIGTERM or Ctrl-C ends the step and saves a checkpoint first."""
        signals = (signal.SIGTERM, signal.SIGINT)
        previous = [signal.signal(s, self._request_stop) for s in signals]
        started = time.perf_counter() - self.seconds
        bar = tqdm(total=self.config.steps, initial=self.step, unit="step", smoothing=0.05)
        try:
            while self.step < self.config.steps and not self._stop:
                figures = self._train_step()
                self.seconds = time.perf_counter() - started
                bar.update()
                if self.step % self.config.log_every == 0:
                    bar.set_postfix({k: f"{v:.3f}" for k, v in list(figures.items())[:3]})
                    self._log({"loss": figures})
                if self.step % self.config.eval_every == 0 or self.step == self.config.steps:
                    self._log({"validation": self.evaluate()})
                if self.step % self.config.checkpoint_every == 0:
                    self.save()
        finally:
            bar.close()
            for s, handler in zip(signals, previous, strict=True):
                signal.signal(s, handler)
            if not self._updating:  # half a step is no state to go on from
                self.save()
        if self._stop:
            raise SystemExit(f"stopped at step {self.step}; run the same command to go on")

    def save(self) -> None:
        payload = {
            "step": self.step,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "recipe": self.recipe,
            "model": self.model.state_dict(),
            "optimizers": [o.state_dict() for o in self.optimizers],
        }
        save_atomically(payload, self.folder / "checkpoint.pt")

    def _train_step(self) -> dict[str, float]:
        factor = wsd_factor(
            self.step,
            self.config.steps,
            warmup=self.config.warmup,
            decay_fraction=self.config.decay_fraction,
        )
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * factor
        loss, figures, tokens = self.batch_loss(self.step)
        if not math.isfinite(loss.item()):
            raise NonFiniteLoss(f"loss is {loss.item()} at step {self.step}: {figures}")
        loss.backward()
        children = self.model.values() if isinstance(self.model, nn.ModuleDict) else [self.model]
        for child in children:
            nn.utils.clip_grad_norm_(child.parameters(), self.config.grad_clip)
        self._updating = True
        for optimizer in self.optimizers:
            optimizer.step()
        self.step += 1
        self.tokens += tokens
        self._updating = False
        return figures

    def _resume(self) -> None:
        saved = torch.load(self.folder / "checkpoint.pt", weights_only=True)
        changed = _differences(saved["recipe"], self.recipe)
        if changed:
            raise ValueError(
                f"{self.folder} holds a run with another configuration ({', '.join(changed)}); "
                "choose another --output, or restore the configuration"
            )
        self.model.load_state_dict(saved["model"])
        for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.step, self.tokens, self.seconds = saved["step"], saved["tokens"], saved["seconds"]
        log = self.folder / "log.jsonl"
        if log.exists():  # what was logged after the checkpoint will be logged again
            lines = log.read_text().splitlines(keepends=True)
            whole = [line for line in lines if line.endswith("\n")]  # the last may be torn
            kept = [line for line in whole if json.loads(line)["step"] <= self.step]
            log.write_text("".join(kept))

    def _log(self, record: dict[str, Any]) -> None:
        base = {"step": self.step, "tokens": self.tokens, "seconds": round(self.seconds, 1)}
        with (self.folder / "log.jsonl").open("a") as log:
            log.write(json.dumps(base | record) + "\n")

    def _request_stop(self, *_: Any) -> None:
        if self._stop:  # asked twice: at once
            raise KeyboardInterrupt
        self._stop = True


def _differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Keys in which two recipes differ; the number of steps may."""
    strip = ("steps",)
    keys = sorted((set(old) | set(new)) - set(strip))
    return [k for k in keys if old.get(k) != new.get(k)]
