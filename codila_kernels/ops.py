"""Public ops: argument checks at the door, then dispatch to Triton or to plain PyTorch.

``impl`` selects who computes:

* ``"auto"``: the Triton kernel where the tensors are on a CUDA or ROCm device and the op has a
  kernel for the arguments, plain PyTorch otherwise;
* ``"triton"``: the Triton kernel, or an error that says why it cannot run (it also runs on CPU
  tensors where ``TRITON_INTERPRET=1`` was set before triton was imported);
* ``"torch"``: the reference in `codila_kernels.reference`.

An explicit choice never falls back to another. Tensors are checked for shape, dtype and device
only; their values are not looked at, as that would make the host wait.
"""

from __future__ import annotations

import importlib.util
import math
import os
from collections.abc import Sequence

import torch
from torch import Tensor

from codila_kernels import checks, operators, reference
from codila_kernels.reference import BlockChoice, VocabStats

__all__ = [
    "BlockChoice",
    "VocabStats",
    "block_entropy",
    "expected_embedding",
    "head_stats",
    "sample_tokens",
    "vocab_stats",
]

MAX_TOP_K = 64
"""Largest `top_k` of `expected_embedding`: what a kernel can keep in registers per row."""

MAX_SLOTS = 2048
"""Most positions C * B of a batch row of `block_entropy` that the kernel holds in one tile."""

_IMPLS = ("auto", "triton", "torch")
_TRITON_INSTALLED = importlib.util.find_spec("triton") is not None  # found, not imported


def vocab_stats(
    logits: Tensor,
    *,
    temperature: float = 1.0,
    valid_vocab: int | None = None,
    banned_ids: Sequence[int] | None = None,
    impl: str = "auto",
    check_finite: bool = False,
) -> VocabStats:
    """Log-sum-exp, entropy, arg-max, its probability and its margin of each row of logits.

    Args:
        logits: [R, V], any float dtype.
        temperature: T, 0 or at least 1e-6; 0 is arg-max (entropy 0, probability 1).
        valid_vocab: columns from this one on do not take part.
        banned_ids: host sequence of columns that do not take part.
        check_finite: raise for rows without a distribution, at the price of a device sync,
            instead of returning NaN statistics and the id -1 for them.

    Returns:
        `VocabStats` of [R] tensors, nats, float32 (float64 for float64 logits), ids int64. No
        gradient flows through them.

    Raises:
        TypeError, ValueError: arguments that do not fit; with `check_finite`, rows that are all
            -inf or hold NaN or +inf.
    """
    banned = checks.check_logits("vocab_stats", logits, temperature, valid_vocab, banned_ids)
    logits = logits.detach()
    width = logits.shape[1] if valid_vocab is None else valid_vocab
    if _use_triton("vocab_stats", impl, logits, (logits,)):
        stats = VocabStats(*operators.vocab_stats(logits, temperature, width, banned))
    else:
        stats = reference.vocab_stats_reference(
            logits, temperature=temperature, valid_vocab=valid_vocab, banned_ids=banned
        )
    if check_finite:
        _raise_unusable_rows(stats)
    return stats


