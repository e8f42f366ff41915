"""`generate`: one loop of steps for CoDiLA and for the baselines."""

from __future__ import annotations

import dataclasses
import inspect
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig as TransformersConfig
from transformers.utils import ModelOutput

from codila.block_decoder import BlockDecoder
from codila.canvas import Canvas
from codila.config import GenerationConfig
from codila.followers import Stopper, Stream
from codila.integrations import custom_generate
from codila.lengths import resize
from codila.models.protocol import DiffusionLM
from codila.replay import Recorder, cuda_graph
from codila.schedules import SCHEDULES
from codila.step import Ban, Step

LOOK_EVERY = 4
"""Steps between two looks at a device that the host would have to wait for."""


@dataclasses.dataclass
class GenerationOutput(ModelOutput):
    """What :func:`generate` returns.

    Attributes:
        sequences: ``[N, P + max_new_tokens]`` left-padded prompts and what was generated.
        num_function_evaluations: ``[N]`` DLM forwards that each row took part in unfinished.
        tokens_per_forward: ``[N]`` tokens up to and with EOS, per forward.
        tokens_per_forward_canvas: ``[N]`` canvas positions per forward.
        step_of: ``[N, n]`` step at which each position was committed, -1 where it was given; of
            the canvas: the ``n = max_new_tokens`` columns behind the prompt, or, where a prompt has
            masks, those from the first masked one on.
        lengths: ``[N]`` how many of the n positions each row has; they differ where tokens expand
            or delete, and the shorter rows are then padded on the right.
        history: the sequences after every step, if ``output_history``.
    """

    sequences: Tensor | None = None
    num_function_evaluations: Tensor | None = None
    tokens_per_forward: Tensor | None = None
    tokens_per_forward_canvas: Tensor | None = None
    step_of: Tensor | None = None
    lengths: Tensor | None = None
    history: list[Tensor] | None = None


