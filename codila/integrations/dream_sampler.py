"""Dream's four decoding algorithms: as published, token for token, and corrected.

``origin`` reveals every masked position with a probability; ``maskgit_plus``, ``topk_margin`` and
``entropy`` reveal those of highest confidence: the probability of the drawn token, its margin, or
the negative entropy.

The corrected form differs where the published one loses something:

* steps reveal the same number of positions, give or take one (published: rounding down leaves the
  first step idle and the last one crowded), counted per row (published: the mean of the batch, so
  that rows with unequal masks overwrite or keep some);
* confidence is float32 and ties go to the leftmost position (published: the logits' dtype, where
  most ties are made, and an order that ``topk`` does not define);
* a generation ends when nothing is masked; a row draws from its own seed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from codila.canvas import left_padded
from codila.generation import row_seeds
from codila.schedules.sampled import sampled_statistics
from codila_kernels import sample_tokens, vocab_stats
from codila_kernels.reference import philox_uniform

if TYPE_CHECKING:
    from codila.integrations.dream import DreamOptions

ALGORITHMS = ("origin", "maskgit_plus", "topk_margin", "entropy")

_POSITION_STREAM = 1 << 30
"""Added to the step in the counters that draw positions, so that tokens draw from others."""


def published(
    dlm: Any,
    ids: Tensor,
    attention_mask: Tensor | None,
    new: int,
    options: DreamOptions,
    tokens_hook: Any,
    logits_hook: Any,
) -> tuple[Tensor, list[Tensor]]:
    """As in Dream's ``_sample``; draws from torch's generator in the same order."""
    mask_id = dlm.mask_token_id
    x = torch.nn.functional.pad(ids, (0, new), value=mask_id)
    keep = None
    if attention_mask is not None and bool((attention_mask == 0).any()):
        keep = torch.nn.functional.pad(attention_mask, (0, new), value=1)
    times = torch.linspace(1, options.eps, options.steps + 1, device=x.device)
    history: list[Tensor] = []
    if tokens_hook is not None:
        x = tokens_hook(None, x, None)
    for i in range(options.steps):
        masked = x == mask_id
        logits = _shifted_logits(dlm, x, keep)
        if logits_hook is not None:
            logits = logits_hook(i, x, logits)
        last = i == options.steps - 1
        share = 1 - times[i + 1] / times[i]
        if options.alg == "origin":
            drawn = torch.full_like(x[masked], mask_id)
            reveal = torch.rand(drawn.shape, device=x.device) < (1 if last else share)
            drawn[reveal] = _published_draw(logits[masked][reveal], options)[1]
            x[masked] = drawn
        else:
            confidence, drawn = _published_draw(logits[masked], options)
            mean = masked.sum() / masked.shape[0]
            count = int(mean if last else mean * share)
            if count > 0:
                ranked = torch.full_like(x, -torch.inf, dtype=logits.dtype)
                ranked[masked] = confidence
                if options.alg_temp:
                    weights = torch.softmax(ranked / options.alg_temp, dim=-1)
                    chosen = torch.multinomial(weights, num_samples=count)
                else:
                    chosen = ranked.topk(count).indices
                proposal = torch.full_like(x, mask_id)
                proposal[masked] = drawn
                x = x.scatter(1, chosen, proposal.gather(1, chosen))
        if tokens_hook is not None:
            x = tokens_hook(i, x, logits)
        if options.output_history:
            history.append(x.clone())
    return x, history


def corrected(
    dlm: Any,
    ids: Tensor,
    attention_mask: Tensor | None,
    new: int,
    options: DreamOptions,
    tokens_hook: Any,
    logits_hook: Any,
) -> tuple[Tensor, list[Tensor]]:
    """The same algorithms without the faults that the module names."""
    mask_id = dlm.mask_token_id
    ids, keep = left_padded(ids, attention_mask)
    x = torch.nn.functional.pad(ids, (0, new), value=mask_id)
    keep = torch.nn.functional.pad(keep, (0, new), value=True)
    padding = (~keep).sum(-1, keepdim=True)
    position = torch.arange(x.shape[1], device=x.device) - padding  # from the first real token
    seeds = row_seeds(options.seed, x.shape[0], x.device)[:, None].expand(x.shape)
    start = ((x == mask_id) & keep).sum(-1)
    times = torch.linspace(1, options.eps, options.steps + 1).tolist()
    history: list[Tensor] = []
    if tokens_hook is not None:
        x = tokens_hook(None, x, None)
    for i in range(options.steps):
        masked = (x == mask_id) & keep
        if not bool(masked.any()):
            break
        logits = _shifted_logits(dlm, x, None if bool(keep.all()) else keep)
        if logits_hook is not None:
            logits = logits_hook(i, x, logits)
        at = masked.nonzero(as_tuple=True)
        counters = torch.stack([position[at], torch.full_like(position[at], i)], -1).int()
        confidence, drawn = _corrected_draw(dlm, logits[at], seeds[at], counters, options)
        last = i == options.steps - 1
        counters[:, 1] += _POSITION_STREAM
        uniform = philox_uniform(seeds[at], counters)
        if options.alg == "origin":
            reveal = masked.clone()
            reveal[at] = uniform < (1.0 if last else 1 - times[i + 1] / times[i])
        else:
            if options.alg_temp:  # the highest of these are a draw without replacement
                gumbel = -(-uniform.clamp_min(2.0**-33).log()).log()
                confidence = confidence.double() / options.alg_temp + gumbel
            ranked = torch.full(x.shape, -torch.inf, dtype=torch.float64, device=x.device)
            ranked[at] = confidence.double()
            count = start // options.steps + (i < start % options.steps)
            reveal = masked & (_rank(ranked) < count[:, None])
        proposal = x.clone()
        proposal[at] = drawn
        x = torch.where(reveal, proposal, x)
        if tokens_hook is not None:
            x = tokens_hook(i, x, logits)
        if options.output_history:
            history.append(x.clone())
    return x, history


def _shifted_logits(dlm: Any, x: Tensor, keep: Tensor | None) -> Tensor:
    """Logits ``[N, L, V]``, row p predicting position p; the first row predicts itself."""
    out = dlm.body(x, keep)
    logits = out if dlm.lm_head is None else dlm.lm_head(out)
    return torch.cat([logits[:, :1], logits[:, :-1]], dim=1) if dlm.shift else logits


def _published_draw(logits: Tensor, options: DreamOptions) -> tuple[Tensor, Tensor]:
    """Confidence and token of each row, in the logits' dtype: temperature, nucleus, top-k."""
    if options.temperature > 0:
        logits = logits / options.temperature
    lowest = torch.finfo(logits.dtype).min
    if options.top_p is not None and options.top_p < 1:
        ordered, order = logits.sort(descending=True)
        reached = ordered.softmax(-1).cumsum(-1)
        beyond = torch.nn.functional.pad(reached[:, :-1] > options.top_p, (1, 0))
        logits = logits.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), lowest)
    if options.top_k is not None:
        edge = logits.topk(min(options.top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < edge, lowest)
    p = logits.softmax(-1)
    if options.temperature > 0:
        drawn = torch.distributions.Categorical(probs=p).sample()
        confidence = p.gather(-1, drawn[:, None]).squeeze(-1)
    else:
        confidence, drawn = p.max(-1)
    if options.alg == "topk_margin":
        ordered = p.sort(dim=-1, descending=True).values
        confidence = ordered[:, 0] - ordered[:, 1]
    elif options.alg == "entropy":
        confidence = (p * torch.log(p + 1e-10)).sum(-1)
    return confidence, drawn


def _corrected_draw(
    dlm: Any, logits: Tensor, seeds: Tensor, counters: Tensor, options: DreamOptions
) -> tuple[Tensor, Tensor]:
    vocabulary: dict[str, Any] = {
        "valid_vocab": logits.shape[-1],
        "banned_ids": (dlm.mask_token_id,),
    }
    sampling: dict[str, Any] = {
        "temperature": options.temperature,
        "top_p": 1.0 if options.top_p is None else options.top_p,
        "top_k": options.top_k or 0,
    }
    drawn, drawn_p = sample_tokens(logits, seeds, counters, **sampling, **vocabulary)
    if options.confidence_source == "raw":
        stats = vocab_stats(logits, **vocabulary)
        values = {"entropy": -stats.entropy, "topk_margin": stats.margin}
        return values.get(options.alg or "", stats.top1_prob), drawn
    entropy, top, margin = sampled_statistics(logits, **sampling, **vocabulary)
    values = {"entropy": -entropy, "topk_margin": margin}
    return values.get(options.alg or "", drawn_p if options.temperature else top), drawn


def _rank(score: Tensor) -> Tensor:
    """Place of every entry in its row, the highest 0, ties from the left."""
    order = score.argsort(dim=-1, descending=True, stable=True)
    return torch.empty_like(order).scatter(
        1, order, torch.arange(score.shape[1], device=score.device).expand_as(order)
    )
