"""The ops written down from their definitions, in Python floats, and how far float32 may be off.

Nothing of `codila_kernels` is used here. Sums are `math.fsum`, hence exact up to one rounding.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

U = 2.0**-24
"""Unit roundoff of float32."""


@dataclass(frozen=True)
class Row:
    """The distribution of one row: probabilities by id and the exponents they come from."""

    maximum: float
    exponents: list[float]
    probabilities: list[float]
    lse: float
    entropy: float
    top1_id: int
    top1_prob: float
    margin: float


def distribution(
    logits: Sequence[float],
    temperature: float,
    valid_vocab: int | None = None,
    banned_ids: Sequence[int] = (),
) -> Row | None:
    """The row's distribution, None where there is none."""
    usable = {
        i: z
        for i, z in enumerate(logits)
        if i not in banned_ids and (valid_vocab is None or i < valid_vocab)
    }
    if not usable or any(math.isnan(z) or z == math.inf for z in usable.values()):
        return None
    m = max(usable.values())
    if m == -math.inf:
        return None
    top1 = min(i for i, z in usable.items() if z == m)
    if temperature == 0:
        one_hot = [float(i == top1) for i in range(len(logits))]
        return Row(m, [0.0 if p else -math.inf for p in one_hot], one_hot, m, 0.0, top1, 1.0, 1.0)
    exponents = [(usable.get(i, -math.inf) - m) / temperature for i in range(len(logits))]
    total = math.fsum(math.exp(d) for d in exponents)
    p = [math.exp(d) / total for d in exponents]
    others = [q for i, q in enumerate(p) if i != top1]
    return Row(
        maximum=m,
        exponents=exponents,
        probabilities=p,
        lse=m / temperature + math.log(total),
        entropy=math.fsum(
            q * (math.log(total) - d) for q, d in zip(p, exponents, strict=True) if q
        ),
        top1_id=top1,
        top1_prob=p[top1],
        margin=p[top1] - max(others, default=0.0),
    )


def mean(row: Row, power: int) -> float:
    """``E |d|^power`` of the exponents under the row's own probabilities."""
    pairs = zip(row.probabilities, row.exponents, strict=True)
    return math.fsum(p * abs(d) ** power for p, d in pairs if p)


@dataclass(frozen=True)
class Budget:
    """Worst-case float32 error of each statistic, first order in the unit roundoff.

    An exponent ``(z - m) s`` has four roundings (difference, scale, its reciprocal temperature,
    product), 4u relative; exp2 adds two units in the last place, 4u. A term p is then off by
    ``p (4u |d| + 4u)``. Sums add the depth of their tree in roundings.
    """

    lse: float
    entropy: float
    top1_prob: float
    margin: float
    total: float

    @staticmethod
    def of(row: Row, temperature: float) -> Budget:
        depth = math.ceil(math.log2(max(2, len(row.probabilities)))) + 16
        first, second = mean(row, 1), mean(row, 2)
        total = (4 * first + 4 + depth) * U  # relative, of l
        log_total = -math.log(row.top1_prob)
        return Budget(
            lse=total + (2 * abs(row.maximum / temperature) + 2 * log_total + 4 + abs(row.lse)) * U,
            entropy=2 * total + (4 * log_total + 4 * second + (12 + depth) * first + 4) * U,
            top1_prob=row.top1_prob * (total + 4 * U),
            margin=2 * row.top1_prob * (total + 8 * U) + 4 * U,
            total=total,
        )