@torch.no_grad()
def generate(
    model: DiffusionLM,
    input_ids: Tensor,
    *,
    ar_model: Any = None,
    generation_config: Any = None,
    streamer: Any = None,
    diffusion_streamer: Any = None,
    logits_processor: Any = None,
    stopping_criteria: Any = None,
    seed: Any = None,
    **options: Any,
) -> GenerationOutput:
    """Decode with CoDiLA, or with a baseline schedule where there is no AR model.

    Also a ``custom_generate`` of transformers: ``model.generate(ids, custom_generate=generate,
    ar_model=..., ...)``.

    Args:
        model: a DLM (:mod:`codila.models`).
        input_ids: ``[N, P]`` int64 prompts, padded on either side where ``attention_mask`` is 0.
            Mask tokens in them are decoded in place; ``max_new_tokens=0`` adds none behind them.
        ar_model: an AR model loaded by :func:`codila.load` for this DLM.
        generation_config: defaults for ``options``: a :class:`codila.GenerationConfig`, or
            transformers' (of which sampling, lengths, end and suppressed tokens are read).
        streamer: one with ``put_draft(tokens, masked=...)`` (transformers' TextDiffusionStreamer)
            is shown the canvas after every step; any other (TextStreamer) gets the tokens from the
            left as they become known; batch 1.
        diffusion_streamer: the same; transformers' ``generate`` hands over no ``streamer``.
        logits_processor: ``(sequence ids [R, L], logits [R, Vd]) -> logits`` on the candidate rows
            of the DLM; one or a list.
        stopping_criteria: ``(ids [1, l], None) -> bool``; one or a list. Each is asked for every
            length of a row's known prefix; where one holds, the rest of the row is end tokens.
        seed: row r draws from ``seed + r``; or one seed per row; None draws one.
        options: the fields of :class:`codila.GenerationConfig` by name, and ``attention_mask``
            ``[N, P]``.

    Returns:
        :class:`GenerationOutput`.

    Raises:
        TypeError: ids, masks or seeds of the wrong type.
        ValueError: unknown option, an option that the schedule does not read, empty prompt, a
            prompt token outside the vocabulary, nothing to decode, prompt and canvas over the
            context limit, a block size that the AR model was not trained for, a schedule that
            needs an AR model without one.
        FloatingPointError: a step met a distribution that is NaN or has no token left.
    """
    attention_mask = options.pop("attention_mask", None)
    options = {k: v for k, v in options.items() if k not in custom_generate.IGNORED}
    if isinstance(generation_config, TransformersConfig):
        theirs, generation_config = generation_config, None
        logits_processor = custom_generate.asked_processors(logits_processor, theirs)
        stopping_criteria = custom_generate.asked_criteria(stopping_criteria, theirs)
        named = {k: v for k, v in options.items() if v is not None}
        options = custom_generate.options_of(theirs, input_ids.shape[-1]) | named
    config = (generation_config or GenerationConfig()).for_call(**options)
    decoder = _block_decoder(model, ar_model, config)
    if config.conditioning is None:
        trained = "soft" if ar_model is None else ar_model.codila.conditioning
        config = config.updated(conditioning=trained)
    canvas = Canvas.start(
        input_ids,
        attention_mask,
        length=config.max_new_tokens,
        block_size=config.block_size,
        mask_token_id=model.mask_token_id,
        eos_token_ids=config.eos_token_ids or tuple(model.eos_token_ids),
    )
    _check_fits(model, input_ids, canvas, config)
    if config.dlm_cache != "none" and model.lm_head is None:
        raise ValueError(
            f"dlm_cache={config.dlm_cache!r} needs a model of codila's, of this one only logits "
            "are known"
        )
    if config.num_return_sequences > 1:
        row = torch.arange(canvas.ids.shape[0], device=canvas.ids.device)
        canvas = canvas.select(row.repeat_interleave(config.num_return_sequences))
    expand = _expand_token_id(model, config)
    banned = set(config.suppress_tokens or ())
    if expand is not None and not config.expand_budget:
        banned.add(expand)
    step = Step(
        model,
        decoder,
        config,
        _chain(logits_processor),
        tuple(sorted(banned)),
        looks=_in_host_memory(canvas.ids),
        recorder=_recorder(canvas.ids.device) if config.cuda_graphs else None,
    )
    stopper = Stopper(stopping_criteria, canvas) if stopping_criteria else None
    streams = [Stream(s, canvas) for s in (streamer, diffusion_streamer) if s is not None]
    seeds = row_seeds(seed, canvas.ids.shape[0], canvas.ids.device)
    return _Loop(step, config, canvas, seeds, expand).run(stopper, streams)


def _named_options() -> inspect.Signature:
    """The signature of `generate` with the options spelled out.

    transformers hands a ``custom_generate`` callable only what its signature names. What its own
    config holds as well is left out, and so comes that way, checked and prepared by transformers.
    """
    whole = inspect.signature(generate)
    *named, rest = whole.parameters.values()
    options = [
        inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=None)
        for f in dataclasses.fields(GenerationConfig)
        if f.name not in custom_generate.LEFT_TO_TRANSFORMERS
    ]
    return whole.replace(parameters=[*named, *options, rest])


generate.__signature__ = _named_options()  # type: ignore[attr-defined]


