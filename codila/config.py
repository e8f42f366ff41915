"""One configuration for every way of decoding, saved and loaded like a transformers one."""

from __future__ import annotations

import dataclasses
import json
import math
import os
from pathlib import Path
from typing import Any

from codila.conditioning import parse_conditioning

CONFIG_NAME = "codila_generation_config.json"  # transformers' own name is taken in DLM folders


@dataclasses.dataclass(frozen=True, kw_only=True)
class GenerationConfig:
    """How to decode. Defaults are the paper's (Table 3) where it has one.

    Attributes:
        max_new_tokens: masks behind the prompt; 0 decodes those that the prompts hold. The last
            block, where it reaches past them, is completed with end tokens that only the AR model
            sees.
        block_size: B, tokens of a block. The grid starts at the end of the prompt.
        schedule: which positions to commit next; see :mod:`codila.schedules`.
        blocks_per_step: m, blocks per step of the static schedule.
        block_gap: of the static schedule, blocks left between two that are decoded in one step.
        skip_certain: blocks whose marginals prove their arg-max to be the joint mode (Frechet's
            bounds) are left to the DLM's sampler.
        entropy_threshold: tau in nats, of the dynamic schedule.
        confidence_threshold: c, of the schedules threshold and ar_frontier.
        joint_threshold: theta in (0, 1], of ar_likelihood and ar_frontier: what is committed has
            at least this probability under the AR model.
        scope_blocks: candidate blocks from the frontier on; 0 is the whole canvas.
        tokens_per_step: K, of the baselines (entropy, confidence, margin).
        temperature, top_p, top_k: sampling, of the AR model and of the DLM alike; temperature 0
            is arg-max, ``top_k=0`` is off.
        conditioning: ``"soft"`` or ``"top-K"``: what the AR model is fed; None is what it was
            trained on.
        conditioning_temperature: divides the DLM's logits before conditioning.
        confidence_source: ``"raw"`` measures confidence on the DLM's own distribution,
            ``"sampled"`` after temperature and nucleus, as Dream's published sampler does.
        eos_fill: once everything left of a committed EOS is known, fill the rest and stop.
        eos_token_id: one end token or several, in place of the model's.
        min_new_tokens: no end token among so many positions behind the prompt.
        suppress_tokens: ids that are never written, the end token's too if it is among them.
        num_return_sequences: continuations of every prompt; each row draws from its own seed.
        expand_budget: positions that holes of unknown length may grow by (DreamOn): a committed
            expand token becomes two masks, an end token deletes its position. None: lengths stand.
        expand_token_id: the expand token; default that of the model's config.
        dlm_cache: keep the DLM's keys between steps: ``"prefix"`` left of the frontier's block,
            ``"dual"`` on both sides of the scope, ``"none"``; see :mod:`codila.dlm_cache`.
        refresh_interval: steps from one whole pass to the next (1: every step, None: only as the
            frontier moves).
        window_blocks: a whole pass is due where the frontier has moved so many blocks; default
            ``scope_blocks``.
        cuda_graphs: replay the DLM's body and the AR model's blocks from CUDA graphs, recorded in
            the second step of a batch size. Models whose forwards ask the device for something
            cannot be recorded.
        output_history: keep the canvas after every step.
    """

    max_new_tokens: int = 64
    block_size: int = 4
    schedule: str = "static"
    blocks_per_step: int = 1
    block_gap: int = 0
    skip_certain: bool = False
    entropy_threshold: float = 0.3
    confidence_threshold: float = 0.9
    joint_threshold: float = 0.9
    scope_blocks: int = 10
    tokens_per_step: int = 1
    temperature: float = 0.1
    top_p: float = 0.8
    top_k: int = 0
    conditioning: str | None = None
    conditioning_temperature: float = 1.0
    confidence_source: str = "raw"
    eos_fill: bool = True
    eos_token_id: int | tuple[int, ...] | None = None
    min_new_tokens: int = 0
    suppress_tokens: tuple[int, ...] | None = None
    num_return_sequences: int = 1
    expand_budget: int | None = None
    expand_token_id: int | None = None
    dlm_cache: str = "none"
    refresh_interval: int | None = None
    window_blocks: int | None = None
    cuda_graphs: bool = False
    output_history: bool = False

    def __post_init__(self) -> None:
        from codila.schedules import SCHEDULES

        def need(ok: bool, name: str, expected: str) -> None:
            if not ok:
                raise ValueError(f"{name}={getattr(self, name)!r}: expected {expected}")

        for name in ("eos_token_id", "suppress_tokens"):
            value = getattr(self, name)
            if isinstance(value, list):  # as JSON and transformers have it
                object.__setattr__(self, name, tuple(value))
            each = self._ids(name)
            need(all(_is_int(i) and i >= 0 for i in each), name, "token ids")
        for name in ("block_size", "blocks_per_step", "tokens_per_step", "num_return_sequences"):
            value = getattr(self, name)
            need(_is_int(value) and value >= 1, name, "an int of at least 1")
        for name in ("max_new_tokens", "scope_blocks", "top_k", "min_new_tokens", "block_gap"):
            value = getattr(self, name)
            need(_is_int(value) and value >= 0, name, "an int of at least 0")
        for name in ("expand_budget", "expand_token_id"):
            value = getattr(self, name)
            need(value is None or (_is_int(value) and value >= 0), name, "None, or 0 and more")
        for name in (
            "entropy_threshold",
            "confidence_threshold",
            "joint_threshold",
            "temperature",
            "top_p",
            "conditioning_temperature",
        ):
            value = getattr(self, name)
            need(isinstance(value, float) or _is_int(value), name, "a number")
        for name in ("eos_fill", "output_history", "skip_certain", "cuda_graphs"):
            need(isinstance(getattr(self, name), bool), name, "True or False")
        need(self.schedule in SCHEDULES, "schedule", f"one of {sorted(SCHEDULES)}")
        need(not math.isnan(self.entropy_threshold), "entropy_threshold", "a number of nats")
        need(0 < self.joint_threshold <= 1, "joint_threshold", "a number in (0, 1]")
        need(0 <= self.confidence_threshold <= 1, "confidence_threshold", "0 to 1")
        need(
            self.temperature == 0 or 1e-6 <= self.temperature < math.inf,
            "temperature",
            "0 (arg-max) or a positive number",
        )
        need(0 < self.top_p <= 1, "top_p", "a number in (0, 1]; 1 is off")
        need(
            1e-6 <= self.conditioning_temperature < math.inf,
            "conditioning_temperature",
            "a positive number",
        )
        for name in ("refresh_interval", "window_blocks"):
            value = getattr(self, name)
            need(value is None or (_is_int(value) and value >= 1), name, "None, or 1 and more")
        need(self.dlm_cache in ("none", "prefix", "dual"), "dlm_cache", "none, prefix or dual")
        need(self.confidence_source in ("raw", "sampled"), "confidence_source", "raw or sampled")
        if self.conditioning is not None:
            parse_conditioning(self.conditioning)
        need(
            self.tokens_per_step <= self.max_new_tokens or self.max_new_tokens == 0,
            "tokens_per_step",
            f"at most max_new_tokens={self.max_new_tokens}",
        )

    def _ids(self, name: str) -> tuple[Any, ...]:
        value = getattr(self, name)
        return value if isinstance(value, tuple) else () if value is None else (value,)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """``eos_token_id`` as a tuple, empty where it is the model's."""
        return self._ids("eos_token_id")

    def updated(self, **changes: Any) -> GenerationConfig:
        """A copy with every change that is not None applied; unknown names are an error."""
        known = {f.name for f in dataclasses.fields(self)}
        unknown = sorted(set(changes) - known)
        if unknown:
            raise ValueError(f"unknown generation option {unknown}; known are {sorted(known)}")
        return dataclasses.replace(self, **{k: v for k, v in changes.items() if v is not None})

    def for_call(self, **options: Any) -> GenerationConfig:
        """:meth:`updated`, where an option that the schedule never reads is an error too."""
        from codila.schedules import SCHEDULES

        config = self.updated(**options)
        idle = [n for n in ("refresh_interval", "window_blocks") if options.get(n) is not None]
        if idle and config.dlm_cache == "none":
            raise ValueError(f"{idle} are read by dlm_cache='prefix' and 'dual' only")
        for name, value in options.items():
            readers = sorted(s for s, schedule in SCHEDULES.items() if name in schedule.reads)
            if value is not None and readers and config.schedule not in readers:
                raise ValueError(
                    f"{name}={value!r} is not read by schedule={config.schedule!r}; it belongs to "
                    f"{readers}"
                )
        return config

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON has them: an infinite threshold is the string "inf" or "-inf"."""
        values = dataclasses.asdict(self)
        if math.isinf(self.entropy_threshold):
            values["entropy_threshold"] = str(self.entropy_threshold)
        return values

    def save_pretrained(self, folder: str | os.PathLike[str]) -> None:
        """Write ``codila_generation_config.json`` into ``folder``, atomically."""
        path = Path(folder) / CONFIG_NAME
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_name(path.name + ".tmp")
        scratch.write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")
        os.replace(scratch, path)

    @classmethod
    def from_pretrained(cls, folder: str | os.PathLike[str]) -> GenerationConfig:
        """Read what :meth:`save_pretrained` wrote; a key that is no field is an error."""
        path = Path(folder) / CONFIG_NAME
        if not path.is_file():
            raise ValueError(f"{folder} has no {CONFIG_NAME}")
        values = json.loads(path.read_text(encoding="utf-8"))
        if values.get("entropy_threshold") in ("inf", "-inf"):
            values["entropy_threshold"] = float(values["entropy_threshold"])
        return cls().updated(**values)


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
