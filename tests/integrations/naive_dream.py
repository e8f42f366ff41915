"""Dream's published sampler and its corrected form, one step at a time, in plain loops.

Only how a token is drawn from a row is shared: torch's ``Categorical`` for the published form,
:func:`codila_kernels.sample_tokens` for the corrected one, since they define what a seed means.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from codila_kernels import sample_tokens
from codila_kernels.reference import philox_uniform


def rows_of(dlm: Any, x: Tensor, real: Tensor) -> Tensor:
    """Logits that predict each position of every row, each row alone without its padding."""
    out = torch.zeros(*x.shape, dlm.config.vocab_size, dtype=dlm.dtype)
    for r in range(len(x)):
        first = int(real[r].int().argmax())
        logits = dlm(x[r : r + 1, first:]).logits[0]
        for p in range(first, x.shape[1]):
            out[r, p] = logits[max(p - first - dlm.shift, 0)]
    return out


def keep_nucleus(row: Tensor, top_p: float) -> Tensor:
    """Tokens from the most probable on, to the one whose running sum passes top_p."""
    order = row.sort(descending=True).indices
    p = row[order].softmax(-1).cumsum(-1)
    size = next((k + 1 for k in range(len(p)) if p[k] > top_p), len(p))
    out = torch.full_like(row, torch.finfo(row.dtype).min)
    out[order[:size]] = row[order[:size]]
    return out


def keep_top_k(row: Tensor, k: int) -> Tensor:
    edge = row.sort(descending=True).values[min(k, len(row)) - 1]
    return torch.where(row < edge, torch.finfo(row.dtype).min, row)


def published(
    dlm: Any, ids: Tensor, mask: Tensor, new: int, alg: str, steps: int, eps: float = 1e-3,
    temperature: float = 0.0, top_p: float | None = None, top_k: int | None = None,
    alg_temp: float | None = None,
) -> tuple[Tensor, list[Tensor]]:  # fmt: skip
    rows, m = len(ids), dlm.mask_token_id
    x = torch.cat([ids, torch.full((rows, new), m)], dim=1)
    real = torch.cat([mask, torch.ones(rows, new, dtype=mask.dtype)], dim=1)
    time = torch.linspace(1, eps, steps + 1)
    history = []
    for step in range(steps):
        places = [(r, p) for r in range(rows) for p in range(x.shape[1]) if x[r, p] == m]
        logits = rows_of(dlm, x, real)
        flat = [logits[r, p] for r, p in places]
        fraction = 1 - time[step + 1] / time[step]
        final = step == steps - 1
        if alg == "origin":
            coins = torch.rand(len(places)) < (1 if final else fraction)
            flat = [z for z, coin in zip(flat, coins, strict=True) if coin]
            places = [place for place, coin in zip(places, coins, strict=True) if coin]
        if temperature > 0:
            flat = [z / temperature for z in flat]
        if top_p is not None and top_p < 1:
            flat = [keep_nucleus(z, top_p) for z in flat]
        if top_k is not None:
            flat = [keep_top_k(z, top_k) for z in flat]
        p = torch.stack(flat).softmax(-1) if flat else torch.zeros(0, dlm.config.vocab_size)
        token, confidence = [], []
        if temperature > 0 and len(p):
            token = torch.distributions.Categorical(probs=p).sample().tolist()
            confidence = [p[i, v].item() for i, v in enumerate(token)]
        else:
            token, confidence = p.argmax(-1).tolist(), p.amax(-1).tolist()
        if alg == "origin":
            for (r, c), v in zip(places, token, strict=True):
                x[r, c] = v
            history.append(x.clone())
            continue
        if alg == "topk_margin":
            best = p.sort(descending=True).values
            confidence = (best[:, 0] - best[:, 1]).tolist()
        if alg == "entropy":
            confidence = [(q * (q + 1e-10).log()).sum().item() for q in p]
        mean = len(places) / rows
        number = int(mean) if final else int(mean * fraction.item())
        table = torch.full(x.shape, -math.inf, dtype=logits.dtype)
        proposal = torch.full(x.shape, m)
        for (r, c), v, conf in zip(places, token, confidence, strict=True):
            table[r, c], proposal[r, c] = conf, v
        if number:
            if alg_temp:
                chosen = torch.multinomial((table / alg_temp).softmax(-1), num_samples=number)
            else:
                chosen = table.topk(number).indices
            for r in range(rows):
                for c in chosen[r].tolist():
                    x[r, c] = proposal[r, c]
        history.append(x.clone())
    return x, history


def corrected(
    dlm: Any, prompt: list[int], new: int, alg: str, steps: int, seed: int, eps: float = 1e-3,
    temperature: float = 0.0, top_p: float | None = None, top_k: int | None = None,
    alg_temp: float | None = None, source: str = "sampled",
) -> tuple[list[int], list[list[int]]]:  # fmt: skip
    """One row; the mask token has no probability."""
    m = dlm.mask_token_id
    x = prompt + [m] * new
    begin = x.count(m)
    time = torch.linspace(1, eps, steps + 1).tolist()
    history = []
    for step in range(steps):
        holes = [p for p, v in enumerate(x) if v == m]
        if not holes:
            break
        logits = rows_of(dlm, torch.tensor([x]), torch.ones(1, len(x)))[0].double()
        token, confidence, coin = {}, {}, {}
        for p in holes:
            z = logits[p].clone()
            z[m] = -math.inf
            at, when = torch.tensor([[p, step]]).int(), torch.tensor([seed])
            sampling = {"temperature": temperature, "top_p": top_p or 1.0, "top_k": top_k or 0}
            drawn, drawn_p = sample_tokens(z[None], when, at, **sampling)
            token[p] = int(drawn)
            q = z.softmax(-1)
            if source == "sampled":
                kept = (z - z.max()) / (temperature or 1.0)
                order = kept.sort(descending=True, stable=True).indices
                order = order[: top_k or None]
                share = kept[order].softmax(-1)
                size = next(
                    (k + 1 for k, s in enumerate(share.cumsum(-1)) if s >= (top_p or 1.0) - 1e-15),
                    len(share),
                )
                q = torch.zeros_like(z)
                q[order[:size]] = share[:size] / share[:size].sum()
            best = q.sort(descending=True).values
            confidence[p] = {
                "entropy": torch.xlogy(q, q).sum().item(),
                "topk_margin": (best[0] - best[1]).item(),
            }.get(alg, drawn_p.item() if source == "sampled" and temperature else best[0].item())
            coin[p] = philox_uniform(when, torch.tensor([[p, step + 2**30]]).int()).item()
        if alg == "origin":
            share = 1.0 if step == steps - 1 else 1 - time[step + 1] / time[step]
            chosen = [p for p in holes if coin[p] < share]
        else:
            if alg_temp:
                for p in holes:
                    noise = -math.log(-math.log(max(coin[p], 2.0**-33)))
                    confidence[p] = confidence[p] / alg_temp + noise
            count = begin // steps + (step < begin % steps)
            chosen = sorted(holes, key=lambda p: (-confidence[p], p))[:count]
        for p in chosen:
            x[p] = token[p]
        history.append(list(x))
    return x, history