class _Loop:
    """Steps until every row is done; what changes from step to step is kept here."""

    def __init__(
        self,
        step: Step,
        config: GenerationConfig,
        canvas: Canvas,
        seeds: Tensor,
        expand_token_id: int | None,
    ) -> None:
        self.step, self.config, self.seeds = step, config, seeds
        self.whole = self.canvas = canvas  # all rows, and those that are still decoded
        self.rows = torch.arange(canvas.ids.shape[0], device=canvas.ids.device)
        self.forwards = torch.zeros_like(self.rows)
        self.history: list[Tensor] | None = [] if config.output_history else None
        self.expand = 0 if expand_token_id is None else expand_token_id
        self.room: Tensor | None = None  # positions that each row may still grow by
        if config.expand_budget is not None:
            self.room = torch.full_like(self.rows, config.expand_budget)

    def run(self, stopper: Stopper | None, streams: list[Stream]) -> GenerationOutput:
        # Every step commits at least one position of every unfinished row, so this always ends.
        most = self.canvas.length + 2 * (self.config.expand_budget or 0)
        follows = bool(streams) or stopper is not None or self.room is not None
        every = 1 if follows or self.step.looks else LOOK_EVERY
        unfinished = self.canvas.unfinished
        for index in range(most):
            seeds, bans = self.seeds[self.rows], self._bans()
            draft = self.step(self.canvas, seeds, index, bans, drafted=bool(streams))
            self.forwards[self.rows] += unfinished
            canvas, end = self.canvas, self.canvas.eos_token_ids[0]
            if self.room is not None:
                self.room = resize(canvas, self.room, index, expand=self.expand, delete=end)
            if stopper is not None:
                stopper(canvas, self.rows.tolist(), index)
            if canvas is not self.whole:
                self.whole.ids[self.rows], self.whole.step_of[self.rows] = (
                    canvas.ids,
                    canvas.step_of,
                )
            if self.history is not None:
                self.history.append(self.whole.seen_ids.clone())
            for stream in streams:
                stream.step(self.whole, draft)
            if (index + 1) % every == 0 or index + 1 == most:
                if not self._look(index):
                    break
            unfinished = self.canvas.unfinished
        else:
            raise AssertionError(f"rows {self.rows.tolist()} are not decoded after {most} steps")
        for stream in streams:
            stream.end(self.whole)
        return _output(self.whole, self.forwards, self.history)

    def _look(self, index: int) -> bool:
        """Whether anything is left to decode; rows that are done leave the batch."""
        unfinished = self.canvas.unfinished
        state = torch.stack([unfinished.sum(), (self.canvas.tokens < 0).any()])
        count, broken = state.tolist()
        if broken:
            _raise_broken(self.canvas, self.rows, index)
        if not count or self.room is not None:
            return bool(count)
        if not self.step.looks:  # where shapes are recorded, few of them: powers of two
            count = 1 << (count - 1).bit_length()
        if count < len(self.rows):
            left = unfinished.to(torch.uint8).argsort(descending=True, stable=True)[:count]
            left = left.sort().values
            self.rows, self.canvas = self.rows[left], self.canvas.select(left)
            if self.step.cached is not None:
                self.step.cached.select(left)
        return True

    def _bans(self) -> list[Ban]:
        canvas, bans = self.canvas, []
        if self.config.min_new_tokens:
            at = torch.arange(canvas.step_of.shape[1], device=canvas.ids.device)
            early = (at < self.config.min_new_tokens).expand(canvas.ids.shape[0], -1)
            bans.append((canvas.eos_token_ids, early))
        if self.room is not None:
            full = (self.room < 1)[:, None].expand(-1, canvas.step_of.shape[1])
            bans.append(((self.expand,), full))
        return bans


def _in_host_memory(tensor: Tensor) -> bool:
    """Whether the host may look at it without waiting for a device."""
    return tensor.device.type == "cpu"


def _recorder(device: torch.device) -> Recorder:
    if device.type != "cuda":
        raise ValueError(f"cuda_graphs=True: the models are on {str(device)!r}")
    return cuda_graph


def row_seeds(seed: Any, rows: int, device: torch.device) -> Tensor:
    """``[rows]`` int64: from None, an int, or one int per row (a sequence, array or tensor)."""
    if seed is None:
        seed = int(torch.randint(2**62, ()))
    values = seed.tolist() if hasattr(seed, "tolist") else seed
    each = list(values) if isinstance(values, Sequence) else None
    given = [values] if each is None else each
    if any(isinstance(s, bool) or not hasattr(s, "__index__") for s in given):
        raise TypeError(f"seed={seed!r}: expected an int, or one int per row")
    if each is None:
        first = operator.index(values)
        each = [first + r for r in range(rows)]
    if len(each) != rows:
        raise ValueError(f"{len(each)} seeds for {rows} rows: give one int, or one per row")
    if any(not -(2**63) <= s < 2**63 for s in each):
        raise ValueError(f"seed={seed!r}: the seeds of {rows} rows must fit into 64 bits")
    return torch.tensor(each, dtype=torch.int64, device=device)


