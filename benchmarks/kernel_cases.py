"""The ops at the sizes that decoding has: inputs, work, providers, and what a right answer is.

`benchmarks.kernels` times these cases, `benchmarks.roofline` computes their floors. Work is what
the definition cannot do without: every input read once, every output written once, the
multiply-adds of matrix products (two FLOPs each; elementwise arithmetic is not counted), one
exponential per probability.

Sizes: Dream-7B (152,064 columns, hidden size 3584) beside Qwen3-0.6B (151,936 rows of 1024), and
the self-conditioning of DiffusionGemma (262,144 rows; canvas 256; 2304 is the hidden size that
transformers' configuration of its text model defaults to). Tensors are bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import codila_kernels as ck

Inputs = tuple[Any, ...]
Provider = Callable[..., Any]

ROWS = (2, 4, 8, 16, 40, 80, 768)
QUICK_ROWS = (8, 40)
CPU_ROWS = (2, 8, 40, 80)
CANVAS = 768
CPU_CANVAS = 80  # the nucleus of 768 rows, sorted in float32 with int64 ids, is several GB
BLOCK = 4
TOP_P, TEMPERATURE = 0.8, 0.1  # how the DLM samples
_PIECE = 16384
_BF16 = 2.0**-8  # unit roundoff of bfloat16: half of its spacing


@dataclass(frozen=True)
class Case:
    """One op at one size.

    Attributes:
        op, shape, dtype: as printed.
        bytes_, flops, exponentials: the work without which there is no answer.
        inputs: makes the arguments of the providers on a device.
        providers: eager composition and ours, and whatever else is done today.
        fault: ``fault(inputs, output)`` says what is wrong with a provider's output, or None.
        compiled: whether `torch.compile` of ``eager`` is worth a row.
    """

    op: str
    shape: dict[str, int]
    bytes_: int
    flops: int
    exponentials: int
    inputs: Callable[[torch.device], Inputs] = field(repr=False)
    providers: dict[str, Provider] = field(repr=False)
    fault: Callable[[Inputs, Any], str | None] = field(repr=False)
    dtype: str = "bfloat16"
    compiled: bool = True

    @property
    def label(self) -> str:
        """The shape in one word, as in ``R=40 V=152064``."""
        return " ".join(f"{name}={size}" for name, size in self.shape.items())


@dataclass(frozen=True)
class Models:
    """The sizes of a pair: columns and hidden size of the DLM, rows and width of the table."""

    vocab: int
    hidden: int
    table_rows: int
    width: int


DREAM_QWEN = Models(vocab=152_064, hidden=3584, table_rows=151_936, width=1024)
DIFFUSION_GEMMA = Models(vocab=262_144, hidden=2304, table_rows=262_144, width=2304)


def cases(
    rows: Sequence[int] = ROWS,
    models: Models = DREAM_QWEN,
    gemma: Models | None = DIFFUSION_GEMMA,
    canvas: int = CANVAS,
) -> Iterator[Case]:
    """Every case, those of a usual step (40 rows) first in each op."""
    ordered = sorted(rows, key=lambda r: (r != 40, r))
    for make in (_vocab_stats, _head_stats, _expected_embedding, _top_k, _sample_tokens):
        for r in ordered:
            yield make(r, models)
    for r in ordered:
        yield _block_entropy(r)
    for r in ordered:
        if BLOCK <= r <= canvas // 2:
            yield _vocabulary_stage(r, models, canvas)
    if gemma is not None:
        yield _expected_embedding(256, gemma)


# Random inputs ---------------------------------------------------------------------------------


def _normal(device: torch.device, rows: int, columns: int, scale: float, seed: int) -> Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    out = torch.empty(rows, columns, dtype=torch.bfloat16, device=device)
    return out.normal_(0.0, scale, generator=generator)


def _logits(device: torch.device, r: int, models: Models) -> Tensor:
    return _normal(device, r, models.vocab, 3.0, seed=1)


def _table(device: torch.device, models: Models) -> Tensor:
    return _normal(device, models.table_rows, models.width, 0.03, seed=2)


def _hidden_and_head(device: torch.device, r: int, models: Models) -> tuple[Tensor, Tensor]:
    head = _normal(device, models.vocab, models.hidden, 0.05, seed=4)  # logits of deviation 3
    return _normal(device, r, models.hidden, 1.0, seed=3), head


# Definitions in float64, of a few rows -----------------------------------------------------------


def _sampled_rows(count: int) -> list[int]:
    return sorted({0, count // 2, count - 1})


def _exact_soft(logits: Tensor, table: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """``p @ table`` and ``p @ |table|`` in float64, table piece by piece."""
    p = torch.softmax(logits[:, :width].double(), -1)
    soft = torch.zeros(len(p), table.shape[1], dtype=torch.float64, device=p.device)
    size = torch.zeros_like(soft)
    for start in range(0, width, _PIECE):
        piece = table[start : min(start + _PIECE, width)].double()
        part = p[:, start : start + _PIECE]
        soft += part @ piece
        size += part @ piece.abs()
    return soft, size


def _soft_fault(logits: Tensor, table: Tensor, width: int, got: Tensor) -> str | None:
    """Probabilities and results may be rounded to bfloat16, and sums in float32 be long."""
    soft, size = _exact_soft(logits, table, width)
    excess = (got.double() - soft).abs() - 4 * _BF16 * size
    return None if bool((excess <= 0).all()) else "soft token off by more than its rounding"


def _stats_fault(logits: Tensor, entropy: Tensor, top1_id: Tensor) -> str | None:
    log_p = torch.log_softmax(logits.double(), -1)
    exact = -(log_p.exp() * log_p).sum(-1)
    if not bool(((entropy.double() - exact).abs() <= 1e-3).all()):
        return "entropy off by more than 1e-3 nats"
    at = logits.gather(-1, top1_id.unsqueeze(-1)).squeeze(-1)
    return None if bool((at == logits.amax(-1)).all()) else "top-1 id is not an arg-max"


def _logits_fault(hidden: Tensor, head: Tensor, got: Tensor) -> str | None:
    for start in range(0, len(head), _PIECE):
        piece = head[start : start + _PIECE].double()
        exact = hidden.double() @ piece.T
        size = hidden.double().abs() @ piece.abs().T
        error = (got[:, start : start + _PIECE].double() - exact).abs()
        if not bool((error <= 2 * _BF16 * exact.abs() + 1e-3 * size).all()):
            return "logits off by more than their rounding"
    return None


def _sample_fault(logits: Tensor, ids: Tensor, probs: Tensor) -> str | None:
    """The token lies in the nucleus, and its probability is the renormalised one."""
    p = torch.softmax(logits.double() / TEMPERATURE, -1)
    ranked = p.sort(-1, descending=True).values
    reached = ranked.cumsum(-1)
    last = (reached < TOP_P).sum(-1, keepdim=True)
    kept, edge = reached.gather(-1, last), ranked.gather(-1, last)
    mine = p.gather(-1, ids.unsqueeze(-1))
    if not bool((mine >= edge * 0.99).all()):
        return "a token outside the nucleus"
    # where a partial sum is next to p, rounding puts the entry at the edge on either side
    near = (reached - TOP_P).abs().amin(-1, keepdim=True) < 1e-4
    slack = 0.01 + torch.where(near, edge / kept, 0.0)
    ratio = probs.double().unsqueeze(-1) * kept / mine
    return None if bool(((ratio - 1).abs() <= slack).all()) else "probability of a token is off"


# The cases ---------------------------------------------------------------------------------------


def _eager_stats(logits: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    z = logits.float()
    p = torch.softmax(z, -1)
    top = p.topk(2, -1)
    entropy = -(p * torch.log(p.clamp_min(1e-30))).sum(-1)
    first, second = top.values.unbind(-1)
    return z.logsumexp(-1), entropy, z.argmax(-1), first, first - second


def _eager_soft(logits: Tensor, table: Tensor) -> Tensor:
    """Probabilities in the table's dtype on a GPU, in float32 on a CPU, which multiplies
    bfloat16 matrices at a few percent of its float32 speed."""
    p = torch.softmax(logits[:, : len(table)].float(), -1)
    if logits.device.type == "cpu":
        return (p @ table.float()).to(table.dtype)
    return p.to(table.dtype) @ table


def _eager_head(hidden: Tensor, head: Tensor) -> Tensor:
    if hidden.device.type == "cpu":
        return F.linear(hidden.float(), head.float()).to(hidden.dtype)
    return F.linear(hidden, head)


def _nucleus(logits: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Dream's sampler: temperature, a full sort, the first token past `TOP_P` kept, a draw.

    Returns ids, their probabilities, and the negative entropy that ranks positions.
    """
    z = logits.float() / TEMPERATURE
    ranked, order = z.sort(-1, descending=True)
    drop = torch.softmax(ranked, -1).cumsum(-1) > TOP_P
    drop = torch.cat([torch.zeros_like(drop[:, :1]), drop[:, :-1]], -1)
    drop = torch.zeros_like(drop).scatter(-1, order, drop)
    p = torch.softmax(z.masked_fill(drop, torch.finfo(z.dtype).min), -1)
    ids = torch.multinomial(p, 1)
    return (
        ids.squeeze(-1),
        p.gather(-1, ids).squeeze(-1),
        (p * torch.log(p + 1e-10)).sum(-1),
    )