def head_stats(
    hidden: Tensor,
    head: Tensor,
    bias: Tensor | None = None,
    *,
    temperature: float = 1.0,
    valid_vocab: int | None = None,
    banned_ids: Sequence[int] | None = None,
    impl: str = "auto",
    check_finite: bool = False,
) -> tuple[VocabStats, Tensor]:
    """A language-model head on candidate rows, and the statistics of the logits as stored.

    ``logits = hidden @ head.T + bias``, summed in float32 (float64 for float64) and rounded to
    hidden's dtype; the statistics are those of the rounded values.

    Args:
        hidden: [R, H] hidden states, any float dtype.
        head: [V, H] weight of the head, dtype of `hidden`.
        bias: [V], dtype of `hidden`, or None.
        temperature, valid_vocab, banned_ids, check_finite: as in `vocab_stats`.

    Returns:
        `VocabStats`, and the logits [R, V] in hidden's dtype, no column masked. The logits are
        differentiable with respect to `hidden`, `head` and `bias`, the statistics are not.

    Raises:
        TypeError, ValueError: arguments that do not fit.
    """
    name = "head_stats"
    checks.check_float_matrix(name, "hidden", hidden)
    checks.check_float_matrix(name, "head", head, least_rows=1)
    if hidden.shape[1] != head.shape[1]:
        raise ValueError(
            f"{name}: hidden is {list(hidden.shape)} and head is {list(head.shape)}; the second "
            "sizes must agree (head is [V, H], as in torch.nn.Linear.weight)"
        )
    checks.check_same(name, "hidden", hidden, "head", head)
    if bias is not None:
        checks.check_tensor(name, "bias", bias)
        if bias.shape != (head.shape[0],):
            raise ValueError(
                f"{name}: bias is {list(bias.shape)}, expected [{head.shape[0]}], one per head row"
            )
        checks.check_same(name, "hidden", hidden, "bias", bias)
    checks.check_temperature(name, temperature)
    banned = checks.check_columns(name, head.shape[0], valid_vocab, banned_ids)
    if _use_triton(name, impl, hidden, (hidden,)):  # head and bias have its dtype
        width = head.shape[0] if valid_vocab is None else valid_vocab
        *statistics, logits = operators.head_stats(hidden, head, bias, temperature, width, banned)
        stats = VocabStats(*statistics)
    else:
        stats, logits = reference.head_stats_reference(
            hidden, head, bias, temperature=temperature, valid_vocab=valid_vocab, banned_ids=banned
        )
    if check_finite:
        _raise_unusable_rows(stats)
    return stats, logits


def expected_embedding(
    logits: Tensor,
    table: Tensor,
    *,
    rows: Tensor | None = None,
    top_k: int | None = None,
    stats: VocabStats | None = None,
    temperature: float = 1.0,
    valid_vocab: int | None = None,
    banned_ids: Sequence[int] | None = None,
    impl: str = "auto",
) -> Tensor:
    """The soft token of each row: ``softmax(logits / T) @ table``.

    Args:
        logits: [R, V], any float dtype.
        table: [Va, D] embedding rows by id. Where V > Va, `valid_vocab` <= Va must say which
            columns take part.
        rows: [N] integer tensor of logits rows to condition on, None for all in order. Its values
            are not checked.
        top_k: renormalise over the 1..64 largest logits; 1 is the hard token; None is soft.
        stats: `VocabStats` of all R rows, of these logits under the same `valid_vocab` and
            `banned_ids` (any temperature): saves finding the maximum.
        temperature: T, 0 or at least 1e-6; 0 is the hard token.
        valid_vocab, banned_ids: as in `vocab_stats`.

    Returns:
        [N or R, D] in the table's dtype; NaN for rows without a distribution. Differentiable with
        respect to `table`, and to `logits` if they require it.

    Raises:
        TypeError, ValueError: arguments that do not fit.
    """
    name = "expected_embedding"
    banned = checks.check_logits(name, logits, temperature, valid_vocab, banned_ids)
    checks.check_float_matrix(name, "table", table, least_rows=1)
    checks.check_device(name, "logits", logits, "table", table)
    width = logits.shape[1] if valid_vocab is None else valid_vocab
    if width > table.shape[0]:
        given = f"{logits.shape[1]} columns" if valid_vocab is None else f"valid_vocab={width}"
        raise ValueError(
            f"{name}: logits with {given} but a table of {table.shape[0]} rows; pass "
            f"valid_vocab={table.shape[0]} or less, so that every column has a row"
        )
    if rows is not None:
        checks.check_integer_vector(name, "rows", rows)
        checks.check_device(name, "logits", logits, "rows", rows)
    if top_k is not None:
        allowed = f"from 1 to {MAX_TOP_K}, or None for soft"
        checks.check_count(name, "top_k", top_k, 1, MAX_TOP_K, allowed)
    if stats is not None and not isinstance(stats, VocabStats):
        raise TypeError(f"{name}: stats is a {type(stats).__name__}, expected VocabStats")
    if stats is not None and stats.top1_id.shape != (logits.shape[0],):
        raise ValueError(
            f"{name}: stats are of {list(stats.top1_id.shape)} rows, logits have "
            f"{logits.shape[0]}; pass the statistics of all logits rows, not of the chosen ones"
        )
    if stats is not None:
        checks.check_integer_vector(name, "stats.top1_id", stats.top1_id)
        checks.check_device(name, "logits", logits, "stats.top1_id", stats.top1_id)
    if _use_triton(name, impl, logits, (logits, table)):
        top1_id = None if stats is None else stats.top1_id
        kept = 1 if temperature == 0 else top_k
        if kept == 1 or (kept is not None and kept < width):
            return operators.expected_embedding_top_k(
                logits, table, rows, top1_id, kept, temperature, width, banned
            )
        return operators.expected_embedding(
            logits, table, rows, top1_id, temperature, width, banned
        )
    return reference.expected_embedding_reference(
        logits,
        table,
        rows=rows,
        top_k=top_k,
        stats=stats,
        temperature=temperature,
        valid_vocab=valid_vocab,
        banned_ids=banned,
    )


