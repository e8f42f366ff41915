"""Train block-decoding AR models on a frozen DLM's soft tokens (paper, section 3.2 and Eq. 2).

Blocks of B contiguous tokens are masked together with probability t; the DLM's marginals at the
masked positions become soft tokens; the AR model is teacher-forced on the block with weight 1/t.
Several AR models that differ in one thing (conditioning, window, size, ...) are trained side by
side on the same DLM forwards, each fed in training what it is fed in decoding.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

from codila.block_decoder import BlockDecoder
from codila.conditioning import parse_conditioning, soft_tokens
from codila.models.ar import ARMetadata
from codila.training import estimate
from codila.training.ar_models import StartingPoint, starting_point
from codila.training.ar_recipe import ARRecipe
from codila.training.blocks import MaskedBlocks, MaskedRows, blocks_of, corrupt
from codila.training.corruption import stratified_times
from codila.training.data import Batch
from codila.training.distributed import World, gathered, shard_frozen, whole_state
from codila.training.engine import Loop, Part
from codila.training.sources import corpora
from codila_kernels import vocab_stats


class BlockLoss(nn.Module):
    """Cross-entropy of masked blocks under every AR model: what the loop may wrap."""

    def __init__(self, recipe: ARRecipe, start: StartingPoint) -> None:
        super().__init__()
        self.recipes = {name: recipe.of(name) for name in recipe.variants}
        self.models = nn.ModuleDict(start.models)
        self.decoders = {
            name: BlockDecoder(start.models[name], start.bridge, start.boundaries[name], own.window)
            for name, own in self.recipes.items()
        }
        self.bridge = start.bridge

    def nll(
        self, name: str, rows: MaskedRows, blocks: MaskedBlocks, fed: str | None = None
    ) -> Tensor:
        """Nats ``[n, B]`` of every token of every block under one model, teacher-forced.

        ``fed`` is a conditioning in place of the model's own.
        """
        return self._nll(name, rows, blocks, fed)  # where sharded, this door gathers the weights

    def _nll(
        self, name: str, rows: MaskedRows, blocks: MaskedBlocks, fed: str | None = None
    ) -> Tensor:
        decoder, (n, size) = self.decoders[name], blocks.ids.shape
        columns = torch.cat([blocks.rows, blocks.window_rows], dim=1).flatten()
        ids = torch.cat([blocks.ids, blocks.window_ids], dim=1).flatten()
        soft = soft_tokens(
            rows.logits,
            decoder.table,
            self.bridge,
            rows=columns.clamp_min(0),
            top_k=parse_conditioning(fed or self.recipes[name].conditioning),
            known_ids=ids,
            known=columns < 0,
        ).view(n, -1, decoder.table.shape[1])
        context = soft[:, size:] if soft.shape[1] > size else None
        logits = decoder.teacher_forced_logits(soft[:, :size], blocks.ids, context)
        flat = logits.flatten(0, 1).float()
        return F.cross_entropy(flat, blocks.ids.flatten(), reduction="none").view(n, size)

    def forward(
        self, rows: MaskedRows, chunks: dict[str, tuple[MaskedBlocks, Tensor]]
    ) -> tuple[Tensor, dict[str, tuple[float, float]]]:
        """The weighted loss of one chunk of blocks for every model, and the sums to log."""
        total = rows.logits.new_zeros((), dtype=torch.float32)
        figures = {}
        for name, (blocks, weight) in chunks.items():
            nll = self._nll(name, rows, blocks)
            total = total + (nll.sum(-1) * weight).sum()
            real = nll.detach()[weight > 0]
            figures[f"{name}/B{blocks.ids.shape[1]}"] = (real.sum().item(), float(real.numel()))
        return total, figures


class ARTraining:
    """The loss of a step and the validation figures (:class:`codila.training.engine.Task`)."""

    def __init__(self, recipe: ARRecipe, world: World | None = None, folder: Path | None = None):
        self.recipe, self.world = recipe, world or World()
        start = starting_point(recipe, self.world.device)
        self.start, self.dlm, self.bridge = start, start.dlm, start.bridge
        self.module = BlockLoss(recipe, start).to(self.world.device)
        self.models, self.decoders = self.module.models, self.module.decoders
        self.parts = list(self.models.values())
        self.layers = [m for model in self.parts for m in _layers(model)]
        sources = corpora(recipe, start, self.world, folder)
        self.data_sha256 = sources.sha256
        options = {"region": recipe.region, "full_region": recipe.full_region}
        options |= {"extra": recipe.extra, "multiple": _multiple(recipe)}
        eos = self.dlm.eos_token_id
        self.train = sources.train_batches(recipe.rows, eos, seed=recipe.seed, **options)
        self.held_out = sources.held_out_batches(16, eos, seed=1, **options)
        if recipe.shard == "all":
            shard_frozen(self.dlm)
        self.skeletons = {} if recipe.shard == "none" else _skeletons(start.models)

    def metadata(self, name: str) -> ARMetadata:
        """What a decoder must know of a variant."""
        own = self.recipe.of(name)
        return ARMetadata.of(
            self.dlm,
            self.bridge,
            block_sizes=own.block_sizes,
            boundaries=self.start.boundaries[name],
            conditioning=own.conditioning,
            window=own.window,
            name=self.recipe.dlm,
        )

    def needs(self, steps: int) -> str:
        """Memory of a step, and the time of ``steps`` of them at this machine's rate."""
        models = {name: self.models[name] for name in self.recipe.variants}
        parts = estimate.memory(self.recipe, self.dlm, models, self.world.size)
        work = estimate.work(self.recipe, self.dlm, models)
        dtype = torch.bfloat16 if self.recipe.precision == "bf16" else torch.float32
        seconds = work * steps / estimate.rate(self.world.device, dtype)
        return (
            f"{estimate.table(parts, work)}\n{steps} steps, at the rate of a matrix product here: "
            f"at least {seconds / 60:.1f} minutes"
        )

    def trained(self) -> dict[str, Any]:
        """The models by variant, whole; every process must ask, and the first gets them."""
        if not self.skeletons:
            return {name: self.models[name] for name in self.recipe.variants}
        state = whole_state(self.module)
        for name, model in self.skeletons.items() if self.world.is_main else ():
            head = f"models.{name}."
            own = {k.removeprefix(head): v for k, v in state.items() if k.startswith(head)}
            model.load_state_dict(own, assign=True)
            model.tie_weights()
        return self.skeletons

    def masked_rows(self, batch: Batch, step: int, generator: torch.Generator) -> MaskedRows:
        """A training batch, corrupted as the recipe says, after the DLM's forward."""
        recipe, unit = self.recipe, self.recipe.unit_at(step)
        low, high = recipe.t_range
        t = stratified_times(batch.ids.shape[0], low, high, generator)
        if recipe.t_per == "batch":
            t = t[:1].expand_as(t)
        offset = 0
        if recipe.random_offset:
            offset = int(torch.randint(unit, (), generator=generator))
        if batch.answer.shape[1] < offset + unit:
            offset = 0
        return corrupt(
            self.dlm,
            batch,
            unit,
            t,
            generator,
            weight_floor=recipe.weight_floor,
            eos_block_share=recipe.eos_block_share,
            offset=offset,
            beside=any(sum(own.window) for own in self.module.recipes.values()),
        )

    def batch_loss(self, module: nn.Module, index: int, step: int) -> Iterator[Part]:
        batch = self.train(index)
        generator = torch.Generator().manual_seed(self.recipe.seed * 1_000_003 + index)
        rows = self.masked_rows(batch, step, generator)
        blocks, weights = {}, {}
        for name, own in self.module.recipes.items():
            size = own.block_sizes[step % len(own.block_sizes)]
            blocks[name] = blocks_of(rows, size, own.window)
            weights[name] = blocks[name].weight / self._norm(blocks[name])
        most = max(len(b.ids) for b in blocks.values())
        # every process must run the model equally often, or shards would wait for each other
        count = self.world.largest(-(-most // (self.recipe.chunk_blocks or most)))
        for chunk in range(count):
            cut = {name: _piece(blocks[name], weights[name], chunk, count) for name in blocks}
            loss, figures = module(rows, cut)
            tokens = batch.ids.numel() if chunk == 0 else 0
            yield Part(loss, figures, chunk == count - 1, tokens)

    def _norm(self, blocks: MaskedBlocks) -> float:
        if self.recipe.loss_norm == "nelbo":
            return float(blocks.tokens)
        return float(blocks.ids.numel())

    def describe(self, index: int) -> dict[str, Any]:
        batch = self.train(index)
        return {"index": index, "ids": batch.ids, "prompt_length": batch.prompt_length}

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Held-out blocks in nats per token, beside two yardsticks; see :meth:`_validate`."""
        figures: dict[str, float] = {}
        sizes = sorted({b for own in self.module.recipes.values() for b in own.block_sizes})
        for size in sizes:
            figures |= self._validate(size)
        return figures

    def _validate(self, size: int) -> dict[str, float]:
        """NLL at t = 0.25, 0.5 and 0.9 and by place in the block, the mean weighted by t.

        ``dlm`` is the DLM's own, independent NLL of the same tokens, ``NAME/top-1`` that of the
        model fed the DLM's arg-max tokens: the gain over the first is what coherence brings, over
        the second what softness brings. ``perplexity`` is exp of the weighted mean (Figure 3).
        """
        recipe, unit = self.recipe, self.recipe.mask_unit or size
        named = [n for n, own in self.module.recipes.items() if size in own.block_sizes]
        sums: dict[str, float] = {}
        ratios = (0.25, 0.5, 0.9)

        def add(key: str, value: float) -> None:
            sums[key] = sums.get(key, 0.0) + value

        for ratio in ratios:
            generator = torch.Generator().manual_seed(0)
            for index in range(recipe.eval_batches):
                batch = self.held_out(index)
                t = torch.full((batch.ids.shape[0],), ratio)
                options = {"eos_block_share": 0.0, "beside": True}
                rows = corrupt(self.dlm, batch, unit, t, generator, **options)  # type: ignore[arg-type]
                blocks = blocks_of(rows, size)
                own = self._independent(rows, blocks)
                add(f"count@{ratio}", own.numel())
                add(f"dlm@{ratio}", own.sum().item())
                for name in named:
                    window = self.module.recipes[name].window
                    blocks = blocks_of(rows, size, window)
                    nll = self.module.nll(name, rows, blocks)
                    add(f"{name}@{ratio}", nll.sum().item())
                    if ratio != 0.5:
                        continue
                    for place, value in enumerate(nll.sum(0).tolist()):
                        add(f"{name}/place{place + 1}", value * size)
                    for fed in recipe.also_fed:
                        nll = self.module.nll(name, rows, blocks, fed)
                        add(f"{name}/{fed}", nll.sum().item())
        figures = {}
        for name in ("dlm", *named):
            at = {r: sums[f"{name}@{r}"] / sums[f"count@{r}"] for r in ratios}
            mean = sum(r * v for r, v in at.items()) / sum(ratios)
            figures[f"{name}/B{size}"] = at[0.5]
            figures |= {f"{name}/B{size}@{r}": v for r, v in at.items() if r != 0.5}
            figures[f"{name}/B{size}/perplexity"] = math.exp(min(mean, 700.0))
        for key, value in sums.items():
            name, _, kind = key.partition("/")
            if kind:
                figures[f"{name}/B{size}/{kind}"] = value / sums["count@0.5"]
        return figures

    def _independent(self, rows: MaskedRows, blocks: MaskedBlocks) -> Tensor:
        """NLL ``[n, B]`` of the blocks' tokens under the DLM's marginals, each on its own."""
        vocabulary: dict[str, Any] = {
            "valid_vocab": self.bridge.valid_vocab,
            "banned_ids": self.bridge.banned_ids,
        }
        lse = vocab_stats(rows.logits, **vocabulary).lse
        own = rows.logits[blocks.rows, blocks.ids].float()
        return lse[blocks.rows] - own

    def sample(self) -> str:
        """A held-out prompt, decoded by every model."""
        from codila.generation import generate

        gathered(self.module)
        batch, texts = self.held_out(0), []
        first = int(batch.padding[0])
        prompt = batch.ids[:1, first : batch.prompt_length].to(self.world.device)
        for name in self.recipe.variants:
            model: Any = self.models[name]
            size = max(self.module.recipes[name].block_sizes)
            model.codila = self.metadata(name)
            out = generate(
                self.dlm,
                prompt,
                ar_model=model,
                max_new_tokens=batch.answer.shape[1],
                block_size=size,
                seed=0,
            )
            assert out.sequences is not None
            text = self.start.tokenizer.decode(out.sequences[0], skip_special_tokens=True)
            texts.append(f"--- {name}, B = {size}\n{text}")
        return "\n".join(texts)


def _piece(
    blocks: MaskedBlocks, weight: Tensor, index: int, count: int
) -> tuple[MaskedBlocks, Tensor]:
    """Part ``index`` of ``count``; where it would be empty, a block of weight 0."""
    n = len(blocks.ids)
    piece = slice(index * n // count, (index + 1) * n // count)
    if piece.start == piece.stop:
        piece, weight = slice(0, 1), torch.zeros_like(weight)
    cut = {
        f.name: getattr(blocks, f.name)[piece]
        for f in dataclasses.fields(blocks)
        if f.name != "tokens"
    }
    return MaskedBlocks(**cut, tokens=blocks.tokens), weight[piece]


def _skeletons(models: dict[str, Any]) -> dict[str, Any]:
    """The models without their weights, to be filled when training is over."""
    return {name: copy.deepcopy(model).to("meta") for name, model in models.items()}


def _layers(model: Any) -> list[nn.Module]:
    return list(model.get_decoder().layers)


def _multiple(recipe: ARRecipe) -> int:
    sizes = [b for name in recipe.variants for b in recipe.of(name).block_sizes]
    return max(8, recipe.mask_unit or 0, *sizes)


def train_ar(recipe: ARRecipe, folder: Path, world: World | None = None) -> ARTraining:
    """Train (or resume) in ``folder``; the models are in ``.models`` by variant."""
    training = ARTraining(recipe, world, folder)
    configuration = dataclasses.asdict(recipe) | {"data_sha256": training.data_sha256}
    loop = Loop(training, recipe.loop(), configuration, folder, training.world)
    if training.world.is_main:
        tqdm.write(training.needs(steps=recipe.steps - loop.step))
    loop.run()
    return training
