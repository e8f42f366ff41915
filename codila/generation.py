"""The loop: DLM forward -> statistics -> choice -> AR blocks and DLM slots -> commit."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.utils import ModelOutput

from codila.block_decoder import BlockDecoder
from codila.canvas import Candidates, Canvas
from codila.conditioning import VocabularyBridge, parse_conditioning, soft_tokens
from codila.config import GenerationConfig
from codila.models.protocol import DiffusionLM
from codila.schedules import SCHEDULES, Statistics
from codila.schedules.sampled import sampled_statistics
from codila_kernels import VocabStats, head_stats, sample_tokens, vocab_stats


@dataclasses.dataclass
class GenerationOutput(ModelOutput):
    """What :func:`generate` returns.

    Attributes:
        sequences: ``[N, P + max_new_tokens]`` left-padded prompts and what was generated.
        num_function_evaluations: ``[N]`` DLM forwards that each row took part in unfinished.
        tokens_per_forward: ``[N]`` tokens up to and with EOS, per forward.
        tokens_per_forward_canvas: ``[N]`` canvas positions per forward.
        step_of: ``[N, max_new_tokens]`` step at which each position was committed.
        history: the sequences after every step, if ``output_history``.
    """

    sequences: Tensor | None = None
    num_function_evaluations: Tensor | None = None
    tokens_per_forward: Tensor | None = None
    tokens_per_forward_canvas: Tensor | None = None
    step_of: Tensor | None = None
    history: list[Tensor] | None = None


@torch.no_grad()
def generate(
    model: DiffusionLM,
    input_ids: Tensor,
    *,
    ar_model: Any = None,
    generation_config: GenerationConfig | None = None,
    attention_mask: Tensor | None = None,
    diffusion_streamer: Any = None,
    logits_processor: Any = None,
    seed: Any = None,
    **options: Any,
) -> GenerationOutput:
    """Decode with CoDiLA, or with a baseline schedule where there is no AR model.

    Args:
        model: a DLM (:mod:`codila.models`).
        input_ids: ``[N, P]`` int64 prompts, padded on either side where ``attention_mask`` is 0.
        ar_model: an AR model loaded by :func:`codila.load` for this DLM.
        generation_config: defaults for ``options``, which are its fields by name.
        attention_mask: ``[N, P]``.
        diffusion_streamer: gets ``put(prompt)``, ``put_draft(tokens, masked=...)`` after every
            step, ``put(tokens)`` and ``end()``; batch 1. transformers' ``TextDiffusionStreamer``
            is one.
        logits_processor: callable ``(sequence ids [R, L], logits [R, Vd]) -> logits`` on the
            candidate rows.
        seed: row r draws from ``seed + r``; or one seed per row; None draws one.

    Returns:
        :class:`GenerationOutput`.

    Raises:
        TypeError: ids, masks or seeds of the wrong type.
        ValueError: unknown option, an option that the schedule does not read, empty prompt, a
            prompt token outside the vocabulary, prompt and canvas over the context limit, a block
            size that the AR model was not trained for, a schedule that needs an AR model without
            one.
        FloatingPointError: a step met a distribution that is NaN or has no token left.
    """
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
        eos_token_id=model.eos_token_id,
    )
    _check_fits(model, input_ids, canvas)
    seeds = _row_seeds(seed, input_ids.shape[0], canvas.ids.device)
    step = _Step(model, decoder, config, logits_processor)
    whole, rows = canvas, torch.arange(input_ids.shape[0], device=canvas.ids.device)
    forwards = torch.zeros_like(rows)
    history: list[Tensor] | None = [] if config.output_history else None
    if diffusion_streamer is not None:
        if input_ids.shape[0] != 1:
            raise ValueError(f"a streamer follows one row, the batch has {input_ids.shape[0]}")
        diffusion_streamer.put(input_ids.cpu())
    # Every step commits at least one position of every unfinished row, so this always ends.
    for index in range(canvas.length):
        draft = step(canvas, seeds[rows], index)
        forwards[rows] += 1
        if canvas is not whole:
            whole.ids[rows], whole.step_of[rows] = canvas.ids, canvas.step_of
        if history is not None:
            history.append(whole.ids[:, : whole.prompt_length + whole.length].clone())
        if diffusion_streamer is not None:
            masked = canvas.masked[0, : canvas.length].cpu()
            diffusion_streamer.put_draft(draft[0, : canvas.length].cpu(), masked=masked)
        unfinished = canvas.unfinished
        all_unfinished, broken = torch.stack([unfinished.all(), (canvas.tokens < 0).any()]).tolist()
        if broken:
            _raise_broken(canvas, rows, index)
        if not all_unfinished:
            rows = rows[unfinished]
            if rows.numel() == 0:
                break
            canvas = canvas.select(unfinished.nonzero().flatten())
    else:
        raise AssertionError(f"rows {rows.tolist()} are not decoded after {canvas.length} steps")
    if diffusion_streamer is not None:
        diffusion_streamer.put(whole.tokens[0, : whole.length].cpu())
        diffusion_streamer.end()
    return _output(whole, forwards, history)


class _Step:
    """One step on a canvas: everything that does not change between steps is kept here."""

    def __init__(
        self,
        model: DiffusionLM,
        decoder: BlockDecoder | None,
        config: GenerationConfig,
        logits_processor: Any,
    ) -> None:
        self.model, self.decoder, self.config = model, decoder, config
        self.logits_processor = logits_processor
        self.choose = SCHEDULES[config.schedule].choose
        self.bridge = decoder.bridge if decoder else _own_vocabulary(model)
        self.vocabulary: dict[str, Any] = {
            "valid_vocab": self.bridge.valid_vocab,
            "banned_ids": self.bridge.banned_ids,
        }
        self.sampling: dict[str, Any] = {
            "temperature": config.temperature,
            "top_p": config.top_p,
            "top_k": config.top_k,
        }
        unwritten = {*self.bridge.banned_ids, *self.bridge.suppressed_ids}
        self.written_vocabulary: dict[str, Any] = {
            "banned_ids": tuple(sorted(i for i in unwritten if i < self.bridge.valid_vocab))
        }

    def __call__(self, canvas: Canvas, seeds: Tensor, index: int) -> Tensor:
        """Commit; returns the canvas tokens with top-1 drafts at masked candidates ``[N, n]``."""
        candidates = canvas.candidates(self.config.scope_blocks)
        stats, logits = self._head(canvas, candidates)
        shape = candidates.position.shape
        if self.config.confidence_source == "sampled":
            view = self._sampled_view(canvas, candidates, logits, seeds, index)
        else:
            view = Statistics(
                stats.entropy.view(shape),
                stats.top1_prob.view(shape),
                stats.margin.view(shape),
                candidates.wanted,
            )
        choice = self.choose(view, self.config)
        block, length, slots = choice
        if block.shape[1]:
            single = _first_masked(candidates, block)
            slots = torch.cat([slots, torch.where(length == 1, single, -1)], dim=1)
        if slots.shape[1]:
            self._commit_slots(canvas, candidates, logits, slots, seeds, index)
        if block.shape[1]:
            self._commit_blocks(
                canvas, candidates, stats, logits, block, length * (length > 1), seeds, index
            )
        if self.config.eos_fill:
            canvas.fill_after_eos(index)
        drafts = torch.where(candidates.masked, stats.top1_id.view(shape), candidates.ids)
        position = torch.where(candidates.masked, candidates.position, canvas.step_of.shape[1])
        tokens = torch.cat([canvas.tokens, canvas.tokens[:, :1]], dim=1)
        draft = tokens.scatter(1, position.flatten(1), drafts.flatten(1))[:, :-1]
        return torch.where(canvas.masked, draft, canvas.tokens)

    def _head(self, canvas: Canvas, candidates: Candidates) -> tuple[VocabStats, Tensor]:
        """Statistics and logits of the candidate rows, ``R = N * C * B``."""
        hidden = self.model.body(canvas.ids, canvas.attention_mask)
        row = candidates.position.flatten(1) + canvas.prompt_length - self.model.shift
        picked = hidden.gather(1, row[..., None].expand(-1, -1, hidden.shape[-1])).flatten(0, 1)
        head = self.model.lm_head
        stats, logits = head_stats(picked, head.weight, head.bias, **self.vocabulary)
        if self.logits_processor is not None:
            context = canvas.ids.repeat_interleave(row.shape[1], dim=0)
            logits = self.logits_processor(context, logits)
            stats = vocab_stats(logits, **self.vocabulary)
        return stats, logits

    def _sampled_view(
        self, canvas: Canvas, candidates: Candidates, logits: Tensor, seeds: Tensor, index: int
    ) -> Statistics:
        shape = candidates.position.shape
        entropy, confidence, margin = sampled_statistics(logits, **self.sampling, **self.vocabulary)
        if self.config.temperature:  # the probability of the token drawn, not of the top one
            position = candidates.position.flatten(1)
            _, confidence = self._draw(canvas, position, logits, seeds, index)
        return Statistics(
            entropy.view(shape), confidence.view(shape), margin.view(shape), candidates.wanted
        )

    def _draw(
        self, canvas: Canvas, position: Tensor, logits: Tensor, seeds: Tensor, index: int
    ) -> tuple[Tensor, Tensor]:
        """Sample from DLM rows at canvas positions ``[N, S]``; ``logits`` are ``[N * S, Vd]``."""
        counters = _counters(canvas, position, index).flatten(0, 1)
        row_seeds = seeds[:, None].expand(position.shape).flatten()
        return sample_tokens(logits, row_seeds, counters, **self.sampling, **self.vocabulary)

    def _commit_slots(
        self,
        canvas: Canvas,
        candidates: Candidates,
        logits: Tensor,
        slots: Tensor,
        seeds: Tensor,
        index: int,
    ) -> None:
        """Fill single positions from the DLM's own distribution."""
        position = candidates.position.flatten(1).gather(1, slots.clamp_min(0))
        per_row = candidates.position[0].numel()
        offset = torch.arange(slots.shape[0], device=slots.device)[:, None] * per_row
        row = (slots.clamp_min(0) + offset).flatten()
        ids, _ = self._draw(canvas, position, logits.index_select(0, row), seeds, index)
        canvas.commit(position, ids.view_as(slots), slots >= 0, index)

    def _commit_blocks(
        self,
        canvas: Canvas,
        candidates: Candidates,
        stats: VocabStats,
        logits: Tensor,
        block: Tensor,
        length: Tensor,
        seeds: Tensor,
        index: int,
    ) -> None:
        """Let the AR model write the first ``length`` masked positions of the chosen blocks."""
        conditioning = self.config.conditioning
        assert self.decoder is not None and conditioning is not None
        n, c, b = candidates.position.shape
        m = block.shape[1]
        # On the host a look costs nothing, so blocks that were not chosen are left out; elsewhere
        # the shape stays fixed and what they would write is dropped by commit.
        on_host = block.device.type == "cpu"
        chosen = (length.flatten() > 0) if on_host else torch.ones_like(length.flatten()) > 0
        if on_host and not bool(chosen.any()):
            return
        picked = chosen.nonzero().flatten() if on_host else torch.arange(n * m, device=block.device)
        row = picked // m
        cell = row * c + block.flatten()[picked].clamp_min(0)
        length = length.flatten()[picked]
        position = candidates.position.reshape(n * c, b)[cell]
        masked = candidates.masked.reshape(n * c, b)[cell]
        ids = candidates.ids.reshape(n * c, b)[cell]
        wanted = candidates.wanted.reshape(n * c, b)[cell]
        write = wanted & (wanted.cumsum(-1) <= length[:, None])
        soft = soft_tokens(
            logits,
            self.decoder.table,
            self.bridge,
            rows=(cell[:, None] * b + torch.arange(b, device=cell.device)).flatten(),
            stats=stats,
            top_k=parse_conditioning(conditioning),
            temperature=self.config.conditioning_temperature,
            known_ids=ids.flatten(),
            known=~masked.flatten(),
        ).view(ids.shape[0], b, -1)
        counters = _counters(canvas, position, index, row)

        def draw(j: int, rows: Tensor) -> Tensor:
            return sample_tokens(
                rows, seeds[row], counters[:, j], **self.sampling, **self.written_vocabulary
            )[0]

        last = torch.where(write, torch.arange(1, b + 1, device=write.device), 0).amax(-1)
        steps = int(last.max()) if on_host else b
        written = self.decoder.decode(soft, ids, ~masked, draw, steps=steps)
        # Back to one line per row, m blocks side by side.
        shape = (n * m, b)
        lines = position.new_zeros(shape).index_copy(0, picked, position).view(n, m * b)
        tokens = ids.new_zeros(shape).index_copy(0, picked, written).view(n, m * b)
        flags = write.new_zeros(shape).index_copy(0, picked, write).view(n, m * b)
        canvas.commit(lines, tokens, flags, index)


