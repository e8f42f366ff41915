"""The decoder by its definition: one row at a time, plain loops, no cache, no batch.

Only :func:`codila_kernels.sample_tokens` is shared with the library, since it defines what a seed
means. Everything else is written from the rules: a block starts at the first mask that no block
covers; the frontier is the leftmost block with a mask; hidden ``p - shift`` predicts ``p``, and the
first token predicts itself.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from codila_kernels import sample_tokens


class Decoded(NamedTuple):
    tokens: list[int]  # prompt included
    forwards: int
    ar_tokens: int  # how many tokens the AR model wrote


def _distribution(
    z: Tensor, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> Tensor:
    """Probabilities of one row; the kept set is the top_k, then the shortest run reaching top_p."""
    p = torch.softmax((z - z.max()) / temperature, dim=0)
    if not top_k and top_p == 1:
        return p
    weight = p.tolist()
    order = sorted(range(len(weight)), key=lambda v: (-weight[v], v))[: top_k or None]
    total, kept, mass = sum(weight[v] for v in order), [], 0.0
    for v in order:
        kept.append(v)
        mass += weight[v] / total
        if mass >= top_p:
            break
    out = torch.zeros_like(p)
    out[kept] = p[kept]
    return out / out.sum()


def _entropy(p: Tensor) -> float:
    return -sum(value * math.log(value) for value in p.tolist() if value > 0)


@torch.no_grad()
def decode(dlm: Any, ar: Any, prompt: list[int], config: Any, seed: int) -> Decoded:
    c, size, mask, eos = config, config.block_size, dlm.mask_token_id, dlm.eos_token_id
    bridge = None if ar is None else ar.codila.bridge
    valid = dlm.config.vocab_size if bridge is None else bridge.valid_vocab
    banned = {mask} if bridge is None else set(bridge.banned_ids)
    if c.expand_budget is None and c.expand_token_id is not None:
        banned.add(c.expand_token_id)
    x = prompt + [mask] * c.max_new_tokens
    given, room = [v != mask for v in x], c.expand_budget
    forwards = ar_tokens = 0

    def blocks() -> list[range]:
        grid: list[range] = []
        for p, v in enumerate(x):
            if v == mask and (not grid or p >= grid[-1].stop):
                grid.append(range(p, p + size))
        return grid

    grid = blocks()

    def usable(z: Tensor, never: set[int]) -> Tensor:
        z = z[:valid].clone()
        z[[v for v in never if v < valid]] = -math.inf
        return z

    def draw(z: Tensor, position: int) -> tuple[int, float]:
        counter = torch.tensor([[position, forwards - 1]], dtype=torch.int32)
        sampling = {"temperature": c.temperature, "top_p": c.top_p, "top_k": c.top_k}
        token, p = sample_tokens(z[None], torch.tensor([seed]), counter, **sampling)
        return int(token), float(p)

    def ar_row(token: int) -> int:
        return bridge.id_map.get(token, token)

    def write_block(block: list[int], targets: list[int]) -> dict[int, int]:
        table = ar.get_input_embeddings().weight
        in_dlm_order = table[[ar_row(v) for v in range(valid)]]
        conditioning = c.conditioning or ar.codila.conditioning
        top = 0 if conditioning == "soft" else int(conditioning.removeprefix("top-"))

        def feed(p: int) -> Tensor:
            if not 0 <= p < len(x):  # what completes the last block, or a window
                return table[ar_row(eos)]
            if x[p] != mask:
                return table[ar_row(x[p])]
            own = usable(logits[max(p - dlm.shift, 0)], now_banned)
            return _distribution(own, c.conditioning_temperature, top) @ in_dlm_order

        left, right = ar.codila.window
        beside = [*range(block[0] - left, block[0]), *range(block[-1] + 1, block[-1] + 1 + right)]
        fed = [feed(p) for p in block]
        if ar.codila.boundaries:
            fed = [table[ar.codila.boundaries[0]], *fed, table[ar.codila.boundaries[1]]]
        fed = [feed(p) for p in beside] + fed
        written = {}
        for p in range(block[0], targets[-1] + 1):
            out = ar(inputs_embeds=torch.stack(fed)[None], use_cache=False).logits[0, -1]
            out = out[[ar_row(v) for v in range(valid)]]
            out = usable(out, now_banned | set(bridge.suppressed_ids))
            token, _ = draw(out, p)
            log_prob[p] = out.double().log_softmax(-1)[token].item()
            token = token if x[p] == mask else x[p]
            written |= {p: token} if p in targets else {}
            fed.append(table[ar_row(token)])
        return written

    while mask in x:
        logits = dlm(torch.tensor([x])).logits[0].double()
        forwards += 1
        now_banned = banned | ({c.expand_token_id} if room == 0 else set())
        frontier = next(i for i, block in enumerate(grid) if mask in x[block.start : block.stop])
        inside = grid[frontier : frontier + c.scope_blocks] if c.scope_blocks else grid
        holes = [[p for p in block if p < len(x) and x[p] == mask] for block in inside]
        masked = [p for hole in holes for p in hole]
        z = {p: usable(logits[max(p - dlm.shift, 0)], now_banned) for p in masked}
        if c.confidence_source == "raw":
            view = {p: _distribution(z[p]) for p in masked}
            confidence = {p: view[p].max().item() for p in masked}
        else:
            view = {p: _distribution(z[p], c.temperature or 1.0, c.top_k, c.top_p) for p in masked}
            confidence = {p: draw(z[p], p)[1] for p in masked}
            if c.temperature == 0:
                confidence = {p: view[p].max().item() for p in masked}
        entropy = {p: _entropy(view[p]) for p in masked}
        commits, log_prob = {}, {}
        if c.schedule == "ar_likelihood":
            drafts = [write_block(list(b), h) for b, h in zip(inside, holes, strict=True) if h]
            joint = [sum(log_prob[p] for p in draft) for draft in drafts]
            best = joint.index(max(joint))
            for i, draft in enumerate(drafts):
                if i == best or joint[i] >= math.log(c.joint_threshold):
                    commits |= draft
        if c.schedule == "ar_frontier":
            first = next(i for i, hole in enumerate(holes) if hole)
            draft, joint, going = write_block(list(inside[first]), holes[first]), 0.0, True
            for p in holes[first]:
                joint += log_prob[p]
                going = going and joint >= math.log(c.joint_threshold)
                if going or p == holes[first][0]:
                    commits[p] = draft[p]
            for p in masked:
                if p not in holes[first] and confidence[p] > c.confidence_threshold:
                    commits[p] = draw(z[p], p)[0]
        single, prefixes = [], []  # positions for the DLM's sampler; masked prefixes for the AR
        if c.schedule in ("static", "dynamic"):
            ranked = []
            for b, hole in enumerate(holes):
                means = [sum(entropy[p] for p in hole[:k]) / k for k in range(1, len(hole) + 1)]
                fits = [k for k, h in enumerate(means, 1) if h <= c.entropy_threshold]
                if c.schedule == "static" and hole:
                    ranked.append((means[-1], b, len(hole)))
                elif c.schedule == "dynamic" and fits:
                    ranked.append((-fits[-1], means[fits[-1] - 1], b, fits[-1]))
            ranked, best = sorted(ranked), []
            for r in ranked:
                if all(abs(r[-2] - b[-2]) > c.block_gap or not c.block_gap for b in best):
                    best.append(r)
            ranked = best[: c.blocks_per_step if c.schedule == "static" else 1]
            prefixes = [(inside[r[-2]], holes[r[-2]][: r[-1]]) for r in ranked]
            if c.schedule == "dynamic" and all(len(prefix) < 2 for _, prefix in prefixes):
                single, prefixes = [min(masked, key=lambda p: (entropy[p], p))], []
        elif not commits:
            margin = {p: (v := view[p].sort().values)[-1].item() - v[-2].item() for p in masked}
            score = {"margin": margin, "entropy": {p: -entropy[p] for p in masked}}
            score = score.get(c.schedule, confidence)
            order = sorted(masked, key=lambda p: (-score[p], p))
            single = order[: c.tokens_per_step]
            if c.schedule == "threshold":
                single = [p for p in order if p == order[0] or score[p] > c.confidence_threshold]
        single += [prefix[0] for _, prefix in prefixes if len(prefix) == 1]
        if c.skip_certain:
            for b, prefix in list(prefixes):
                sure = [confidence[p] for p in prefix]
                if len(prefix) > 1 and sum(sure) - len(sure) + 1 > 1 - min(sure):
                    single += prefix
                    prefixes.remove((b, prefix))
        commits |= {p: draw(z[p], p)[0] for p in single}
        for block, prefix in prefixes:
            if len(prefix) > 1:
                commits |= write_block(list(block), prefix)
                ar_tokens += len(prefix)
        for p, token in commits.items():
            x[p] = token
        if room is not None:
            for p in sorted(commits, reverse=True):
                if x[p] == c.expand_token_id:  # with no room left it is one mask again
                    wider = [mask, mask] if room else [mask]
                    x[p : p + 1], given[p : p + 1] = wider, [False] * len(wider)
                    room -= len(wider) - 1
                elif x[p] == eos:
                    del x[p], given[p]
            grid = blocks()
        elif c.eos_fill:
            fill, clear = False, True  # an end was written in this run; no mask was met before it
            for p in range(len(x)):
                if given[p]:
                    fill, clear = False, True
                elif x[p] == mask:
                    x[p] = eos if fill else mask
                    clear = clear and fill
                elif x[p] == eos:
                    fill = fill or clear
    return Decoded(x, forwards, ar_tokens)