def head_logits(hidden: Tensor, head: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x W^T + b`` in float64, before it is rounded to the dtype of the logits."""
    exact = hidden.double() @ head.double().mT
    return exact if bias is None else exact + bias.double()


def head_logits_budget(hidden: Tensor, head: Tensor, bias: Tensor | None, cast: float) -> Tensor:
    """Bound [R, V] on the error of a stored logit, `cast` as in `expected_embedding_budget`.

    A product has one rounding, a sum of H terms and a bias in any order at most H more, each
    relative to the sum of magnitudes; then the result is rounded to its dtype.
    """
    size = head_logits(hidden.abs(), head.abs(), None if bias is None else bias.abs())
    return size * ((hidden.shape[1] + 1) * U * (1 + cast) + cast)


def expected_embedding(rows: Sequence[Row | None], table: Tensor) -> Tensor:
    """``sum_v p_v E_v`` of each row in float64, NaN where there is no distribution."""
    out = torch.full((len(rows), table.shape[1]), math.nan, dtype=torch.float64)
    for index, row in enumerate(rows):
        if row is not None:
            p = torch.tensor(row.probabilities[: table.shape[0]], dtype=torch.float64)
            out[index] = p @ table[: len(p)].double()
    return out


def expected_embedding_budget(
    rows: Sequence[Row | None], table: Tensor, cast: float, additions: int
) -> Tensor:
    """Bound [R, D] on the error of a soft token.

    `cast` is the relative error of rounding a probability, and the result, to the table's dtype
    (0 for float32, where rounding the result costs one more u); `additions` the length of the
    longest chain of float32 additions.
    """
    size = table.double().abs()
    out = torch.zeros((len(rows), table.shape[1]), dtype=torch.float64)
    for index, row in enumerate(rows):
        if row is None:
            continue
        p = torch.tensor(row.probabilities[: len(size)], dtype=torch.float64)
        d = torch.tensor(row.exponents[: len(size)], dtype=torch.float64)
        d = torch.where(p > 0, d.abs(), 0.0)
        total = (4 * mean(row, 1) + 4 + additions) * U
        term = p * (4 * U * d + (4 + additions) * U + total + 2 * cast)
        out[index] = (term @ size[: len(p)]) * (1 + cast) + 2 * U * (p @ size[: len(p)])
    return out


def block_choice(
    entropy: Sequence[Sequence[float]],
    masked: Sequence[Sequence[bool]],
    mode: str,
    blocks: int,
    threshold: float | None,
) -> tuple[list[list[float]], list[tuple[int, int]], int]:
    """Prefix means, [(block, length)] and the fallback slot of one batch row, by plain loops."""
    means: list[list[float]] = []
    for values, mask in zip(entropy, masked, strict=True):
        known = [
            math.inf if math.isnan(h) else h for h, use in zip(values, mask, strict=True) if use
        ]
        means.append([sum(known[:k]) / k for k in range(1, len(known) + 1)])

    options = []  # (sort key, block, length)
    for index, h in enumerate(means):
        if mode == "static":
            if h:
                options.append(((h[-1], index), index, len(h)))
        else:
            assert threshold is not None
            fitting = [k for k in range(1, len(h) + 1) if h[k - 1] <= threshold]
            if fitting:
                k = max(fitting)
                options.append(((-k, h[k - 1], index), index, k))
    options.sort(key=lambda option: option[0])
    chosen = [(block, length) for _, block, length in options[:blocks]]
    fallback = -1
    if mode == "dynamic" and (not chosen or chosen[0][1] <= 1):
        chosen = []
        width = len(masked[0])
        slots = [
            (math.inf if math.isnan(entropy[i][j]) else entropy[i][j], i * width + j)
            for i in range(len(masked))
            for j in range(width)
            if masked[i][j]
        ]
        fallback = min(slots)[1] if slots else -1
    chosen += [(-1, 0)] * (blocks - len(chosen))
    return means, chosen, fallback


def kept_ids(row: Row, top_k: int | None, top_p: float | None) -> list[int]:
    """Ids that top-k and then the nucleus keep, ties to the lowest id."""
    order = sorted(
        (i for i, d in enumerate(row.exponents) if d > -math.inf),
        key=lambda i: (-row.exponents[i], i),
    )
    order = order[: top_k or len(order)]
    if top_p is not None:
        total = math.fsum(row.probabilities[i] for i in order)
        n = 1
        while math.fsum(row.probabilities[i] for i in order[:n]) < top_p * total and n < len(order):
            n += 1
        order = order[:n]
    return sorted(order)


def sampling_weights(logits: Sequence[float], temperature: float) -> list[int]:
    """``e^((z - max)/T)`` of one row in units of 2^-40, rounded down, from exact exponentials."""
    m = max(logits)
    return [int(math.exp((z - m) / temperature) * 2.0**40) for z in logits]


def drawn_token(weights: Sequence[int], kept: Sequence[int], u: float) -> tuple[int, float]:
    """First id of `kept`, ascending, whose cumulative weight exceeds u of the total; its share."""
    total = sum(weights[i] for i in kept)
    target = math.floor(Fraction(u) * total)
    cumulative = 0
    for i in sorted(kept):
        cumulative += weights[i]
        if cumulative > target:
            return i, weights[i] / total
    raise AssertionError("u is not below 1")


def philox_word(counter: Sequence[int], key: Sequence[int]) -> int:
    """First word of Philox-4x32-10 in Python integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        low, high = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (
            (high >> 32) ^ c1 ^ k0,
            high & 0xFFFFFFFF,
            (low >> 32) ^ c3 ^ k1,
            low & 0xFFFFFFFF,
        )
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0