_STATS_BYTES = 4 * 4 + 8


def _vocab_stats(r: int, models: Models) -> Case:
    def fault(inputs: Inputs, out: Any) -> str | None:
        some = _sampled_rows(r)
        return _stats_fault(inputs[0][some], out[1][some], out[2][some])

    return Case(
        op="vocab_stats",
        shape={"R": r, "V": models.vocab},
        bytes_=2 * r * models.vocab + _STATS_BYTES * r,
        flops=0,
        exponentials=r * models.vocab,
        inputs=lambda device: (_logits(device, r, models),),
        providers={"eager": _eager_stats, "ours": lambda z: tuple(ck.vocab_stats(z))},
        fault=fault,
    )


def _head_stats(r: int, models: Models) -> Case:
    def eager(hidden: Tensor, head: Tensor) -> tuple[Any, Tensor]:
        logits = _eager_head(hidden, head)
        return _eager_stats(logits), logits

    def fault(inputs: Inputs, out: Any) -> str | None:
        some = _sampled_rows(r)
        stats, logits = out
        return _logits_fault(inputs[0][some], inputs[1], logits[some]) or _stats_fault(
            logits[some], stats[1][some], stats[2][some]
        )

    v, h = models.vocab, models.hidden
    return Case(
        op="head_stats",
        shape={"R": r, "H": h, "V": v},
        bytes_=2 * (v * h + r * h + r * v) + _STATS_BYTES * r,
        flops=2 * r * h * v,
        exponentials=r * v,
        inputs=lambda device: _hidden_and_head(device, r, models),
        providers={"eager": eager, "ours": lambda hidden, head: ck.head_stats(hidden, head)},
        fault=fault,
    )