def block_entropy(
    entropy: Tensor,
    masked: Tensor,
    *,
    mode: str = "static",
    blocks: int = 1,
    threshold: float | None = None,
    impl: str = "auto",
) -> BlockChoice:
    """Running entropy means of candidate blocks, and which of them to decode next.

    Args:
        entropy: [N, C, B] entropies in nats of C candidate blocks of B positions.
        masked: [N, C, B] bool; only these positions count, the entropy of others is ignored.
        mode: ``"static"``, the blocks of lowest mean, in full; ``"dynamic"``, the longest prefix
            whose running mean is within `threshold`, ties by lower mean, then leftmost.
        blocks: m >= 1, blocks per row.
        threshold: nats, required by ``"dynamic"``; may be infinite or negative.

    Returns:
        `BlockChoice`: prefix means [N, C, B] (float32, +inf past the last masked position), and
        int32 `block` [N, m] (-1: none), `length` [N, m] (masked positions to fill) and
        `fallback_slot` [N] (flat C*B index of the one position to fill where no prefix of two or
        more is within the threshold, else -1). A chosen length of 1 belongs to the sampler of the
        diffusion model.

    Raises:
        TypeError, ValueError: arguments that do not fit.
    """
    name = "block_entropy"
    checks.check_tensor(name, "entropy", entropy)
    checks.check_tensor(name, "masked", masked)
    if entropy.ndim != 3 or masked.shape != entropy.shape:
        raise ValueError(
            f"{name}: entropy is {list(entropy.shape)} and masked is {list(masked.shape)}; both "
            "must be [N, C, B] (batch rows, candidate blocks, positions of a block)"
        )
    if entropy.dtype not in checks.FLOATS or masked.dtype != torch.bool:
        raise TypeError(
            f"{name}: entropy is {entropy.dtype} and masked is {masked.dtype}, expected a float "
            "tensor and a torch.bool tensor"
        )
    if 0 in entropy.shape[1:]:
        raise ValueError(f"{name}: entropy is {list(entropy.shape)}; C and B must be at least 1")
    checks.check_device(name, "entropy", entropy, "masked", masked)
    if mode not in ("static", "dynamic"):
        raise ValueError(f"{name}: mode={mode!r}, expected 'static' or 'dynamic'")
    checks.check_count(name, "blocks", blocks, 1, None, "of at least 1")
    if threshold is not None and not checks.is_number(threshold):
        raise TypeError(f"{name}: threshold={threshold!r}, expected a number of nats or None")
    if mode == "dynamic" and (threshold is None or math.isnan(threshold)):
        raise ValueError(f"{name}: mode='dynamic' needs a threshold in nats, got {threshold!r}")
    if mode == "static" and threshold is not None:
        raise ValueError(
            f"{name}: threshold={threshold!r} has no meaning in mode='static'; leave it out, or "
            "use mode='dynamic'"
        )
    entropy = entropy.detach()
    in_one_tile = entropy.shape[1] * entropy.shape[2] <= MAX_SLOTS
    if _use_triton(name, impl, entropy, (entropy,) if in_one_tile else None):
        limit = 0.0 if threshold is None else threshold
        return BlockChoice(
            *operators.block_entropy(entropy, masked, mode == "dynamic", blocks, limit)
        )
    return reference.block_entropy_reference(
        entropy, masked, mode=mode, blocks=blocks, threshold=threshold
    )