def _first_masked(candidates: Candidates, block: Tensor) -> Tensor:
    """Flat ``C * B`` index of the first masked position of each block ``[N, m]``."""
    b = candidates.wanted.shape[2]
    first = candidates.wanted.to(torch.uint8).argmax(-1).gather(1, block.clamp_min(0))
    return block.clamp_min(0) * b + first


def _counters(canvas: Canvas, position: Tensor, step: int, row: Tensor | None = None) -> Tensor:
    """``[.., 2]`` int32: position from the row's first real token, and step."""
    padding = canvas.padding if row is None else canvas.padding[row]
    from_start = position + canvas.prompt_length - padding[:, None]
    return torch.stack([from_start, torch.full_like(from_start, step)], dim=-1).to(torch.int32)


def _row_seeds(seed: Any, rows: int, device: torch.device) -> Tensor:
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


def _check_fits(model: DiffusionLM, input_ids: Tensor, canvas: Canvas) -> None:
    """Prompt ids within the vocabulary, prompt and canvas within the context."""
    low, high = torch.stack([input_ids.min(), input_ids.max()]).tolist()
    if low < 0 or high >= model.config.vocab_size:
        raise ValueError(
            f"input_ids hold {low if low < 0 else high}, outside the model's "
            f"{model.config.vocab_size} tokens"
        )
    longest = canvas.prompt_length - int(canvas.padding.min())
    positions = canvas.step_of.shape[1]
    if longest + positions > model.max_length:
        raise ValueError(
            f"a prompt of {longest} tokens and a canvas of {positions} exceed the model's limit "
            f"of {model.max_length} tokens: shorten the prompt or lower max_new_tokens"
        )


