"""Vocabulary-sized operations of block-wise diffusion decoding, fused.

The package knows tensors and nothing else: no model, no tokenizer, no config. Importing it loads
neither torch nor triton; torch comes with the first op that is touched, triton with the first
Triton kernel that runs.

==================== =========================================================================
op                   computes
==================== =========================================================================
`vocab_stats`        log-sum-exp, entropy, arg-max, its probability and its margin, per row
`head_stats`         a language-model head and the statistics of the logits it produces
`expected_embedding` ``softmax(logits / T) @ table``: the *soft token* of each row
`block_entropy`      running entropy means of candidate blocks, and which blocks to decode next
`sample_tokens`      a token per row under temperature, top-k and nucleus, from per-row seeds
==================== =========================================================================

Every op takes ``impl="auto" | "triton" | "torch"``; see `codila_kernels.ops`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from codila_kernels.ops import (
        block_entropy,
        expected_embedding,
        head_stats,
        sample_tokens,
        vocab_stats,
    )
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


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from codila_kernels import ops

    value = getattr(ops, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