def sample_tokens(
    logits: Tensor,
    seeds: Tensor,
    counters: Tensor,
    *,
    temperature: float = 1.0,
    top_p: float | None = None,
    top_k: int | None = None,
    valid_vocab: int | None = None,
    banned_ids: Sequence[int] | None = None,
    impl: str = "auto",
) -> tuple[Tensor, Tensor]:
    """A token per row under temperature, then top-k, then nucleus, from the row's own seed.

    A row's token is a function of its logits, its seed and its counter: it does not depend on the
    batch, on the other rows, or on torch's generator.

    Args:
        logits: [R, V], any float dtype.
        seeds: [R] int64.
        counters: [R, 2] int32: position from the row's first real token, and step. No two draws
            of a seed may share them.
        temperature: T, 0 or at least 1e-6; 0 is arg-max with probability 1.
        top_p: nucleus in (0, 1], None or 1 for off: the fewest of the largest probabilities that
            sum to `top_p` or more. Ties at the edge go to the lowest id.
        top_k: keep the k largest, 0 <= k <= V, 0 or None for off. Ties as above.
        valid_vocab, banned_ids: as in `vocab_stats`.

    Returns:
        ids [R] int64 (-1 for a row without a distribution), and the probability of each under
        the distribution it was drawn from, [R], float32 (float64 for float64 logits).

    Raises:
        TypeError, ValueError: arguments that do not fit.
    """
    name = "sample_tokens"
    banned = checks.check_logits(name, logits, temperature, valid_vocab, banned_ids)
    r, v = logits.shape
    checks.check_exactly(name, "seeds", seeds, (r,), torch.int64, ", one per row")
    meaning = ": position and step of each row"
    checks.check_exactly(name, "counters", counters, (r, 2), torch.int32, meaning)
    checks.check_device(name, "logits", logits, "seeds", seeds)
    checks.check_device(name, "logits", logits, "counters", counters)
    if top_p is not None:
        number = checks.is_number(top_p)
        if not number or not 0.0 < top_p <= 1.0:
            raise (ValueError if number else TypeError)(
                f"{name}: top_p={top_p!r}, expected 0 < top_p <= 1, or None for off"
            )
    if top_k is not None:
        allowed = f"from 0 (off) to the {v} columns, or None"
        checks.check_count(name, "top_k", top_k, 0, v, allowed)
    logits = logits.detach()
    if _use_triton("sample_tokens", impl, logits, (logits,)):
        width = v if valid_vocab is None else valid_vocab
        return operators.sample_tokens(
            logits, seeds, counters, temperature, top_p, top_k, width, banned
        )
    return reference.sample_tokens_reference(
        logits,
        seeds,
        counters,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        valid_vocab=valid_vocab,
        banned_ids=banned,
    )


# --- dispatch --------------------------------------------------------------------------------


def _use_triton(
    op: str, impl: str, anchor: Tensor, kernel_inputs: tuple[Tensor, ...] | None
) -> bool:
    """Whether the Triton kernel computes; raises where it was asked for and cannot.

    `kernel_inputs` are the floating-point tensors that the kernel would read, None where the op
    has no kernel for these arguments.
    """
    if impl not in _IMPLS:
        raise ValueError(f"{op}: impl={impl!r}, expected one of {', '.join(map(repr, _IMPLS))}")
    if impl == "torch":
        return False
    obstacle = _triton_obstacle(anchor, kernel_inputs)
    if impl == "auto":
        return obstacle is None and anchor.device.type == "cuda"
    if obstacle is not None:
        raise RuntimeError(f"{op}: impl='triton' cannot run: {obstacle}; use impl='auto'")
    return True


def _triton_obstacle(anchor: Tensor, kernel_inputs: tuple[Tensor, ...] | None) -> str | None:
    if kernel_inputs is None:
        return "there is no Triton kernel for this op with these arguments"
    if any(tensor.dtype == torch.float64 for tensor in kernel_inputs):
        return "the kernels read float32, bfloat16 and float16, and a tensor is float64"
    if not _TRITON_INSTALLED:
        return "the package 'triton' is not installed"
    if anchor.device.type != "cuda" and not _interpreting():
        return (
            f"the tensors are on {anchor.device.type!r}, and the kernels run on CUDA and ROCm "
            "devices (on the CPU only under TRITON_INTERPRET=1)"
        )
    return None


def _interpreting() -> bool:
    return os.environ.get("TRITON_INTERPRET", "0") == "1"


def _raise_unusable_rows(stats: VocabStats) -> None:
    unusable = (stats.top1_id < 0).nonzero().flatten().tolist()
    if unusable:
        raise ValueError(
            f"rows {unusable[:8]}{' ...' if len(unusable) > 8 else ''} have no distribution: all "
            "usable logits are -inf, or one is NaN or +inf"
        )
