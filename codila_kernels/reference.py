"""The mathematics of every op in plain PyTorch: specification, test oracle and CPU path.

Notation: R rows, V vocabulary columns, D embedding width, N batch rows, C candidate blocks,
B block size, T temperature. Statistics are in nats.

Conventions shared by all ops
-----------------------------
* **Precision.** float64 logits are processed in float64 (the oracle); anything else in float32.
* **Order of transforms.** Banned ids and columns >= `valid_vocab` become -inf, then temperature,
  then top-k, then nucleus, then arg-max, softmax and entropy.
* **Ties** go to the lowest id, always.
* **T = 0** is arg-max: a one-hot distribution, entropy 0, top-1 probability 1, lse = max.
* **Rows without a distribution** (all -inf, or holding a NaN or +inf in a usable column) give NaN
  statistics and embeddings, and the id -1: never a plausible number.
* **Subtract, then scale.** With m the row's maximum, every exponent is ``(z - m) / T``. Scaling
  first rounds ``z / T`` to a spacing that grows with the offset of the logits.

The vocabulary is walked in pieces on the CPU: the sums of a row are plain sums over its pieces once
the row's maximum is known, what a pass holds stays in the cache, and a low-precision table is
upcast a piece at a time. Ops that rank whole rows walk groups of rows instead. A device with fast
memory and slow launches takes everything as one piece.

Nothing here waits for the host and no shape depends on data, so a CUDA graph can hold any of it.
Arguments are checked in `codila_kernels.ops`; these functions trust them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

NEG_INF = float("-inf")
INF = float("inf")
NAN = float("nan")

# exp(x) is exactly 0 below this in float32 (x < -104) and in float64 (x < -746), so clamping the
# exponent here changes no term of sum(e * x) and keeps 0 * -inf out of it.
_EXPONENT_FLOOR = -800.0

# Sampling weights are integers in units of 2^-40 of the row's maximum: integer sums are exact in
# any order, so a token cannot depend on how a device orders a scan. 2^40 * V fits int64 up to
# V = 2^22, and the rounding (4.5e-13 of the maximum) is far below float32's own.
_WEIGHT_SCALE = 2.0**40

# Entries of the first, short list in which the CPU path looks for a nucleus, and entries beyond
# the k largest among which it looks for their equals.
_SHORT_LIST = 64

# Columns per piece of the vocabulary on the CPU: 80 float32 rows of them are 5 MiB, which a cache
# holds, and products this long lose nothing to their ends.
_PIECE = 16384

# Elements of a table or head that are upcast at a time: 64 MiB of float32, a piece of Qwen3-0.6B's.
_UPCAST = 2**24

# Rows that the CPU ranks at a time; whole rows in int64, several of them at once, are what costs.
_ROW_GROUP = 8


class VocabStats(NamedTuple):
    """Statistics of each row of logits, all [R]; float32 (float64 for float64 logits), nats.

    They hold all a second pass over the same rows needs, without the rounding of `lse`: the shift
    ``m`` is the logit at `top1_id`, and ``log l = -log(top1_prob)`` as the largest term of ``l``
    is exactly 1.
    """

    lse: Tensor
    """``log sum_v exp(z_v / T)``; the maximum logit where T = 0."""
    entropy: Tensor
    """``-sum_v p_v log p_v`` in nats."""
    top1_id: Tensor
    """int64; the lowest id that attains the maximum, -1 for a row without a distribution."""
    top1_prob: Tensor
    """Probability of `top1_id`."""
    margin: Tensor
    """Probability of the first minus that of the second id; 0 for a tie."""


class BlockChoice(NamedTuple):
    """Which blocks to decode next; see `block_entropy_reference`."""

    prefix_mean: Tensor
    """[N, C, B]; entry k-1 is h(k), the mean over the first k masked positions; +inf past them."""
    block: Tensor
    """[N, m] int32; chosen candidate blocks, best first, -1 where there is none."""
    length: Tensor
    """[N, m] int32; how many masked positions of each to fill, 0 where there is none."""
    fallback_slot: Tensor
    """[N] int32; flat C*B index of the one position to fill instead, or -1."""


@functools.cache  # never evicted: a captured CUDA graph keeps reading the tensor
def _index_tensor(ids: tuple[int, ...], device: torch.device) -> Tensor:
    return torch.tensor(ids, dtype=torch.int64, device=device)


def usable_logits(
    logits: Tensor, valid_vocab: int | None = None, banned_ids: Sequence[int] | None = None
) -> Tensor:
    """Logits [R, V] in the working precision, cut to `valid_vocab`, banned ids at -inf."""
    if valid_vocab is not None and valid_vocab < logits.shape[-1]:
        logits = logits[..., :valid_vocab]
    z = logits if logits.dtype == torch.float64 else logits.float()
    banned = tuple(i for i in banned_ids or () if i < z.shape[-1])
    return z.index_fill(-1, _index_tensor(banned, z.device), NEG_INF) if banned else z


def _pieces(width: int, device: torch.device, depth: int = 1) -> Iterator[slice]:
    """Columns 0 .. `width` in pieces; those that multiply a table `depth` wide suit its upcast."""
    size = max(1, min(_PIECE, _UPCAST // depth)) if device.type == "cpu" else width
    for start in range(0, width, size):
        yield slice(start, min(start + size, width))


def _usable_pieces(
    logits: Tensor,
    valid_vocab: int | None,
    banned_ids: Sequence[int] | None,
    rows: Tensor | None = None,
    depth: int = 1,
) -> Iterator[tuple[slice, Tensor]]:
    """`usable_logits` of the chosen rows, piece by piece, with the columns of each."""
    width = logits.shape[-1] if valid_vocab is None else min(valid_vocab, logits.shape[-1])
    for columns in _pieces(width, logits.device, depth):
        part = logits[:, columns]
        part = part if rows is None else part.index_select(0, rows)
        banned = [i - columns.start for i in banned_ids or () if i >= columns.start]
        yield columns, usable_logits(part, None, banned)


def _row_groups(logits: Tensor) -> list[slice]:
    """Groups of rows for what ranks whole rows: one group but on the CPU, where memory is slow."""
    count = logits.shape[0]
    if logits.device.type != "cpu" or torch.compiler.is_compiling() or count <= _ROW_GROUP:
        return [slice(0, count)]
    return [slice(start, start + _ROW_GROUP) for start in range(0, count, _ROW_GROUP)]


def _row_maximum(pieces: Iterator[tuple[slice, Tensor]]) -> tuple[Tensor, Tensor]:
    """Maximum of each row, NaN where it holds one, and the lowest id that attains it."""
    _, z = next(pieces)
    m, top1 = z.max(dim=-1)  # first index among equals, also on CUDA
    for columns, z in pieces:
        top, at = z.max(dim=-1)
        top1 = torch.where(top > m, at + columns.start, top1)
        m = torch.maximum(m, top)
    return m, top1


def _upcasts(table: Tensor, dtype: torch.dtype, differentiable: bool) -> Iterator[Tensor]:
    """The pieces of a table's rows in `dtype`.

    Without gradients all share one buffer: fresh memory for each costs more than the conversion.
    """
    count, depth = table.shape
    scratch: Tensor | None = None
    for part in _pieces(count, table.device, depth):
        piece = table[part]
        if piece.dtype == dtype:
            yield piece
        elif differentiable:
            yield piece.to(dtype)
        else:
            scratch = torch.empty_like(piece, dtype=dtype) if scratch is None else scratch
            yield scratch[: len(piece)].copy_(piece)


def _needs_gradient(*tensors: Tensor) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def vocab_stats_reference(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    valid_vocab: int | None = None,
    banned_ids: Sequence[int] | None = None,
) -> VocabStats:
    """Statistics of each row: ``d = (z - m)/T``, ``l = sum e^d``, ``t = sum d e^d``.

    ``lse = m/T + log l``, ``entropy = log l - t/l``, ``top1_prob = 1/l``. The entropy never meets
    `lse`, so the offset of the logits does not enter its rounding.
    """
    m, top1 = _row_maximum(_usable_pieces(logits, valid_vocab, banned_ids))
    usable = m.isfinite()
    top1_id = top1.masked_fill(~usable, -1)
    if temperature == 0:
        one = torch.ones_like(m).masked_fill_(~usable, NAN)
        return VocabStats(m * one, one - 1, top1_id, one, one.clone())
    total, t, runner_up = (torch.zeros_like(m) for _ in range(3))
    for columns, z in _usable_pieces(logits, valid_vocab, banned_ids):
        d = (z - m.unsqueeze(-1)).div_(temperature)
        e = d.exp()
        total = total + e.sum(-1)
        t = t + d.clamp_min_(_EXPONENT_FLOOR).mul_(e).sum(-1)
        place = (top1 - columns.start).unsqueeze(-1)  # of the arg-max, where this piece holds it
        inside = place.clamp(0, e.shape[-1] - 1)
        e.scatter_(-1, inside, e.gather(-1, inside).masked_fill_(inside == place, 0.0))
        runner_up = torch.maximum(runner_up, e.amax(-1))
    log_total = total.log()
    return VocabStats(
        lse=m / temperature + log_total,
        entropy=(log_total - t / total).clamp_min_(0.0),
        top1_id=top1_id,
        top1_prob=total.reciprocal(),
        margin=(1.0 - runner_up) / total,
    )


def head_stats_reference(
    hidden: Tensor,
    head: Tensor,
    bias: Tensor | None = None,
    *,
    temperature: float = 1.0,
    valid_vocab: int | None = None,
    banned_ids: Sequence[int] | None = None,
) -> tuple[VocabStats, Tensor]:
    """``logits = hidden @ head.T + bias`` in the model's dtype, and the statistics of them.

    A CPU multiplies low-precision matrices at a few percent of its float32 speed, so there the head
    is upcast piece by piece, and only the result is rounded to the model's dtype. The logits come
    back as stored (no column is masked), and the statistics are those of the stored, rounded
    values, so that whoever reads the logits later agrees with them.
    """
    low = hidden.dtype in (torch.float16, torch.bfloat16)
    inputs = (hidden, head) if bias is None else (hidden, head, bias)
    if low and hidden.device.type == "cpu" and not _needs_gradient(*inputs):
        h, b = hidden.float(), None if bias is None else bias.float()
        logits = hidden.new_empty(hidden.shape[0], head.shape[0])
        parts = _pieces(head.shape[0], head.device, head.shape[1])
        for part, weight in zip(parts, _upcasts(head, h.dtype, False), strict=True):
            logits[:, part] = F.linear(h, weight, None if b is None else b[part])
    else:
        logits = F.linear(hidden, head, bias)
    stats = vocab_stats_reference(
        logits.detach(), temperature=temperature, valid_vocab=valid_vocab, banned_ids=banned_ids
    )
    return stats, logits


def _at_least(z: Tensor, edge: Tensor, count: Tensor | int) -> Tensor:
    """Mask of the `count` largest entries of a row, given the smallest kept value, [R, 1].

    Everything above the edge, and as many of its equals, from the lowest id, as there is room
    for. The edge is a *value*, which does not depend on how a sort or `torch.topk` orders ties.
    """
    above = z > edge
    equal = z == edge
    room = count - above.sum(-1, keepdim=True)
    return above | (equal & (equal.cumsum(-1) <= room))


def _listed_ids(z: Tensor, k: int) -> Tensor | None:
    """`largest_ids` from a short list; None where the equals of the smallest kept run past it."""
    size = min(k + _SHORT_LIST, z.shape[-1])
    values, ids = z.topk(size, dim=-1)
    if size < z.shape[-1] and bool((values[:, k - 1] == values[:, -1]).any()):
        return None
    ids, by_id = ids.sort(dim=-1)
    largest = values.gather(-1, by_id).argsort(dim=-1, descending=True, stable=True)[:, :k]
    return ids.gather(-1, largest).sort(dim=-1).values


def largest_ids(z: Tensor, k: int) -> Tensor:
    """Ids [R, k] of the k largest entries of each row, ascending by id, ties to the lowest id."""
    if z.device.type == "cpu" and not torch.compiler.is_compiling():
        ids = _listed_ids(z, k)
        if ids is not None:
            return ids
    edge = z.topk(k, dim=-1).values[..., -1:]
    position = _at_least(z, edge, k).cumsum(-1)
    nth = torch.arange(1, k + 1, device=z.device).expand(z.shape[0], k).contiguous()
    return torch.searchsorted(position, nth).clamp_max_(z.shape[-1] - 1)


def expected_embedding_reference(
    logits: Tensor,
    table: Tensor,
    *,
    rows: Tensor | None = None,
    top_k: int | None = None,
    stats: VocabStats | None = None,
    temperature: float = 1.0,
    valid_vocab: int | None = None,
    banned_ids: Sequence[int] | None = None,
) -> Tensor:
    """The soft token ``sum_v p_v E_v`` with ``p = softmax(z / T)``, in the table's dtype.

    With `top_k` the softmax runs over the k largest logits only; ``top_k = 1`` and ``T = 0`` are
    the hard token ``E[argmax z]``. `stats` (of all rows of `logits`) gives the arg-max, and with
    it the shift; the normaliser is summed again, together with the product, so that stale
    statistics cost accuracy or give NaN at worst, never a wrong total.

    Differentiable with respect to `table`, and to `logits` if they require it.
    """
    hint = None
    if stats is not None:
        hint = stats.top1_id if rows is None else stats.top1_id.index_select(0, rows)
    width = logits.shape[-1] if valid_vocab is None else min(valid_vocab, logits.shape[-1])

    if top_k is not None and 1 < top_k < width and temperature != 0:
        logits = logits if rows is None else logits.index_select(0, rows)
        soft = [
            _top_k_embedding(
                usable_logits(logits[group], valid_vocab, banned_ids), table, top_k, temperature
            )
            for group in _row_groups(logits)
        ]
        return torch.cat(soft)

    if hint is None:
        m, ids = _row_maximum(_usable_pieces(logits.detach(), valid_vocab, banned_ids, rows))
        unusable = ~m.isfinite()
    else:
        ids, unusable = hint.clamp_min(0), hint < 0
    if top_k == 1 or temperature == 0:
        return F.embedding(ids, table).masked_fill(unusable.unsqueeze(-1), NAN)
    if hint is not None:
        at = (torch.arange(len(ids), device=ids.device) if rows is None else rows, ids)
        m = logits.detach()[at].to(torch.promote_types(logits.dtype, torch.float32))

    parts = _usable_pieces(logits, valid_vocab, banned_ids, rows, depth=table.shape[1])
    upcasts = _upcasts(table[:width], m.dtype, _needs_gradient(logits, table))
    total, soft_sum = m.new_zeros(()), m.new_zeros(())
    for (_, z), rows_of_table in zip(parts, upcasts, strict=True):
        e = (z - m.unsqueeze(-1)).div_(temperature).exp_()
        total = total + e.sum(-1, keepdim=True)
        soft_sum = soft_sum + e @ rows_of_table
    return (soft_sum / total).to(table.dtype)


def _top_k_embedding(z: Tensor, table: Tensor, top_k: int, temperature: float) -> Tensor:
    """``softmax`` over the `top_k` largest logits of each row, times their rows of the table."""
    ids = largest_ids(z.detach(), top_k)
    m = z.detach().amax(-1, keepdim=True)  # NaN or -inf also where the ids miss it
    p = torch.softmax((z.gather(-1, ids) - m) / temperature, dim=-1)
    picked = F.embedding(ids, table).to(p.dtype)
    return (p.unsqueeze(-2) @ picked).squeeze(-2).to(table.dtype)


def block_entropy_reference(
    entropy: Tensor,
    masked: Tensor,
    *,
    mode: str = "static",
    blocks: int = 1,
    threshold: float | None = None,
) -> BlockChoice:
    """Running entropy means ``h_i(k)`` of C candidate blocks, and which to decode.

    ``h_i(k) = (1/k) sum_{j<=k} H[R_i(j)]`` with ``R_i`` the masked positions of block i, ascending.

    *static* takes the `blocks` blocks with the lowest mean over all their masked positions, each
    in full. *dynamic* gives a block the longest prefix whose mean is within the threshold,
    ``k_i = max{k : h_i(k) <= tau}`` (running means are not monotone: the maximum, not the first
    failure), and takes the blocks with the largest ``k_i``, ties by the lower mean, then leftmost.
    Where the best ``k_i`` is at most 1 nothing is chosen (block -1, length 0) and `fallback_slot`
    is the masked position of lowest entropy of all candidates.

    A NaN entropy counts as +inf: such a position is decoded last, but it is decoded. A row with
    nothing masked has block -1, length 0, fallback -1.
    """
    n, c, b = entropy.shape
    h = entropy if entropy.dtype == torch.float64 else entropy.float()
    h = torch.where(h.isnan(), INF, h)
    count = masked.sum(-1)
    order = (~masked).to(torch.uint8).argsort(dim=-1, stable=True)
    k = torch.arange(1, b + 1, device=h.device)
    inside = k <= count.unsqueeze(-1)
    # float64 sums of a few float32 entropies are exact but for extreme ranges: order cannot matter
    running = h.gather(-1, order).cumsum(-1, dtype=torch.float64)
    prefix_mean = (running / k).to(h.dtype).masked_fill_(~inside, INF)

    if mode == "static":
        length = count
    else:
        assert threshold is not None
        length = ((prefix_mean <= threshold) & inside).mul(k).amax(-1)
    key = prefix_mean.gather(-1, (length - 1).clamp_min(0).unsqueeze(-1)).squeeze(-1)
    # a finite stand-in for +inf keeps undecidable blocks ahead of blocks with nothing to choose
    key = key.clamp_max(torch.finfo(h.dtype).max).masked_fill(length == 0, INF)
    ranked = key.argsort(dim=-1, stable=True)
    fallback = torch.full((n,), -1, dtype=torch.int32, device=h.device)
    if mode == "dynamic":
        by_length = length.gather(-1, ranked).argsort(dim=-1, stable=True, descending=True)
        ranked = ranked.gather(-1, by_length)
        flat = masked.reshape(n, c * b)
        cost = h.reshape(n, c * b).clamp_max(torch.finfo(h.dtype).max).masked_fill(~flat, INF)
        falls_back = length.amax(-1) <= 1
        slot = cost.argmin(-1).to(torch.int32)
        fallback = torch.where(falls_back & flat.any(-1), slot, fallback)
        length = length.masked_fill(falls_back.unsqueeze(-1), 0)

    taken = min(blocks, c)
    block = ranked[:, :taken]
    chosen = length.gather(-1, block)
    block = block.masked_fill(chosen == 0, -1)
    if blocks > c:
        block = F.pad(block, (0, blocks - c), value=-1)
        chosen = F.pad(chosen, (0, blocks - c), value=0)
    return BlockChoice(prefix_mean, block.to(torch.int32), chosen.to(torch.int32), fallback)


_PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_PHILOX_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_PHILOX_ROUNDS = 10
_LOW32 = 0xFFFFFFFF


@functools.cache
def _philox_constants(device: torch.device) -> tuple[Tensor, Tensor]:
    multipliers = torch.tensor(_PHILOX_MULTIPLIERS, dtype=torch.int64, device=device)
    rounds = torch.arange(_PHILOX_ROUNDS, dtype=torch.int64, device=device).view(-1, 1, 1)
    steps = torch.tensor(_PHILOX_KEY_STEPS, dtype=torch.int64, device=device) * rounds
    return multipliers, steps


def philox_4x32(counter: Tensor, key: Tensor) -> Tensor:
    """Philox-4x32-10 of counters [R, 4] and keys [R, 2] (32-bit words in int64): words [R, 4].

    Salmon, Moraes, Dror and Shaw, *Parallel random numbers: as easy as 1, 2, 3*, SC 2011. A
    product of 32-bit words wraps int64, which leaves its 64 bits right; only the sign of the
    shift needs masking.
    """
    multipliers, steps = _philox_constants(counter.device)
    keys = (key + steps) & _LOW32
    even, odd = counter[:, 0::2], counter[:, 1::2]  # (c0, c2) and (c1, c3)
    for round_key in keys.unbind(0):
        product = (even * multipliers).flip(-1)
        even = ((product >> 32) ^ odd ^ round_key) & _LOW32
        odd = product
    return torch.stack((even, odd & _LOW32), dim=-1).flatten(-2)


def philox_uniform(seeds: Tensor, counters: Tensor) -> Tensor:
    """One uniform float64 in [0, 1) per row: the first Philox word times 2^-32.

    Key: low and high word of `seeds` [R] int64; counter: (position, step, 0, 0) from `counters`
    [R, 2] int32.
    """
    key = torch.stack((seeds & _LOW32, (seeds >> 32) & _LOW32), dim=-1)
    counter = F.pad(counters.to(torch.int64) & _LOW32, (0, 2))
    return philox_4x32(counter, key)[:, 0].to(torch.float64) * 2.0**-32


def sample_tokens_reference(
    logits: Tensor,
    seeds: Tensor,
    counters: Tensor,
    *,
    temperature: float = 1.0,
    top_p: float | None = None,
    top_k: int | None = None,
    valid_vocab: int | None = None,
    banned_ids: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """One token per row and its probability under the distribution it was drawn from.

    The kept set is the `top_k` largest logits, and of those the shortest run, from the largest,
    whose renormalised probability reaches `top_p` (the token that crosses p is kept). With u the
    row's uniform, the token is the first id, ascending, whose cumulative kept probability exceeds
    ``u * (total kept)``. Weights are integers (units of 2^-40 of the row's maximum), so sums are
    exact and a row's token depends on its own logits, seed and counter only.
    """
    groups = _row_groups(logits)
    if len(groups) > 1:
        drawn = [
            sample_tokens_reference(
                logits[group],
                seeds[group],
                counters[group],
                temperature=temperature,
                top_p=top_p,
                top_k=top_k,
                valid_vocab=valid_vocab,
                banned_ids=banned_ids,
            )
            for group in groups
        ]
        return torch.cat([ids for ids, _ in drawn]), torch.cat([probs for _, probs in drawn])
    z = usable_logits(logits, valid_vocab, banned_ids)
    m, top1 = z.max(dim=-1)
    unusable = ~m.isfinite()
    if temperature == 0:
        prob = torch.ones_like(m).masked_fill_(unusable, NAN)
        return top1.masked_fill(unusable, -1), prob
    m = m.unsqueeze(-1)
    width = z.shape[-1]
    weight = _sampling_weights(z, m, temperature)
    limit = top_k if top_k and top_k < width else None
    nucleus = top_p if top_p is not None and top_p < 1.0 else None
    if nucleus is not None:
        edge, count = _nucleus_edge(z, m, weight, temperature, limit, nucleus)
        weight.mul_(_at_least(z, edge, count))
    elif limit is not None:
        weight.mul_(_at_least(z, z.topk(limit, dim=-1).values[:, -1:], limit))

    reached = weight.cumsum(-1)
    total = reached[:, -1:].to(torch.float64)
    # reached > u * total, for integers, is reached > floor(u * total)
    target = (philox_uniform(seeds, counters).unsqueeze(-1) * total).to(torch.int64)
    ids = torch.searchsorted(reached, target, right=True).clamp_max_(width - 1)
    prob = (weight.gather(-1, ids) / total).squeeze(-1).to(z.dtype)
    return ids.squeeze(-1).masked_fill_(unusable, -1), prob.masked_fill_(unusable, NAN)


def _sampling_weights(z: Tensor, m: Tensor, temperature: float) -> Tensor:
    """``e^((z - m)/T)`` in units of 2^-40, int64; the floor, e^-64, is 0 in these units."""
    d = (z - m).div_(temperature).clamp_min_(-64.0)  # spares the CPU's slow subnormal results
    return d.exp_().mul_(_WEIGHT_SCALE).to(torch.int64)


def _nucleus_edge(
    z: Tensor, m: Tensor, weight: Tensor, temperature: float, limit: int | None, top_p: float
) -> tuple[Tensor, Tensor]:
    """Smallest kept logit and number of kept entries, both [R, 1], of the nucleus.

    The probabilities are those of the `limit` largest logits, of all where it is None. Host
    memory can be asked whether a short list holds every nucleus without making a device wait, and
    a full sort costs the CPU several times as much: there a short list is tried first. The sums
    are exact integers, so the answer is the same either way.
    """
    whole = weight.sum(-1, keepdim=True) if limit is None else None
    longest = z.shape[-1] if limit is None else limit
    short = whole is not None and z.device.type == "cpu" and longest > _SHORT_LIST
    for size in (_SHORT_LIST, longest) if short else (longest,):
        ranked = z.topk(size, dim=-1).values
        reached = _sampling_weights(ranked, m, temperature).cumsum_(-1)
        total = reached[:, -1:] if whole is None else whole
        bound = (total.to(torch.float64) * top_p).ceil().to(torch.int64)
        before = torch.searchsorted(reached, bound)  # entries whose run falls short of p
        if short and bool((before < size).all()):
            break
    last = before.clamp_max_(size - 1)
    return ranked.gather(-1, last), last + 1
