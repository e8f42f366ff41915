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
from codila.replay import Recorder, Replayed, constant
from codila.schedules import SCHEDULES, Drafts, Statistics
from codila.schedules.sampled import sampled_statistics
from codila_kernels import VocabStats, head_stats, sample_tokens, vocab_stats

Ban = tuple[tuple[int, ...], Tensor]
"""Ids, and the canvas positions ``[N, n]`` (bool) where none of them may stand."""


class Step:
    """One step on a canvas: everything that does not change between steps is kept here.

    With ``looks`` the step asks its tensors what may be left out, which costs nothing where they
    are in host memory. Without, its shapes are fixed and what was not chosen is dropped in the end:
    nothing waits for the device, and ``recorder`` can turn the DLM's body and the AR model's
    blocks into recordings.
    """

    def __init__(
        self,
        model: DiffusionLM,
        decoder: BlockDecoder | None,
        config: GenerationConfig,
        logits_processor: Any,
        banned_ids: tuple[int, ...] = (),
        *,
        looks: bool = True,
        recorder: Recorder | None = None,
    ) -> None:
        self.model, self.decoder, self.config = model, decoder, config
        self.looks = looks
        self.body = Replayed(model.body, recorder)
        self.write = Replayed(self._write, recorder)
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
        if slots.shape[1] and not (self.looks and bool((slots < 0).all())):
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
                # a broken row (-1) is for the loop to see, not for the table
                return self.body(canvas.seen_ids.clamp_min(0), canvas.attention_mask), 0
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
        chosen = (length.flatten() > 0) if self.looks else torch.ones_like(length.flatten()) > 0
        if self.looks and not bool(chosen.any()):
            return
        every = torch.arange(n * m, device=block.device)
        picked = every[chosen] if self.looks else every
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

        banned = [where[row].gather(1, position) for _, where in bans]
        last = torch.where(write, torch.arange(1, b + 1, device=write.device), 0).amax(-1)
        steps = int(last.max()) if self.looks else b
        context = None if around is None else around.flatten(0, 1)[picked]
        written, log_prob = self.write(
            soft, ids, ~masked, seeds[row], counters, context, *banned,
            steps=steps, banned_ids=tuple(ids for ids, _ in bans),
        )  # fmt: skip

        def in_place(values: Tensor) -> Tensor:
            """Back to one line per row, m blocks side by side."""
            lines = values.new_zeros((n * m, b)).index_copy(0, picked, values)
            return lines.view(n, m * b)

        if self.judge is not None:
            likelihood = torch.where(write, log_prob, 0.0)
            drafts = Drafts(in_place(likelihood).view(n, m, b), in_place(write).view(n, m, b))
            kept = self.judge(drafts, self.config).flatten()[picked]
            write = write & (write.cumsum(-1) <= kept[:, None])
        canvas.commit(in_place(position), in_place(written), in_place(write), index)

    def _write(
        self,
        soft: Tensor,
        ids: Tensor,
        known: Tensor,
        seeds: Tensor,
        counters: Tensor,
        context: Tensor | None,
        *banned: Tensor,
        steps: int,
        banned_ids: tuple[tuple[int, ...], ...],
    ) -> tuple[Tensor, Tensor]:
        """The AR model's tokens ``[M, B]`` of M blocks, and their log-probabilities for a judge.

        ``seeds`` ``[M]``; ``counters`` ``[M, B, 2]``; ``banned`` are ``[M, B]``, where none of the
        ids at the same place of ``banned_ids`` may stand; for the rest see `BlockDecoder.decode`.
        """
        assert self.decoder is not None
        log_prob = torch.zeros(ids.shape, dtype=torch.float32, device=ids.device)

        def draw(j: int, rows: Tensor) -> Tensor:
            for unwanted, where in zip(banned_ids, banned, strict=True):
                rows = _banned(rows, unwanted, where[:, j])
            drawn, _ = sample_tokens(
                rows, seeds, counters[:, j], **self.sampling, **self.written_vocabulary
            )
            if self.judge is not None:
                own = rows.gather(1, drawn.clamp_min(0)[:, None]).squeeze(1)
                log_prob[:, j] = own - vocab_stats(rows, **self.written_vocabulary).lse
            return drawn

        tokens = self.decoder.decode(soft, ids, known, draw, steps=steps, context=context)
        return tokens, log_prob


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
        logits = _banned(logits, ids, where.gather(1, position).flatten())
    return logits


def _banned(logits: Tensor, ids: tuple[int, ...], where: Tensor) -> Tensor:
    """``logits`` ``[R, V]``, the columns ``ids`` at -inf in the rows ``where`` (``[R]`` bool)."""
    columns = constant(tuple(i for i in ids if i < logits.shape[1]), logits.device)
    here = logits[:, columns].masked_fill(where[:, None], -torch.inf)
    return logits.index_copy(1, columns, here)


def _own_vocabulary(model: DiffusionLM) -> VocabularyBridge:
    return VocabularyBridge(model.config.vocab_size, banned_ids=(model.mask_token_id,))