def _expected_embedding(r: int, models: Models) -> Case:
    v, d = models.table_rows, models.width

    def fault(inputs: Inputs, out: Any) -> str | None:
        some = _sampled_rows(r)
        return _soft_fault(inputs[0][some], inputs[1], v, out[some])

    return Case(
        op="expected_embedding",
        shape={"R": r, "V": v, "D": d},
        bytes_=2 * (r * v + v * d + r * d),
        flops=2 * r * v * d,
        exponentials=r * v,
        inputs=lambda device: (_logits(device, r, models), _table(device, models)),
        providers={
            "eager": _eager_soft,
            "ours": lambda z, e: ck.expected_embedding(z, e, valid_vocab=v),
        },
        fault=fault,
    )


def _top_k(r: int, models: Models) -> Case:
    v, d, k = models.table_rows, models.width, 3

    def eager(z: Tensor, e: Tensor) -> Tensor:
        top = z[:, :v].float().topk(k, -1)
        p = torch.softmax(top.values, -1).to(e.dtype).unsqueeze(-1)
        return (p * e[top.indices]).sum(-2)

    def fault(inputs: Inputs, out: Any) -> str | None:
        some = _sampled_rows(r)
        z = inputs[0][some, :v].double()
        # bfloat16 logits tie at the edge, and a topk may keep either: ours keeps the lowest id,
        # so only rows with one answer are compared
        ranked = z.sort(-1, descending=True).values
        clear = ranked[:, k - 1] > ranked[:, k]
        cut = z.masked_fill(z < ranked[:, k - 1 : k], float("-inf"))
        return _soft_fault(cut[clear], inputs[1], v, out[some][clear])

    return Case(
        op="expected_embedding top-3",
        shape={"R": r, "V": v, "D": d},
        bytes_=2 * (r * v + k * r * d + r * d),
        flops=2 * r * k * d,
        exponentials=r * k,
        inputs=lambda device: (_logits(device, r, models), _table(device, models)),
        providers={
            "eager": eager,
            "ours": lambda z, e: ck.expected_embedding(z, e, valid_vocab=v, top_k=k),
        },
        fault=fault,
    )


