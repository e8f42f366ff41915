"""The Triton kernels as torch operators ``codila_kernels::*``: schema, fake, device code, gradient.

Registered as operators the kernels are opaque to `torch.compile` (no graph break) and visible to
autograd, profilers and `torch.library.opcheck`. Triton itself is imported by the first call.
Arguments arrive checked by `codila_kernels.ops`; `width` is the number of usable columns. One
module per op.
"""

from codila_kernels.operators.block_entropy import block_entropy
from codila_kernels.operators.expected_embedding import expected_embedding
from codila_kernels.operators.expected_embedding_top_k import expected_embedding_top_k
from codila_kernels.operators.head_stats import head_stats
from codila_kernels.operators.sample_tokens import sample_tokens
from codila_kernels.operators.vocab_stats import vocab_stats

__all__ = [
    "block_entropy",
    "expected_embedding",
    "expected_embedding_top_k",
    "head_stats",
    "sample_tokens",
    "vocab_stats",
]
