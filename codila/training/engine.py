"""The training loop: exact resume, atomic checkpoints, one process or many.

A run lives in a folder: ``config.json`` (what it was started with), ``log.jsonl`` (one record per
logged step and per validation), ``checkpoint-STEP.pt`` (weights, optimizer state, step; the last
few) and ``samples.txt``. Everything random is a function of the seed and the step, so a run that
was killed anywhere and resumed equals the unbroken one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from tqdm import tqdm

from codila.training.distributed import World, data_parallel, gradients_synchronised, shard
from codila.training.optim import build_optimizers, learning_rate_factor


@dataclasses.dataclass(frozen=True)
class LoopConfig:
    """What the loop itself needs to know.

    ``steps`` may be changed on resume (the decay moves with it); nothing else that decides the
    weights may.
    """

    steps: int
    accumulate: int = 1
    optimizer: str = "muon"
    lr: float = 0.015
    adam_lr: float = 0.004
    schedule: str = "wsd"
    decay_fraction: float = 0.3
    warmup: int = 50
    weight_decay: float = 0.0
    grad_clip: float = 1.0
    precision: str = "fp32"
    ema: float = 0.0
    shard: str = "none"
    log_every: int = 10
    eval_every: int = 250
    checkpoint_every: int = 250
    keep_checkpoints: int = 1
    sample_every: int = 0
    seed: int = 0


class Part(NamedTuple):
    """A part of a batch's loss, ready for its backward pass."""

    loss: Tensor
    figures: dict[str, tuple[float, float]]  # name -> sum and count
    is_last: bool
    tokens: int


class Task(Protocol):
    """What is trained: the loop knows nothing else of it.

    Attributes:
        module: whose ``forward`` computes a part of the loss; the loop may wrap it.
        parts: the models inside that are clipped apart, so that models trained side by side do not
            influence each other.
        layers: repeated layers, the units of FSDP.
    """

    module: Any
    parts: list[nn.Module]
    layers: list[nn.Module]

    def batch_loss(self, module: nn.Module, index: int, step: int) -> Iterator[Part]:
        """The loss of micro-batch ``index`` in step ``step``, ``module`` standing for its own."""
        ...

    def describe(self, index: int) -> dict[str, Any]:
        """What is worth saving of a batch on which the loss was no number."""
        ...

    def evaluate(self) -> dict[str, float]: ...

    def sample(self) -> str: ...


class NonFiniteLoss(RuntimeError):
    """The loss stopped being a number; the last checkpoint is from before that step."""


def save_atomically(payload: Any, path: Path) -> None:
    """``torch.save`` so that ``path`` always holds a whole file, the old one or the new one.

    Raises:
        OSError: the disk is full or read-only; no half file is left behind.
    """
    scratch = path.with_name(path.name + ".tmp")
    try:
        with scratch.open("wb") as written:
            torch.save(payload, written)
            written.flush()
            os.fsync(written.fileno())
    except (OSError, RuntimeError) as error:  # torch reports a failed write as RuntimeError
        scratch.unlink(missing_ok=True)
        raise OSError(f"{path} could not be written, what was there is kept: {error}") from error
    os.replace(scratch, path)


