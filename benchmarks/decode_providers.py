"""What `benchmarks.decode` compares: our modes, a naive CoDiLA loop, and the published Dream loop.

Each provider decodes one prompt for a number of steps and says what it committed. The naive loop is
CoDiLA as it is first written: logits of the whole canvas in float32, their softmax, entropy and
expected embeddings each on its own, the AR model step by step over a growing sequence's cache.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from transformers import DynamicCache

from codila import generate, step
from codila.block_decoder import BlockDecoder
from codila.integrations import dream_sampler


class Enough(Exception):
    """Raised to end a decoding after the wanted number of steps."""


class Stopwatch:
    """Seconds per part of a step; a part that runs inside another one counts for itself alone."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}
        self._inner = [0.0]

    def now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        begin = self.now()
        self._inner.append(0.0)
        try:
            yield
        finally:
            whole = self.now() - begin
            self.seconds[name] = self.seconds.get(name, 0.0) + whole - self._inner.pop()
            self._inner[-1] += whole

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return function(*args, **kwargs)

        return call


@dataclasses.dataclass
class Run:
    """One decoding: the canvas after it, DLM forwards, and seconds in all and per part."""

    tokens: list[int]
    forwards: int
    seconds: float
    parts: dict[str, float]


@dataclasses.dataclass
class Setting:
    """What is decoded, and how: `steps` None is to the end."""

    dlm: Any
    ar: Any
    prompt: Tensor
    canvas: int
    block_size: int
    steps: int | None = None
    scope_blocks: int = 10
    temperature: float = 0.0
    eos_fill: bool = False
    seed: int = 0
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


def ours(setting: Setting, parts: bool = True, **options: Any) -> Run:
    """`codila.generate`; without `schedule` static blocks.

    Timing the ``parts`` waits for the device at each of them; without, the host runs ahead of it.
    """
    watch, seen = Stopwatch(setting.dlm.device), SimpleNamespace(count=0, canvas=None)
    run_step = step.Step.__call__

    def counted(self: step.Step, canvas: Any, *rest: Any, **named: Any) -> Tensor:
        out = run_step(self, canvas, *rest, **named)
        seen.count, seen.canvas = seen.count + 1, canvas
        if seen.count == setting.steps:
            raise Enough
        return out

    given = {"schedule": "static", "block_size": setting.block_size} | setting.options | options
    ar = setting.ar if given["schedule"] in ("static", "dynamic", "ar_likelihood") else None
    with contextlib.ExitStack() as stack:
        for place, name, part in (
            (setting.dlm, "body", "body"),
            (step, "head_stats", "head"),
            (step, "vocab_stats", "head"),
            (step, "soft_tokens", "head"),
            (step, "sample_tokens", "choice"),
            (BlockDecoder, "decode", "ar"),
        ) * parts:
            wrapped = watch.timed(part, getattr(place, name))
            stack.enter_context(mock.patch.object(place, name, wrapped))
        stack.enter_context(mock.patch.object(step.Step, "__call__", counted))
        begin = watch.now()
        with contextlib.suppress(Enough):
            generate(
                setting.dlm,
                setting.prompt,
                ar_model=ar,
                max_new_tokens=setting.canvas,
                scope_blocks=setting.scope_blocks,
                temperature=setting.temperature,
                eos_fill=setting.eos_fill,
                seed=setting.seed,
                **given,
            )
        seconds = watch.now() - begin
    tokens = seen.canvas.tokens[0, : setting.canvas]
    tokens = torch.where(seen.canvas.masked[0, : setting.canvas], -1, tokens).tolist()
    return Run(tokens, seen.count, seconds, watch.seconds)


