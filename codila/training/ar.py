"""Train block-decoding AR models on a frozen DLM's soft tokens (paper, section 3.2 and Eq. 2).

Blocks of B contiguous tokens are masked together with probability t; the DLM's marginals at the
masked positions become soft tokens; the AR model is teacher-forced on the block with weight 1/t.
Several AR models that differ only in their conditioning (soft, top-3, top-1) are trained side by
side on the same DLM forwards: the ablation of the paper's Table 4, each model fed in training what
it is fed in decoding.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen3Config, Qwen3ForCausalLM

from codila.block_decoder import BlockDecoder
from codila.bridge import VocabularyBridge
from codila.conditioning import parse_conditioning, soft_tokens
from codila.models.ar import ARMetadata, load_ar
from codila.models.dream import DreamModel
from codila.models.loading import load_tokenizer
from codila.toy.corpus import encode_corpus
from codila.training.corruption import mask_units, nelbo_weight, stratified_times
from codila.training.data import Batch, Batches
from codila.training.engine import Loop, LoopConfig


@dataclasses.dataclass(frozen=True)
class ARRecipe:
    """Everything that decides an AR run. ``model`` holds :class:`Qwen3Config` keys.

    ``init`` names the output folder of an earlier run (``ar``, ``ar-top3``, ...): each model starts
    from the one of its conditioning, whose configuration then replaces ``model``.
    """

    dlm: str
    tokenizer: str
    model: dict[str, Any]
    pairs: int
    rows: int
    steps: int
    init: str | None = None
    block_sizes: tuple[int, ...] = (2, 4, 8)
    conditioning: tuple[str, ...] = ("soft", "top-3", "top-1")
    boundaries: tuple[str, str] = ("<think>", "</think>")
    embeddings_from_dlm: bool = True
    warmup: int = 50
    decay_fraction: float = 0.5
    muon_lr: float = 0.015
    adam_lr: float = 0.004
    region: int = 64
    full_region: float = 0.35
    t_range: tuple[float, float] = (0.05, 1.0)
    weight_floor: float = 0.1
    eos_block_share: float = 0.08
    seed: int = 1

    def loop(self) -> LoopConfig:
        return LoopConfig(
            steps=self.steps,
            warmup=self.warmup,
            decay_fraction=self.decay_fraction,
            muon_lr=self.muon_lr,
            adam_lr=self.adam_lr,
            seed=self.seed,
        )


@dataclasses.dataclass(frozen=True)
class MaskedBlocks:
    """n masked blocks of a batch: DLM logits ``[n * B, Vd]``, tokens ``[n, B]``, weights ``[n]``.

    ``tokens`` counts the answer tokens that the batch stands for, the NELBO's denominator.
    """

    logits: Tensor
    ids: Tensor
    weight: Tensor
    tokens: int


def masked_blocks(
    dlm: DreamModel,
    batch: Batch,
    block_size: int,
    t: Tensor,
    generator: torch.Generator,
    *,
    weight_floor: float,
    eos_block_share: float,
) -> MaskedBlocks:
    """Corrupt a batch in whole blocks and run the DLM on it (LM head on the masked rows only).

    Of the blocks that hold nothing but padding, only ``eos_block_share`` are kept: they are most
    of a padded canvas and teach nothing after the first few.
    """
    rows, length = batch.answer.shape
    masked = mask_units(rows, length, block_size, t, generator)
    grid = (rows, length // block_size, block_size)
    eligible = ~batch.tail.view(grid).all(-1)
    eligible |= torch.rand(grid[:2], generator=generator) < eos_block_share
    keep = masked.view(grid).all(-1) & eligible
    ids = batch.ids.clone()
    ids[:, batch.prompt_length :][masked] = dlm.mask_token_id
    with torch.no_grad():
        hidden = dlm.body(ids)
        first = batch.prompt_length - dlm.shift
        chosen = hidden[:, first : first + length].reshape(*grid, -1)[keep]
        logits = dlm.lm_head(chosen).flatten(0, 1)
    weight = nelbo_weight(t, weight_floor)[:, None].expand(grid[:2])[keep]
    return MaskedBlocks(
        logits, batch.answer.reshape(grid)[keep], weight, int(eligible.sum()) * block_size
    )


class ARTraining:
    """The loss of a step and the validation figures, for :class:`codila.training.engine.Loop`."""

    def __init__(self, recipe: ARRecipe) -> None:
        self.recipe = recipe
        tokenizer = load_tokenizer(recipe.tokenizer)
        opening, closing = tokenizer.convert_tokens_to_ids(list(recipe.boundaries))
        self.boundaries = (opening, closing)
        self.dlm = DreamModel.from_pretrained(recipe.dlm, dtype=torch.float32).eval()
        self.dlm.requires_grad_(False)
        eos = self.dlm.eos_token_id
        self.bridge = VocabularyBridge(
            valid_vocab=min(self.dlm.config.vocab_size, recipe.model["vocab_size"]),
            banned_ids=(self.dlm.mask_token_id,),
            suppressed_ids=tuple(i for i in range(eos + 1, recipe.model["vocab_size"])),
        )
        self.models = nn.ModuleDict()
        self.decoders: dict[str, BlockDecoder] = {}
        for conditioning in recipe.conditioning:
            parse_conditioning(conditioning)
            model = _first_model(recipe, self.dlm, conditioning)
            self.models[conditioning] = model
            self.decoders[conditioning] = BlockDecoder(model, self.bridge, self.boundaries)
        backend = tokenizer.backend_tokenizer
        train = encode_corpus(backend, recipe.pairs, recipe.seed, "train", max_body=recipe.region)
        held_out = encode_corpus(backend, 2048, 0, "dev", max_body=recipe.region)
        common = {"region": recipe.region, "full_region": recipe.full_region}
        self.train = Batches(train, recipe.rows, eos, seed=recipe.seed, **common)  # type: ignore[arg-type]
        self.held_out = Batches(held_out, 16, eos, seed=1, **common)  # type: ignore[arg-type]

    def metadata(self, conditioning: str) -> ARMetadata:
        """What a decoder must know of the model of a conditioning."""
        return ARMetadata.of(
            self.dlm,
            self.bridge,
            block_sizes=self.recipe.block_sizes,
            boundaries=self.boundaries,
            conditioning=conditioning,
        )

    def block_nll(self, conditioning: str, blocks: MaskedBlocks) -> Tensor:
        """Cross-entropy in nats ``[n, B]`` of every token of every block, teacher-forced."""
        decoder = self.decoders[conditioning]
        n, size = blocks.ids.shape
        soft = soft_tokens(
            blocks.logits, decoder.table, self.bridge, top_k=parse_conditioning(conditioning)
        )
        logits = decoder.teacher_forced_logits(soft.view(n, size, -1), blocks.ids)
        nll = F.cross_entropy(logits.flatten(0, 1).float(), blocks.ids.flatten(), reduction="none")
        return nll.view(n, size)

    def batch_loss(self, step: int) -> tuple[Tensor, dict[str, float], int]:
        recipe = self.recipe
        batch = self.train(step)
        size = recipe.block_sizes[step % len(recipe.block_sizes)]
        generator = torch.Generator().manual_seed(recipe.seed * 1_000_003 + step)
        t = stratified_times(batch.ids.shape[0], *recipe.t_range, generator)
        blocks = masked_blocks(
            self.dlm,
            batch,
            size,
            t,
            generator,
            weight_floor=recipe.weight_floor,
            eos_block_share=recipe.eos_block_share,
        )
        total = torch.zeros(())
        figures = {}
        for conditioning in recipe.conditioning:
            nll = self.block_nll(conditioning, blocks)
            total = total + (nll.sum(-1) * blocks.weight).sum() / blocks.tokens
            figures[f"{conditioning}/B{size}"] = nll.mean().item()
        return total, figures, batch.ids.numel()

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """NLL in nats per token of held-out blocks, t = 0.5, beside the DLM's own (independent)."""
        figures: dict[str, float] = {}
        for size in self.recipe.block_sizes:
            generator = torch.Generator().manual_seed(0)
            totals: dict[str, float] = {}
            count = 0
            for step in range(6):
                batch = self.held_out(step)
                t = torch.full((batch.ids.shape[0],), 0.5)
                blocks = masked_blocks(
                    self.dlm, batch, size, t, generator, weight_floor=0.1, eos_block_share=0.0
                )
                own = F.cross_entropy(blocks.logits, blocks.ids.flatten(), reduction="sum")
                totals["dlm"] = totals.get("dlm", 0.0) + own.item()
                for name in self.recipe.conditioning:
                    nll = self.block_nll(name, blocks).sum().item()
                    totals[name] = totals.get(name, 0.0) + nll
                count += blocks.ids.numel()
            figures |= {f"{name}/B{size}": total / count for name, total in totals.items()}
        return figures


