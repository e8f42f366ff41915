"""Everything that decides a training run of block-decoding AR models, and what is refused."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

from codila.conditioning import parse_conditioning
from codila.training.engine import LoopConfig

VARIED = (
    "conditioning", "window", "boundaries", "block_sizes", "freeze_embeddings", "init", "model",
)  # fmt: skip
"""What may differ between models that are trained side by side."""

HEADS = ("attention", "key_value")


@dataclasses.dataclass(frozen=True)
class ARRecipe:
    """A run: DLM, AR model, data, corruption, loss, optimisation (algorithms: paper, section 3.2).

    Several models can be trained side by side on the same DLM forwards: ``variants`` names each
    output folder and says in which of `VARIED` it differs from the recipe. They do not influence
    each other.

    The models:
        dlm: folder or hub id of the frozen DLM; ``dlm_dtype`` its dtype.
        init: folder, hub id or GGUF file of the causal LM to start from. Where it holds
            a folder of the variant's name (the output of an earlier run), that one.
        model: :class:`Qwen3Config` keys of a model from scratch, in place of ``init``;
            ``embeddings_from_dlm`` then copies the DLM's table where the widths agree.
        tokenizer: of the AR model; default that of ``init``, else the DLM's.
        lora: :class:`peft.LoraConfig` keys; the exported model is merged.

    The data:
        data: ``toy``, or files (.jsonl, .parquet) and hub data sets of chat or instruction records
            (:mod:`codila.training.records`); ``pairs`` is how many of the toy's, and the first so
            many records otherwise (0: all). ``validation`` of them, held out, for the curves.
        max_length: longest prompt and answer together; longer records are left out, and counted.
        min_answer: shorter answers are left out. max_malformed: more bad records stop the run.
        rows: sequences per process and micro-batch. accumulate: micro-batches per step.
        region, full_region, extra: see :class:`codila.training.data.Batches`.

    The corruption and the loss:
        block_sizes: B; the steps go through them in turn.
        mask_unit: M, tokens masked together; None: as many as the block of the step.
        random_offset: shift the grid by a random part of a unit in every batch.
        t_range, t_per: the masking probability, one per ``row`` or per ``batch``.
        weight_floor: the weight is ``1 / max(t, floor)``. loss_norm: ``nelbo`` divides by the
            answer's tokens, ``masked_mean`` by those that are trained on.
        eos_block_share: of the units of pure padding, how many are trained on.
        conditioning: ``soft`` or ``top-K``. boundaries: tokens around the soft ones, or None.
        window: soft tokens left and right of the block that the model reads too.
        freeze_embeddings: the table is not trained, nor a head that is tied to it.

    The optimisation: ``optimizer`` (adamw or muon, the latter with ``adam_lr`` for what is no
    matrix of a layer), ``lr``, ``schedule`` (cosine or wsd, whose decay is the last
    ``decay_fraction``), ``warmup`` steps, ``weight_decay``, ``grad_clip``, ``precision`` (fp32 or
    bf16: autocast), ``ema`` (decay, 0: off), ``shard`` (none: DDP; ar: FSDP; all: the DLM too),
    ``chunk_blocks`` (blocks per AR forward, 0: all; the memory of a step follows it),
    ``activation_checkpointing``, ``compile``.

    The curves: ``also_fed`` are the conditionings that the validation feeds to every model beside
    its own, ``eval_batches`` the batches of 16 that it reads.
    """

    dlm: str
    steps: int
    init: str | None = None
    model: dict[str, Any] | None = None
    embeddings_from_dlm: bool = True
    tokenizer: str | None = None
    dlm_dtype: str | None = None
    lora: dict[str, Any] | None = None
    variants: dict[str, dict[str, Any]] = dataclasses.field(default_factory=lambda: {"ar": {}})

    data: tuple[str, ...] = ("toy",)
    pairs: int = 0
    validation: int = 512
    max_length: int = 2048
    min_answer: int = 5
    max_malformed: int = 10
    rows: int = 1
    accumulate: int = 1
    region: int | None = None
    full_region: float = 0.0
    extra: int = 49

    block_sizes: tuple[int, ...] = (4,)
    mask_unit: int | None = None
    random_offset: bool = False
    t_range: tuple[float, float] = (0.001, 1.0)
    t_per: str = "row"
    weight_floor: float = 0.0
    loss_norm: str = "nelbo"
    eos_block_share: float = 1.0
    conditioning: str = "soft"
    boundaries: tuple[str, str] | None = ("<think>", "</think>")
    window: tuple[int, int] = (0, 0)
    freeze_embeddings: bool = False

    optimizer: str = "adamw"
    lr: float = 1e-5
    adam_lr: float = 0.004
    schedule: str = "cosine"
    decay_fraction: float = 0.5
    warmup: int = 1000
    weight_decay: float = 0.0
    grad_clip: float = 1.0
    precision: str = "fp32"
    ema: float = 0.0
    shard: str = "none"
    chunk_blocks: int = 0
    activation_checkpointing: bool = False
    compile: bool = False
    log_every: int = 10
    eval_every: int = 250
    eval_batches: int = 6
    also_fed: tuple[str, ...] = ("top-1",)
    checkpoint_every: int = 250
    keep_checkpoints: int = 1
    sample_every: int = 0
    seed: int = 1

    def __post_init__(self) -> None:
        for name in ("data", "block_sizes", "t_range", "window", "boundaries", "also_fed"):
            value = getattr(self, name)
            if isinstance(value, list):  # as JSON has it
                object.__setattr__(self, name, tuple(value))
            elif isinstance(value, str) and name == "data":
                object.__setattr__(self, name, (value,))
            elif isinstance(value, int) and name == "block_sizes":
                object.__setattr__(self, name, (value,))
        for fed in self.also_fed:
            parse_conditioning(fed)
        self._check_choices()
        self._check_variants()

    def _check_choices(self) -> None:
        for name, allowed in (
            ("t_per", ("row", "batch")), ("loss_norm", ("nelbo", "masked_mean")),
            ("optimizer", ("adamw", "muon")), ("schedule", ("cosine", "wsd")),
            ("precision", ("fp32", "bf16")), ("shard", ("none", "ar", "all")),
        ):  # fmt: skip
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name}={getattr(self, name)!r}: expected one of {allowed}")
        for name in ("steps", "rows", "accumulate", "log_every", "eval_every", "checkpoint_every"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: expected at least 1")
        low, high = self.t_range
        if not 0 <= low < high <= 1:
            raise ValueError(f"t_range={self.t_range}: expected 0 <= low < high <= 1")
        if (self.init is None) == (self.model is None):
            raise ValueError("give init= (a causal LM to start from) or model= (one from scratch)")
        if self.shard != "none" and self.optimizer == "muon":
            raise ValueError("optimizer='muon' needs whole matrices: with shard= use 'adamw'")
        if self.data == ("toy",) and (self.region is None or not self.pairs):
            raise ValueError("the toy task needs pairs= and region=")
        if not math.isfinite(self.lr) or self.lr < 0:
            raise ValueError(f"lr={self.lr}: expected a number from 0 on")

    def _check_variants(self) -> None:
        if not self.variants:
            raise ValueError("variants={}: name at least one model to train")
        units = set()
        for name, changes in self.variants.items():
            unknown = sorted(set(changes) - set(VARIED))
            if unknown:
                raise ValueError(f"variants[{name!r}] has {unknown}; what can vary is {VARIED}")
            own = self.of(name)
            parse_conditioning(own.conditioning)
            if not own.block_sizes or min(own.block_sizes) < 1:
                raise ValueError(f"block_sizes={own.block_sizes}: expected sizes from 1 on")
            if min(own.window) < 0 or len(own.window) != 2:
                raise ValueError(f"window={own.window}: expected [left, right] from 0 on")
            heads = [(own.model or {}).get(f"num_{kind}_heads", 1) for kind in HEADS]
            if heads[0] % heads[1]:
                raise ValueError(
                    f"model={own.model}: {heads[0]} heads cannot share {heads[1]} KV heads"
                )
            wrong = [b for b in own.block_sizes if self.mask_unit and self.mask_unit % b]
            if wrong:
                raise ValueError(f"mask_unit={self.mask_unit} is no multiple of blocks of {wrong}")
            units.add(own.block_sizes)
        if self.mask_unit is None and len(units) > 1:
            raise ValueError("variants with block_sizes of their own need a common mask_unit=")

    def of(self, name: str) -> ARRecipe:
        """The recipe of one variant, as if it were trained alone."""
        changes: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in self.variants[name].items()
        }
        if changes.get("model") is not None and self.model is not None:
            changes["model"] = self.model | changes["model"]
        return _replaced(self, variants={name: {}}, **changes)

    def unit_at(self, step: int) -> int:
        """M of a step."""
        sizes = self.of(next(iter(self.variants))).block_sizes
        return self.mask_unit or sizes[step % len(sizes)]

    def loop(self) -> LoopConfig:
        names = {f.name for f in dataclasses.fields(LoopConfig)}
        return LoopConfig(**{k: v for k, v in vars(self).items() if k in names})


def _replaced(recipe: ARRecipe, **changes: Any) -> ARRecipe:
    """`dataclasses.replace` without the checks, which have been made of the whole."""
    copy = object.__new__(ARRecipe)
    copy.__dict__.update(vars(recipe) | changes)
    return copy