@torch.no_grad()
def naive(setting: Setting) -> Run:
    """CoDiLA with one static block a step, arg-max tokens, nothing fused and nothing left out."""
    dlm, ar, size = setting.dlm, setting.ar, setting.block_size
    watch, bridge = Stopwatch(dlm.device), ar.codila.bridge
    mask, eos, width = dlm.mask_token_id, dlm.eos_token_id, bridge.valid_vocab
    decoder = BlockDecoder(ar, bridge, ar.codila.boundaries)
    banned = [i for i in bridge.banned_ids if i < width]
    unwritten = [i for i in {*bridge.banned_ids, *bridge.suppressed_ids} if i < width]
    x = torch.nn.functional.pad(setting.prompt, (0, setting.canvas), value=mask)
    start, blocks, forwards = setting.prompt.shape[1], setting.canvas // size, 0
    begin = watch.now()
    while bool((x == mask).any()) and forwards != setting.steps:
        forwards += 1
        with watch.part("body"):
            hidden = dlm.body(x)
        with watch.part("head"):
            logits = dlm.lm_head(hidden)
            logits = torch.cat([logits[:, :1], logits[:, :-1]], 1) if dlm.shift else logits
            z = logits[0, start:, :width].float()
            z[:, banned] = -torch.inf
            p = z.softmax(-1)
            entropy = -torch.xlogy(p, p).sum(-1)
        with watch.part("choice"):
            masked = (x[0, start:] == mask).view(blocks, size)
            frontier = int(masked.any(-1).int().argmax())
            mean = (entropy.view(blocks, size) * masked).sum(-1) / masked.sum(-1)
            outside = torch.arange(blocks, device=x.device)
            outside = (outside < frontier) | (outside >= frontier + setting.scope_blocks)
            block = int(mean.masked_fill(outside | ~masked.any(-1), torch.inf).argmin())
            where = slice(start + block * size, start + (block + 1) * size)
            known = x[0, where] != mask
        with watch.part("head"):
            table = decoder.table
            soft = p[block * size : (block + 1) * size].to(table.dtype) @ table
            soft = torch.where(known[:, None], table[x[0, where].clamp_max(width - 1)], soft)
        with watch.part("ar"):
            written = _eager_block(ar, decoder, soft, x[0, where], known, unwritten, width)
        x[0, where] = torch.where(known, x[0, where], written)
        if setting.eos_fill:
            tokens = x[0, start:]
            ends = (tokens == eos).nonzero().flatten()
            if len(ends) and not bool((tokens[: ends[0]] == mask).any()):
                tokens[tokens == mask] = eos
    seconds = watch.now() - begin
    tokens = torch.where(x[0, start:] == mask, -1, x[0, start:]).tolist()
    return Run(tokens, forwards, seconds, watch.seconds)


def _eager_block(
    ar: Any,
    decoder: BlockDecoder,
    soft: Tensor,
    ids: Tensor,
    known: Tensor,
    unwritten: list[int],
    width: int,
) -> Tensor:
    """Token by token through the model's own forward, float32 logits of every position."""
    cache, written = DynamicCache(config=ar.config), ids.clone()
    embeds = decoder.layout(soft[None])
    for j in range(len(ids)):
        out = ar(inputs_embeds=embeds, use_cache=True, **{decoder.cache_argument: cache})
        z = out.logits[0, -1].float()[:width]
        z[unwritten] = -torch.inf
        written[j] = torch.where(known[j], ids[j], z.softmax(-1).argmax())
        embeds = decoder.table[written[j]][None, None]
    return written


def dream(setting: Setting) -> Run:
    """Dream's published loop at K = `block_size` tokens a step, with its sorted nucleus."""
    watch, seen = Stopwatch(setting.dlm.device), SimpleNamespace(count=0, x=None)
    start = setting.prompt.shape[1]

    def hook(index: int | None, x: Tensor, logits: Tensor | None) -> Tensor:
        seen.x = x
        if index is not None:
            seen.count = index + 1
            if seen.count == setting.steps:
                raise Enough
        return x

    options = SimpleNamespace(
        steps=setting.canvas // setting.block_size,
        eps=1e-3,
        alg="entropy",
        alg_temp=None,
        temperature=0.1,
        top_p=0.9,
        top_k=None,
        output_history=False,
    )
    torch.manual_seed(setting.seed)
    body = watch.timed("body", setting.dlm.body)
    begin = watch.now()
    with mock.patch.object(setting.dlm, "body", body), contextlib.suppress(Enough):
        with torch.no_grad():
            dream_sampler.published(
                setting.dlm, setting.prompt, None, setting.canvas, options, hook, None
            )
    seconds = watch.now() - begin
    mask = setting.dlm.mask_token_id
    tokens = torch.where(seen.x[0, start:] == mask, -1, seen.x[0, start:]).tolist()
    return Run(tokens, seen.count, seconds, watch.seconds)