def _first_model(recipe: ARRecipe, dlm: DreamModel, conditioning: str) -> Any:
    """The model that training of a conditioning starts from."""
    if recipe.init is not None:
        return load_ar(Path(recipe.init) / ar_folder(conditioning))
    torch.manual_seed(recipe.seed)
    eos = dlm.eos_token_id
    model = Qwen3ForCausalLM(
        Qwen3Config(**recipe.model, eos_token_id=eos, pad_token_id=eos, bos_token_id=None)
    )
    if recipe.embeddings_from_dlm:
        with torch.no_grad():
            source = dlm.model.embed_tokens.weight[: eos + 1]
            model.model.embed_tokens.weight[: eos + 1] = source
    return model


def ar_folder(conditioning: str) -> str:
    """Name of the checkpoint folder of a conditioning: ``ar``, ``ar-top3``, ``ar-top1``, ..."""
    return "ar" if conditioning == "soft" else f"ar-{conditioning.replace('-', '')}"


def train_ar(recipe: ARRecipe, folder: Path) -> ARTraining:
    """Train (or resume) in ``folder``; the models are in ``.models`` by conditioning."""
    training = ARTraining(recipe)
    Loop(
        training.models,
        recipe.loop(),
        dataclasses.asdict(recipe),
        folder,
        training.batch_loss,
        training.evaluate,
    ).run()
    return training