def _check_fits(
    model: DiffusionLM, input_ids: Tensor, canvas: Canvas, config: GenerationConfig
) -> None:
    """Prompt ids within the vocabulary, prompt and canvas within the context."""
    low, high = torch.stack([input_ids.min(), input_ids.max()]).tolist()
    if low < 0 or high >= model.config.vocab_size:
        raise ValueError(
            f"input_ids hold {low if low < 0 else high}, outside the model's "
            f"{model.config.vocab_size} tokens"
        )
    beyond = [
        i
        for i in (*canvas.eos_token_ids, *(config.suppress_tokens or ()))
        if i >= model.config.vocab_size
    ]
    if beyond:
        raise ValueError(
            f"eos_token_id and suppress_tokens hold {beyond}, outside the model's "
            f"{model.config.vocab_size} tokens"
        )
    new = config.max_new_tokens + (config.expand_budget or 0)
    longest = input_ids.shape[1] - int(canvas.padding.min())
    if longest + new > model.max_length:
        raise ValueError(
            f"a prompt of {longest} tokens and {new} more exceed the model's limit of "
            f"{model.max_length} tokens: shorten the prompt or lower max_new_tokens"
        )
    if config.min_new_tokens and canvas.prompt_length != input_ids.shape[1]:
        raise ValueError(
            f"min_new_tokens={config.min_new_tokens} counts tokens behind the prompt, and a prompt "
            "has masks of its own: use suppress_tokens"
        )


def _expand_token_id(model: DiffusionLM, config: GenerationConfig) -> int | None:
    own = getattr(model.config, "expand_token_id", None)
    expand = own if config.expand_token_id is None else config.expand_token_id
    if config.expand_budget is not None and expand is None:
        raise ValueError(
            f"expand_budget={config.expand_budget}: the model's config names no expand_token_id; "
            "give expand_token_id="
        )
    return expand


def _chain(processors: Any) -> Any:
    """One processor of one or several; None of none."""
    if callable(processors) and not isinstance(processors, list):
        return processors
    chain = list(processors or ())

    def process(ids: Tensor, logits: Tensor) -> Tensor:
        for processor in chain:
            logits = processor(ids, logits)
        return logits

    return process if chain else None


def _raise_broken(canvas: Canvas, rows: Tensor, index: int) -> None:
    line, position = (canvas.tokens < 0).nonzero()[0].tolist()
    raise FloatingPointError(
        f"by step {index} no token can be drawn for row {int(rows[line])}, canvas position "
        f"{position}: the logits are NaN, or a processor left none above -inf"
    )


def _block_decoder(
    model: DiffusionLM, ar_model: Any, config: GenerationConfig
) -> BlockDecoder | None:
    if ar_model is None:
        if SCHEDULES[config.schedule].uses_ar:
            baselines = sorted(name for name, s in SCHEDULES.items() if not s.uses_ar)
            raise ValueError(
                f"schedule={config.schedule!r} needs ar_model=; without one choose of {baselines}"
            )
        return None
    metadata = getattr(ar_model, "codila", None)
    if metadata is None:
        raise ValueError(
            "ar_model carries no codila.json: load it with codila.load or load_ar, from a folder "
            "that `codila train ar` wrote"
        )
    metadata.check_dlm(model)
    if SCHEDULES[config.schedule].uses_ar and config.block_size not in metadata.block_sizes:
        raise ValueError(
            f"block_size={config.block_size}: the AR model was trained for "
            f"{sorted(metadata.block_sizes)}"
        )
    return BlockDecoder(ar_model, metadata.bridge, metadata.boundaries, metadata.window)


def _output(canvas: Canvas, forwards: Tensor, history: list[Tensor] | None) -> GenerationOutput:
    committed = canvas.step_of[:, : canvas.length] >= 0
    is_end = canvas.is_eos()[:, : canvas.length] & committed
    before = is_end.cumsum(-1) - is_end.long() == 0  # up to and with the first end
    known = canvas.attention_mask
    lengths = torch.full_like(forwards, canvas.length)
    if known is not None:
        at = torch.arange(1, canvas.length + 1, device=forwards.device)
        lengths = (known[:, canvas.prompt_length :] * at).amax(-1)
    return GenerationOutput(
        sequences=canvas.seen_ids,
        num_function_evaluations=forwards,
        tokens_per_forward=(committed & before).sum(-1) / forwards,
        tokens_per_forward_canvas=committed.sum(-1) / forwards,
        step_of=canvas.step_of[:, : canvas.length],
        lengths=lengths,
        history=history,
    )