def _raise_broken(canvas: Canvas, rows: Tensor, index: int) -> None:
    line, position = (canvas.tokens < 0).nonzero()[0].tolist()
    raise FloatingPointError(
        f"step {index}: no token can be drawn for row {int(rows[line])}, canvas position "
        f"{position}: the logits are NaN, or a processor left none above -inf"
    )


def _own_vocabulary(model: DiffusionLM) -> VocabularyBridge:
    return VocabularyBridge(model.config.vocab_size, banned_ids=(model.mask_token_id,))


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
    return BlockDecoder(ar_model, metadata.bridge, metadata.boundaries)


def _output(canvas: Canvas, forwards: Tensor, history: list[Tensor] | None) -> GenerationOutput:
    tokens = canvas.tokens[:, : canvas.length]
    is_eos = tokens == canvas.eos_token_id
    first = torch.where(is_eos.any(-1), is_eos.to(torch.uint8).argmax(-1) + 1, canvas.length)
    return GenerationOutput(
        sequences=canvas.ids[:, : canvas.prompt_length + canvas.length],
        num_function_evaluations=forwards,
        tokens_per_forward=first / forwards,
        tokens_per_forward_canvas=canvas.length / forwards,
        step_of=canvas.step_of[:, : canvas.length],
        history=history,
    )