def _sample_tokens(r: int, models: Models) -> Case:
    def inputs(device: torch.device) -> Inputs:
        seeds = torch.arange(r, device=device)
        counters = torch.zeros(r, 2, dtype=torch.int32, device=device)
        return _logits(device, r, models), seeds, counters

    def ours(z: Tensor, seeds: Tensor, counters: Tensor) -> tuple[Tensor, Tensor]:
        return ck.sample_tokens(z, seeds, counters, temperature=TEMPERATURE, top_p=TOP_P)

    def fault(inputs: Inputs, out: Any) -> str | None:
        some = _sampled_rows(r)
        return _sample_fault(inputs[0][some], out[0][some], out[1][some])

    return Case(
        op="sample_tokens",
        shape={"R": r, "V": models.vocab},
        bytes_=2 * r * models.vocab + (8 + 8 + 8 + 4) * r,
        flops=0,
        exponentials=r * models.vocab,
        inputs=inputs,
        providers={"eager": lambda z, seeds, counters: _nucleus(z)[:2], "ours": ours},
        fault=fault,
    )


def _eager_choice(entropy: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
    """Prefix means and the block of lowest mean where everything is masked."""
    k = torch.arange(1, entropy.shape[-1] + 1, device=entropy.device)
    means = (entropy * masked).cumsum(-1) / k
    return means, means[..., -1].argmin(-1, keepdim=True)


def _block_entropy(r: int) -> Case:
    blocks = max(1, r // BLOCK)

    def inputs(device: torch.device) -> Inputs:
        generator = torch.Generator(device).manual_seed(5)
        entropy = torch.rand(1, blocks, BLOCK, generator=generator, device=device) * 4
        return entropy, torch.ones_like(entropy, dtype=torch.bool)

    def ours(entropy: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
        choice = ck.block_entropy(entropy, masked)
        return choice.prefix_mean, choice.block

    def fault(inputs: Inputs, out: Any) -> str | None:
        k = torch.arange(1, BLOCK + 1, device=inputs[0].device)
        means = inputs[0].double().cumsum(-1) / k
        if not bool(((out[0].double() - means).abs() <= 1e-6).all()):
            return "prefix means are off"
        best = means[..., -1]
        lowest = best.amin(-1) + 1e-6
        chosen = best.gather(-1, out[1].long()).squeeze(-1)
        return None if bool((chosen <= lowest).all()) else "not the block of lowest mean"

    return Case(
        op="block_entropy",
        shape={"N": 1, "C": blocks, "B": BLOCK},
        bytes_=blocks * BLOCK * (4 + 1 + 4) + 4 + 4 + 4,
        flops=0,
        exponentials=0,
        inputs=inputs,
        providers={"eager": _eager_choice, "ours": ours},
        fault=fault,
        dtype="float32",
    )


def _vocabulary_stage(r: int, models: Models, length: int) -> Case:
    """All that a step does with the vocabulary: head, statistics, choice, soft tokens of it.

    The provider ``full_canvas`` is what a decoder without conditioning does for the same step:
    logits of the whole canvas of `length` positions, softmax, sorted nucleus and a draw for each.
    """
    v, d, h = models.table_rows, models.width, models.hidden
    blocks = r // BLOCK

    def inputs(device: torch.device) -> Inputs:
        canvas, head = _hidden_and_head(device, length, models)
        masked = torch.ones(1, blocks, BLOCK, dtype=torch.bool, device=device)
        return canvas, head, _table(device, models), masked

    def rows_of(block: Tensor) -> Tensor:
        first = block.flatten().long() * BLOCK
        return (first.unsqueeze(-1) + torch.arange(BLOCK, device=block.device)).flatten()

    def eager(canvas: Tensor, head: Tensor, table: Tensor, masked: Tensor) -> tuple[Tensor, ...]:
        logits = _eager_head(canvas[: blocks * BLOCK], head)
        entropy = _eager_stats(logits)[1]
        block = _eager_choice(entropy.view(masked.shape), masked)[1]
        return logits, entropy, block, _eager_soft(logits[rows_of(block)], table)

    def ours(canvas: Tensor, head: Tensor, table: Tensor, masked: Tensor) -> tuple[Tensor, ...]:
        stats, logits = ck.head_stats(canvas[: blocks * BLOCK], head)
        block = ck.block_entropy(stats.entropy.view(masked.shape), masked).block
        soft = ck.expected_embedding(logits, table, rows=rows_of(block), valid_vocab=v)
        return logits, stats.entropy, block, soft

    def full_canvas(canvas: Tensor, head: Tensor, table: Tensor, masked: Tensor) -> Any:
        return _nucleus(_eager_head(canvas, head))

    def fault(inputs: Inputs, out: Any) -> str | None:
        canvas, head, table, masked = inputs
        if len(out) == 3:  # full_canvas: ids, probabilities, negative entropies
            some = _sampled_rows(length)
            logits = _eager_head(canvas[some], head)
            return _sample_fault(logits, out[0][some], out[1][some])
        logits, entropy, block, soft = out
        some = _sampled_rows(blocks * BLOCK)
        wrong = _logits_fault(canvas[some], head, logits[some])
        if wrong:
            return wrong
        log_p = torch.log_softmax(logits[some].double(), -1)
        exact = -(log_p.exp() * log_p).sum(-1)
        if not bool(((entropy[some].double() - exact).abs() <= 1e-3).all()):
            return "entropy off by more than 1e-3 nats"
        mean = entropy.view(blocks, BLOCK).double().mean(-1)
        if not bool((mean[block.long().flatten()] <= mean.amin() + 1e-5).all()):
            return "not the block of lowest mean"
        return _soft_fault(logits[rows_of(block)], table, v, soft)

    n = blocks * BLOCK
    return Case(
        op="vocabulary stage",
        shape={"L": length, "R": n, "H": h, "V": models.vocab, "D": d},
        # head and table once; the logits are scratch: not compulsory for a fused stage
        bytes_=2 * (models.vocab * h + n * h + v * d + BLOCK * d),
        flops=2 * n * h * models.vocab + 2 * BLOCK * v * d,
        exponentials=n * models.vocab + BLOCK * v,
        inputs=inputs,
        providers={"full_canvas": full_canvas, "eager": eager, "ours": ours},
        fault=fault,
    )
