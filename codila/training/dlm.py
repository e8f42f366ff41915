"""Train a Dream-architecture DLM from scratch on the toy task (masked-diffusion NELBO)."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codila.generation import generate
from codila.models.dream import DreamConfig, DreamModel
from codila.models.loading import load_dlm, load_tokenizer
from codila.toy.corpus import encode_corpus
from codila.training.corruption import mask_units, nelbo_weight, stratified_times
from codila.training.data import Batch, Batches
from codila.training.engine import Loop, LoopConfig, Part


@dataclasses.dataclass(frozen=True)
class DLMRecipe:
    """Everything that decides a DLM run. ``model`` holds :class:`DreamConfig` keys.

    ``init`` names a checkpoint folder to start from; its configuration then replaces ``model``.
    """

    tokenizer: str
    model: dict[str, Any]
    pairs: int
    rows: int
    steps: int
    warmup: int = 100
    decay_fraction: float = 0.3
    lr: float = 0.015
    adam_lr: float = 0.004
    region: int = 64
    full_region: float = 0.5
    t_range: tuple[float, float] = (0.05, 1.0)
    weight_floor: float = 0.1
    eos_tail_weight: float = 0.1
    init: str | None = None
    seed: int = 0

    def loop(self) -> LoopConfig:
        return LoopConfig(
            steps=self.steps,
            warmup=self.warmup,
            decay_fraction=self.decay_fraction,
            lr=self.lr,
            adam_lr=self.adam_lr,
            seed=self.seed,
        )


def masked_nll(model: DreamModel, batch: Batch, masked: Tensor) -> Tensor:
    """Cross-entropy in nats of the true tokens at masked answer positions, ``[n_masked]``.

    Row-major order of ``masked`` ``[rows, answer_length]``. The LM head runs on those rows only.
    """
    ids = batch.ids.clone()
    ids[:, batch.prompt_length :][masked] = model.mask_token_id
    hidden = model.body(ids, batch.attention_mask)
    first = batch.prompt_length - model.shift
    rows = hidden[:, first : first + masked.shape[1]][masked]
    return F.cross_entropy(model.lm_head(rows).float(), batch.answer[masked], reduction="none")


class MaskedNLL(nn.Module):
    """`masked_nll` as a module, for the loop."""

    def __init__(self, model: DreamModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, masked: Tensor) -> Tensor:
        return masked_nll(self.model, batch, masked)


class DLMTraining:
    """The loss of a step and the validation figures (:class:`codila.training.engine.Task`)."""

    def __init__(self, recipe: DLMRecipe) -> None:
        self.recipe = recipe
        tokenizer = load_tokenizer(recipe.tokenizer)
        torch.manual_seed(recipe.seed)
        self.model = _new_model(recipe, tokenizer) if recipe.init is None else load_dlm(recipe.init)
        self.model.train()
        self.module = MaskedNLL(self.model)
        self.parts: list[nn.Module] = [self.model]
        self.layers: list[nn.Module] = list(self.model.model.layers)
        self.tokenizer = tokenizer
        backend, eos = tokenizer.backend_tokenizer, self.model.eos_token_id
        toy: dict[str, Any] = {"seed": recipe.seed, "max_body": recipe.region, "end": eos}
        train = encode_corpus(backend, recipe.pairs, split="train", **toy)
        held_out = encode_corpus(backend, 2048, split="dev", **toy)
        common = {"region": recipe.region, "full_region": recipe.full_region}
        self.train = Batches(train, recipe.rows, eos, seed=recipe.seed, **common)  # type: ignore[arg-type]
        self.held_out = Batches(held_out, 16, eos, seed=1, **common)  # type: ignore[arg-type]

    def batch_loss(self, module: nn.Module, index: int, step: int) -> Iterator[Part]:
        batch, recipe = self.train(index), self.recipe
        generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + index)
        rows, length = batch.answer.shape
        t = stratified_times(rows, *recipe.t_range, generator)
        masked = mask_units(rows, length, 1, t, generator)
        nll = module(batch, masked)
        weight = nelbo_weight(t, recipe.weight_floor)[:, None].expand(rows, length)
        token = torch.where(batch.tail, recipe.eos_tail_weight, 1.0)
        loss = (nll * (weight * token)[masked]).sum() / token.sum()
        real = nll.detach()[~batch.tail[masked]]
        figures = {"nll": (real.sum().item(), float(real.numel()))}
        yield Part(loss, figures, True, batch.ids.numel())

    def describe(self, index: int) -> dict[str, Any]:
        batch = self.train(index)
        return {"index": index, "ids": batch.ids, "prompt_length": batch.prompt_length}

    def sample(self) -> str:
        """A held-out prompt, continued one token a step."""
        batch = self.held_out(0)
        prompt = batch.ids[:1, int(batch.padding[0]) : batch.prompt_length]
        self.model.eval()
        out = generate(
            self.model, prompt, schedule="entropy", max_new_tokens=batch.answer.shape[1], seed=0
        )
        self.model.train()
        assert out.sequences is not None
        return str(self.tokenizer.decode(out.sequences[0], skip_special_tokens=True))

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """NLL in nats per masked answer token (the EOS tail left out) at three mask ratios."""
        self.model.eval()
        figures = {}
        for ratio in (0.25, 0.5, 0.9):
            generator = torch.Generator().manual_seed(0)
            total, count = 0.0, 0
            for step in range(6):
                batch = self.held_out(step)
                rows, length = batch.answer.shape
                masked = mask_units(rows, length, 1, torch.full((rows,), ratio), generator)
                nll = masked_nll(self.model, batch, masked)[~batch.tail[masked]]
                total, count = total + nll.sum().item(), count + nll.numel()
            figures[f"nll@{ratio}"] = total / count
        self.model.train()
        return figures


def _new_model(recipe: DLMRecipe, tokenizer: Any) -> DreamModel:
    return DreamModel(
        DreamConfig(
            **recipe.model,
            mask_token_id=tokenizer.mask_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            bos_token_id=tokenizer.bos_token_id,
            architectures=["DreamModel"],
        )
    )


def train_dlm(recipe: DLMRecipe, folder: Path) -> DreamModel:
    """Train (or resume) in ``folder`` and return the model."""
    training = DLMTraining(recipe)
    Loop(training, recipe.loop(), dataclasses.asdict(recipe), folder).run()
    return training.model
