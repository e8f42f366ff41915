"""From the DLM's logits to the AR model's input: the soft tokens.

``e_j = sum_v pi_j[v] * E[v]`` (paper, section 3.2), with pi the DLM's untempered marginal over the
columns that mean a token on both sides. Where a position is already known, pi is one-hot and the
soft token is that token's own embedding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from codila.bridge import VocabularyBridge
from codila_kernels import VocabStats, expected_embedding


def parse_conditioning(conditioning: str) -> int | None:
    """``"soft"`` -> None; ``"top-K"`` -> K (1 is the hard token). Anything else is an error."""
    if conditioning == "soft":
        return None
    kind, _, k = conditioning.partition("-")
    if kind == "top" and k.isdigit() and 1 <= int(k) <= 64:
        return int(k)
    raise ValueError(
        f"conditioning={conditioning!r}: expected 'soft' or 'top-K' with K from 1 to 64"
    )


def window_columns(columns: Tensor, window: tuple[int, int]) -> Tensor:
    """Columns ``[.., left + right]`` beside blocks that stand at ``columns`` ``[.., B]``.

    They may lie outside of the sequence: an end token stands for what is not there.
    """
    left, right = window
    before = torch.arange(-left, 0, device=columns.device)
    after = torch.arange(1, right + 1, device=columns.device)
    return torch.cat([columns[..., :1] + before, columns[..., -1:] + after], dim=-1)


def soft_tokens(
    logits: Tensor,
    table: Tensor,
    bridge: VocabularyBridge,
    *,
    rows: Tensor | None = None,
    stats: VocabStats | None = None,
    top_k: int | None = None,
    temperature: float = 1.0,
    known_ids: Tensor | None = None,
    known: Tensor | None = None,
) -> Tensor:
    """Soft tokens ``[n, D]`` of ``n`` positions (``rows`` of ``logits``, or all of them).

    Args:
        logits: ``[R, Vd]`` DLM logits, already shifted: a row predicts its own position.
        table: ``[>= valid_vocab, D]`` AR embeddings in the DLM's id order.
        rows: ``[n]`` int64 rows of ``logits`` to condition on.
        stats: of all R rows, to save finding the maximum again.
        top_k, temperature: conditioning, apart from any sampling parameter.
        known_ids, known: ``[n]`` token ids and flags; known positions become one-hot.
    """
    soft = expected_embedding(
        logits,
        table,
        rows=rows,
        top_k=top_k,
        stats=stats,
        temperature=temperature,
        valid_vocab=bridge.valid_vocab,
        banned_ids=bridge.banned_ids,
    )
    if known is None:
        return soft
    assert known_ids is not None
    own = table[known_ids.clamp(0, table.shape[0] - 1)]
    return torch.where(known[:, None], own, soft)