class Loop:
    """Train a :class:`Task` for ``config.steps`` steps in a folder.

    Args:
        task: what is trained.
        config: see :class:`LoopConfig`.
        recipe: the whole configuration of the run; resuming with another one is an error.
        folder: the run's folder, created if need be.
        world: the processes that share the work.

    Raises:
        ValueError: the folder holds a run with another configuration.
        OSError: the folder cannot be written.
    """

    def __init__(
        self,
        task: Task,
        config: LoopConfig,
        recipe: dict[str, Any],
        folder: Path,
        world: World | None = None,
    ) -> None:
        self.task, self.config, self.folder = task, config, folder
        self.world = world or World()
        self.recipe = json.loads(json.dumps(recipe))
        folder.mkdir(parents=True, exist_ok=True)
        saved = self._latest()
        self.module = task.module
        if config.shard == "none":
            self.module = data_parallel(task.module, self.world)
        else:
            shard(task.module, task.layers, config.precision)
        self.optimizers = build_optimizers(
            task.module,
            optimizer=config.optimizer,
            lr=config.lr,
            adam_lr=config.adam_lr,
            weight_decay=config.weight_decay,
        )
        self.trained = [p for p in task.module.parameters() if p.requires_grad]
        self.ema = [p.detach().clone() for p in self.trained] if config.ema else []
        self.step = self.tokens = 0
        self.seconds = 0.0
        self._stop = self._updating = False
        if saved is not None:
            self._resume(saved)
        if self.world.is_main:
            text = json.dumps(self.recipe, indent=2) + "\n"
            (folder / "config.json.tmp").write_text(text, encoding="utf-8")
            os.replace(folder / "config.json.tmp", folder / "config.json")

    def run(self) -> None:
        """Train to the end; SIGTERM or Ctrl-C ends the step and saves a checkpoint first."""
        config, signals = self.config, (signal.SIGTERM, signal.SIGINT)
        previous = [signal.signal(s, self._request_stop) for s in signals]
        started = time.perf_counter() - self.seconds
        quiet = not self.world.is_main
        bar = tqdm(
            total=config.steps, initial=self.step, unit="step", smoothing=0.05, disable=quiet
        )
        saved_at = self.step
        try:
            while self.step < config.steps and not self._asked_to_stop():
                figures = self._train_step()
                self.seconds = time.perf_counter() - started
                bar.update()
                if self.step % config.log_every == 0:
                    bar.set_postfix({k: f"{v:.3f}" for k, v in list(figures.items())[:3]})
                    self._log({"loss": figures})
                if self.step % config.eval_every == 0 or self.step == config.steps:
                    with self._averaged_weights():
                        self._log({"validation": self.task.evaluate()})
                if config.sample_every and self.step % config.sample_every == 0:
                    with self._averaged_weights():
                        self._write_sample()
                if self.step % config.checkpoint_every == 0:
                    self.save()
                    saved_at = self.step
        finally:
            bar.close()
            for s, handler in zip(signals, previous, strict=True):
                signal.signal(s, handler)
            # half a step is no state to go on from, and one process alone cannot gather shards
            if not self._updating and saved_at != self.step and self._may_save_alone():
                self.save()
        if self._stop:
            raise SystemExit(f"stopped at step {self.step}; run the same command to go on")
        with torch.no_grad():
            for p, mean in zip(self.trained, self.ema, strict=bool(self.ema)):
                p.copy_(mean)

    def save(self) -> None:
        """Write ``checkpoint-STEP.pt``; older ones beyond ``keep_checkpoints`` go."""
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        with _quiet_state_dicts():
            model, optimizers = get_state_dict(self.task.module, self.optimizers, options=options)
        ema = [_whole(p) for p in self.ema]
        if self.world.is_main:
            payload = {
                "step": self.step,
                "tokens": self.tokens,
                "seconds": self.seconds,
                "recipe": self.recipe,
                "model": model,
                "optimizers": optimizers,
                "ema": ema,
            }
            save_atomically(payload, self._checkpoint(self.step))
            for step in self._steps()[: -self.config.keep_checkpoints]:
                self._checkpoint(step).unlink()
        self.world.wait()

    def _train_step(self) -> dict[str, float]:
        config, world = self.config, self.world
        factor = learning_rate_factor(
            config.schedule,
            self.step,
            config.steps,
            warmup=config.warmup,
            decay_fraction=config.decay_fraction,
        )
        for optimizer in self.optimizers:
            optimizer.zero_grad(set_to_none=True)
            for group in optimizer.param_groups:
                group["lr"] = group["initial_lr"] * factor
        sums: dict[str, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
        total, tokens = 0.0, 0
        for micro in range(config.accumulate):
            index = (self.step * config.accumulate + micro) * world.size + world.rank
            last = micro == config.accumulate - 1
            for part in self._parts(index, last):
                total += part.loss.item() / config.accumulate
                tokens += part.tokens * world.size
                for name, (value, count) in part.figures.items():
                    sums[name] = (sums[name][0] + value, sums[name][1] + count)
                self._check_finite(part, index)
                with gradients_synchronised(self.module, last and part.is_last):
                    (part.loss / config.accumulate).backward()
        for part_of_model in self.task.parts:
            nn.utils.clip_grad_norm_(part_of_model.parameters(), config.grad_clip)
        self._updating = True
        for optimizer in self.optimizers:
            optimizer.step()
        if self.ema:
            torch._foreach_lerp_(self.ema, [p.detach() for p in self.trained], 1 - config.ema)
        self.step += 1
        self.tokens += tokens
        self._updating = False
        names = sorted(sums)
        values = [total, *(sums[n][0] / max(sums[n][1], 1.0) for n in names)]
        means = world.mean(torch.tensor(values, dtype=torch.float64)).tolist()
        return dict(zip(["loss", *names], means, strict=True))

    def _parts(self, index: int, last: bool) -> Iterator[Part]:
        autocast = contextlib.nullcontext()
        if self.config.precision == "bf16" and self.config.shard == "none":
            autocast = torch.autocast(self.world.device.type, torch.bfloat16)  # type: ignore[assignment]
        parts = self.task.batch_loss(self.module, index, self.step)
        while True:
            with autocast:
                part = next(parts, None)
            if part is None:
                return
            yield part

    def _check_finite(self, part: Part, index: int) -> None:
        if not math.isfinite(self.world.mean(part.loss.detach().double().cpu()).item()):
            path = self.folder / f"bad-batch-{self.step}-{self.world.rank}.pt"
            save_atomically(self.task.describe(index), path)
            raise NonFiniteLoss(
                f"loss is {part.loss.item()} at step {self.step}: {part.figures}; the batch is in "
                f"{path}, and the last checkpoint is from before this step"
            )

    @contextlib.contextmanager
    def _averaged_weights(self) -> Iterator[None]:
        """The exponential average in place of the weights, if one is kept."""
        if not self.ema:
            yield
            return
        own = [p.detach().clone() for p in self.trained]
        with torch.no_grad():
            for p, mean in zip(self.trained, self.ema, strict=True):
                p.copy_(mean)
            yield
            for p, kept in zip(self.trained, own, strict=True):
                p.copy_(kept)

    def _resume(self, saved: dict[str, Any]) -> None:
        changed = _differences(saved["recipe"], self.recipe)
        if changed:
            raise ValueError(
                f"{self.folder} holds a run with another configuration ({', '.join(changed)}); "
                "choose another --output, or restore the configuration"
            )
        options = StateDictOptions(full_state_dict=True, cpu_offload=True)
        with _quiet_state_dicts():
            set_state_dict(
                self.task.module,
                self.optimizers,
                model_state_dict=saved["model"],
                optim_state_dict=saved["optimizers"],
                options=options,
            )
        for mean, kept in zip(self.ema, saved["ema"], strict=True):
            _fill(mean, kept)
        self.step, self.tokens, self.seconds = saved["step"], saved["tokens"], saved["seconds"]
        log = self.folder / "log.jsonl"
        if log.exists() and self.world.is_main:  # what came after it will be logged again
            lines = log.read_text().splitlines(keepends=True)
            whole = [line for line in lines if line.endswith("\n")]  # the last may be torn
            kept = [line for line in whole if json.loads(line)["step"] <= self.step]
            log.write_text("".join(kept))

    def _latest(self) -> dict[str, Any] | None:
        steps = self._steps()
        if not steps:
            return None
        path = self._checkpoint(steps[-1])
        return torch.load(path, weights_only=True, map_location="cpu", mmap=True)  # type: ignore[no-any-return]

    def _checkpoint(self, step: int) -> Path:
        return self.folder / f"checkpoint-{step}.pt"

    def _steps(self) -> list[int]:
        names = (p.stem.removeprefix("checkpoint-") for p in self.folder.glob("checkpoint-*.pt"))
        return sorted(int(name) for name in names if name.isdigit())

    def _log(self, record: dict[str, Any]) -> None:
        if not self.world.is_main:
            return
        base = {"step": self.step, "tokens": self.tokens, "seconds": round(self.seconds, 1)}
        with (self.folder / "log.jsonl").open("a") as log:
            log.write(json.dumps(base | record) + "\n")

    def _write_sample(self) -> None:
        text = self.task.sample()
        if self.world.is_main:
            with (self.folder / "samples.txt").open("a", encoding="utf-8") as file:
                file.write(f"=== step {self.step}\n{text}\n")

    def _asked_to_stop(self) -> bool:
        """Whether any process was; all of them stop after the same step."""
        self._stop = bool(self.world.largest(int(self._stop)))
        return self._stop

    def _may_save_alone(self) -> bool:
        return self.world.size == 1 or self._stop or self.step >= self.config.steps

    def _request_stop(self, *_: Any) -> None:
        if self._stop:  # asked twice: at once
            raise KeyboardInterrupt
        self._stop = True


@contextlib.contextmanager
def _quiet_state_dicts() -> Iterator[None]:
    """torch warns of a deprecated call of its own in `get_state_dict`."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        yield


def _whole(value: Tensor) -> Tensor:
    gathered = value.full_tensor() if hasattr(value, "full_tensor") else value
    return gathered.detach().cpu()


def _fill(target: Tensor, value: Tensor) -> None:
    if hasattr(target, "device_mesh"):
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(
            value.to(target.device),
            target.device_mesh,
            target.placements,  # type: ignore[attr-defined]
        )
    with torch.no_grad():
        target.copy_(value)


def _differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Keys in which two recipes differ; what does not decide the weights may."""
    free = {"steps", "log_every", "eval_every", "checkpoint_every", "keep_checkpoints"}
    free |= {
        "sample_every",
        "eval_batches",
        "also_fed",
        "shard",
        "compile",
        "activation_checkpointing",
    }
    keys = sorted((set(old) | set(new)) - free)
    return [k for k in keys if old.get(k) != new.get(k)]
