"""One step: DLM forward -> statistics -> choice -> AR blocks and DLM slots -> commit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from codila.block_decoder import BlockDecoder
from codila.bridge import VocabularyBridge
from codila.canvas import Candidates, Canvas
from codila.conditioning import parse_conditioning, soft_tokens, window_columns
from codila.config import GenerationConfig
from codila.dlm_cache import CachedBody
from codila.models.protocol import DiffusionLM
from codila.schedules import SCHEDULES, Drafts, Statistics
from codila.schedules.sampled import sampled_statistics
from codila_kernels import VocabStats, head_stats, sample_tokens, vocab_stats

Ban = tuple[list[int], Tensor]
"""Ids, and the canvas positions ``[N, n]`` (bool) where none of them may stand."""


class Step:
    """One step on a canvas: everything that does not change between steps is kept here."""

    def __init__(
        self,
        model: DiffusionLM,
        decoder: BlockDecoder | None,
        config: GenerationConfig,
        logits_processor: Any,
        banned_ids: tuple[int, ...] = (),
    ) -> None:
        self.model, self.decoder, self.config = model, decoder, config
        self.logits_processor = logits_processor
        self.window = (0, 0) if decoder is None else decoder.window
        self.cached = None
        if config.dlm_cache != "none":
            self.cached = CachedBody(model, config, beyond=self.window[1])
        schedule = SCHEDULES[config.schedule]
        self.choose, self.judge = schedule.choose, schedule.judge
        self.bridge = decoder.bridge if decoder else _own_vocabulary(model)
        banned = {i for i in banned_ids if i < self.bridge.valid_vocab}
        banned = banned.union(self.bridge.banned_ids)
        self.vocabulary: dict[str, Any] = {
            "valid_vocab": self.bridge.valid_vocab,
            "banned_ids": tuple(sorted(banned)),
        }
        self.sampling: dict[str, Any] = {
            "temperature": config.temperature,
            "top_p": config.top_p,
            "top_k": config.top_k,
        }
        unwritten = banned.union(self.bridge.suppressed_ids)
        self.written_vocabulary: dict[str, Any] = {
            "banned_ids": tuple(sorted(i for i in unwritten if i < self.bridge.valid_vocab))
        }

    def __call__(
        self, canvas: Canvas, seeds: Tensor, index: int, bans: list[Ban], drafted: bool = False
    ) -> Tensor:
        """Commit; returns the canvas tokens, ``drafted`` with top-1 ids at masked candidates."""
        candidates = canvas.candidates(self.config.scope_blocks)
        hidden, first = self._body(canvas, candidates)
        position = candidates.position.flatten(1)
        stats, logits = self._head(canvas, hidden, first, position, bans)
        shape = candidates.position.shape
        if self.config.confidence_source == "sampled":
            view = self._sampled_view(canvas, candidates, logits, seeds, index)
        else:
            view = Statistics(
                stats.entropy.view(shape),
                stats.top1_prob.view(shape),
                stats.margin.view(shape),
                candidates.masked,
            )
        choice = self.choose(view, self.config)
        block, length, slots = choice
        if block.shape[1] and self.config.skip_certain:
            certain = _certain(view, block, length)
            length = torch.where(certain.any(-1), 0, length)
            slot = torch.arange(certain.shape[-1], device=block.device)
            own = block.clamp_min(0)[..., None] * certain.shape[-1] + slot
            slots = torch.cat([slots, torch.where(certain, own, -1).flatten(1)], dim=1)
        if block.shape[1] and self.judge is None:
            single = _first_masked(candidates, block)
            slots = torch.cat([slots, torch.where(length == 1, single, -1)], dim=1)
        around = None
        if block.shape[1] and sum(self.window):  # as the DLM saw it: before anything is committed
            around = self._window(canvas, candidates, block, hidden, first, bans)
        # on the host a look costs less than a draw that nobody keeps
        if slots.shape[1] and (slots.device.type != "cpu" or bool((slots >= 0).any())):
            self._commit_slots(canvas, candidates, logits, slots, seeds, index)
        if block.shape[1]:
            if self.judge is None:  # a single token has no coherence to lose: it was a slot
                length = length * (length > 1)
            self._commit_blocks(
                canvas, candidates, stats, logits, block, length, seeds, index, bans, around
            )
        if self.config.eos_fill and self.config.expand_budget is None:
            canvas.fill_after_eos(index)
        if not drafted:
            return canvas.tokens
        drafts = torch.where(candidates.masked, stats.top1_id.view(shape), candidates.ids)
        position = torch.where(candidates.masked, candidates.position, canvas.step_of.shape[1])
        tokens = torch.cat([canvas.tokens, canvas.tokens[:, :1]], dim=1)
        draft = tokens.scatter(1, position.flatten(1), drafts.flatten(1))[:, :-1]
        return torch.where(canvas.masked, draft, canvas.tokens)

    def _body(self, canvas: Canvas, candidates: Candidates) -> tuple[Tensor, int]:
        """Hidden states of the columns from the second result on."""
        with torch.inference_mode():
            if self.cached is None:
                return self.model.body(canvas.seen_ids, canvas.attention_mask), 0
            return self.cached(canvas, candidates)

    def _head(
        self, canvas: Canvas, hidden: Tensor, first: int, position: Tensor, bans: list[Ban]
    ) -> tuple[VocabStats, Tensor]:
        """Statistics and logits of canvas positions ``[N, S]``, ``R = N * S`` rows."""
        # A first real token has nothing in front of it that could predict it: it has its own row.
        # What completes a block behind the canvas is known: any row will do.
        row = position + canvas.prompt_length - self.model.shift
        row = torch.maximum(row, canvas.padding[:, None])
        row = (row - first).clamp(0, hidden.shape[1] - 1)
        picked = hidden.gather(1, row[..., None].expand(-1, -1, hidden.shape[-1])).flatten(0, 1)
        head = self.model.lm_head
        changed = bool(bans) or self.logits_processor is not None
        if head is None:  # a model of which only the logits can be had
            logits, changed = picked, True
        else:
            stats, logits = head_stats(picked, head.weight, head.bias, **self.vocabulary)
        if self.logits_processor is not None:
            context = canvas.seen_ids.repeat_interleave(row.shape[1], dim=0)
            logits = self.logits_processor(context, logits)
        logits = _without(logits, position, bans)
        if changed:
            stats = vocab_stats(logits, **self.vocabulary)
        return stats, logits

    def _window(
        self,
        canvas: Canvas,
        candidates: Candidates,
        block: Tensor,
        hidden: Tensor,
        first: int,
        bans: list[Ban],
    ) -> Tensor:
        """Soft tokens ``[N, m, W, D]`` of the neighbours of the chosen blocks ``[N, m]``."""
        assert self.decoder is not None and self.config.conditioning is not None
        size = candidates.position.shape[-1]
        index = block.clamp_min(0)[..., None].expand(-1, -1, size)
        position = candidates.position.gather(1, index)
        columns = window_columns(position + canvas.prompt_length, self.window).flatten(1)
        inside = (columns >= canvas.padding[:, None]) & (columns < canvas.seen_ids.shape[1])
        ids = canvas.seen_ids.gather(1, columns.clamp(0, canvas.seen_ids.shape[1] - 1))
        ids = torch.where(inside, ids, canvas.eos_token_ids[0])
        position = (columns - canvas.prompt_length).clamp(0, canvas.step_of.shape[1] - 1)
        stats, logits = self._head(canvas, hidden, first, position, bans)
        soft = soft_tokens(
            logits,
            self.decoder.table,
            self.bridge,
            stats=stats,
            top_k=parse_conditioning(self.config.conditioning),
            temperature=self.config.conditioning_temperature,
            known_ids=ids.flatten(),
            known=ids.ne(canvas.mask_token_id).flatten(),
        )
        return soft.view(*block.shape, sum(self.window), -1)

    def _sampled_view(
        self, canvas: Canvas, candidates: Candidates, logits: Tensor, seeds: Tensor, index: int
    ) -> Statistics:
        shape = candidates.position.shape
        entropy, confidence, margin = sampled_statistics(logits, **self.sampling, **self.vocabulary)
        if self.config.temperature:  # the probability of the token drawn, not of the top one
            position = candidates.position.flatten(1)
            _, confidence = self._draw(canvas, position, logits, seeds, index)
        return Statistics(
            entropy.view(shape), confidence.view(shape), margin.view(shape), candidates.masked
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
        bans: list[Ban],
        around: Tensor | None,
    ) -> None:
        """Let the AR model write the first ``length`` masked positions of the chosen blocks.

        ``around`` ``[N, m, W, D]``: the soft tokens beside the blocks, of a model that reads them.
        """
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
        write = masked & (masked.cumsum(-1) <= length[:, None])
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

        picked_bans = [(ids, where[row]) for ids, where in bans]
        log_prob = []

        def draw(j: int, rows: Tensor) -> Tensor:
            rows = _without(rows, position[:, j : j + 1], picked_bans)
            drawn, _ = sample_tokens(
                rows, seeds[row], counters[:, j], **self.sampling, **self.written_vocabulary
            )
            if self.judge is not None:
                own = rows.gather(1, drawn.clamp_min(0)[:, None]).squeeze(1)
                log_prob.append(own - vocab_stats(rows, **self.written_vocabulary).lse)
            return drawn

        last = torch.where(write, torch.arange(1, b + 1, device=write.device), 0).amax(-1)
        steps = int(last.max()) if on_host else b
        context = None if around is None else around.flatten(0, 1)[picked]
        written = self.decoder.decode(soft, ids, ~masked, draw, steps=steps, context=context)

        def in_place(values: Tensor) -> Tensor:
            """Back to one line per row, m blocks side by side."""
            lines = values.new_zeros((n * m, b)).index_copy(0, picked, values)
            return lines.view(n, m * b)

        if self.judge is not None:
            likelihood = torch.stack(log_prob, dim=1).float()
            likelihood = torch.nn.functional.pad(likelihood, (0, b - steps))
            likelihood = torch.where(write, likelihood, 0.0)
            drafts = Drafts(in_place(likelihood).view(n, m, b), in_place(write).view(n, m, b))
            kept = self.judge(drafts, self.config).flatten()[picked]
            write = write & (write.cumsum(-1) <= kept[:, None])
        canvas.commit(in_place(position), in_place(written), in_place(write), index)


def _certain(view: Statistics, block: Tensor, length: Tensor) -> Tensor:
    """Positions ``[N, m, B]`` to be filled of chosen blocks whose arg-max is the joint mode.

    With c the marginals' top probabilities of n positions, Frechet's bounds give their joint at
    least ``sum c - (n - 1)``, and any other string at most ``1 - min c``: where the first exceeds
    the second no joint with these marginals has another mode.
    """
    index = block.clamp_min(0)[..., None].expand(-1, -1, view.masked.shape[2])
    masked, confidence = view.masked.gather(1, index), view.confidence.gather(1, index)
    taken = masked & (masked.cumsum(-1) <= length[..., None])
    least = torch.where(taken, confidence - 1, 0.0).sum(-1) + 1
    most = 1 - torch.where(taken, confidence, 1.0).amin(-1)
    return taken & ((least > most) & (length > 1))[..., None]


def _first_masked(candidates: Candidates, block: Tensor) -> Tensor:
    """Flat ``C * B`` index of the first masked position of each block ``[N, m]``."""
    b = candidates.masked.shape[2]
    first = candidates.masked.to(torch.uint8).argmax(-1).gather(1, block.clamp_min(0))
    return block.clamp_min(0) * b + first


def _counters(canvas: Canvas, position: Tensor, step: int, row: Tensor | None = None) -> Tensor:
    """``[.., 2]`` int32: position from the row's first real token, and step."""
    padding = canvas.padding if row is None else canvas.padding[row]
    from_start = position + canvas.prompt_length - padding[:, None]
    return torch.stack([from_start, torch.full_like(from_start, step)], dim=-1).to(torch.int32)


def _without(logits: Tensor, position: Tensor, bans: list[Ban]) -> Tensor:
    """``logits`` ``[N * S, V]`` of positions ``[N, S]``, what is banned there at -inf."""
    for ids, where in bans:
        here = where.gather(1, position).flatten()[:, None]
        columns = torch.tensor([i for i in ids if i < logits.shape[1]], device=logits.device)
        logits = logits.index_copy(1, columns, logits[:, columns].masked_fill(here, -torch.inf))
    return logits


def _own_vocabulary(model: DiffusionLM) -> VocabularyBridge:
    return VocabularyBridge(model.config.vocab_size, banned_ids=(model.mask_token_id,))
