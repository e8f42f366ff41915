"""From the DLM's logits to the AR model's input: the vocabulary bridge and the soft tokens.

``e_j = sum_v pi_j[v] * E[v]`` (paper, section 3.2), with pi the DLM's untempered marginal over the
columns that mean a token on both sides. Where a position is already known, pi is one-hot and the
soft token is that token's own embedding.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor

from codila_kernels import VocabStats, expected_embedding


@dataclasses.dataclass(frozen=True)
class VocabularyBridge:
    """How ids of the DLM and rows of the AR model's tables correspond.

    Attributes:
        valid_vocab: DLM ids ``>= valid_vocab`` have no AR row (padding of the DLM's vocabulary).
        banned_ids: DLM ids that no distribution may contain: the mask token.
        suppressed_ids: DLM ids that the AR model may not write (control tokens on its side).
        id_map: DLM id -> AR row, where the two differ.
    """

    valid_vocab: int
    banned_ids: tuple[int, ...]
    suppressed_ids: tuple[int, ...] = ()
    id_map: dict[int, int] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("banned_ids", "suppressed_ids"):
            object.__setattr__(self, name, tuple(sorted(set(getattr(self, name)))))
        for dlm_id in self.id_map:
            if not 0 <= dlm_id < self.valid_vocab:
                raise ValueError(
                    f"id_map has DLM id {dlm_id}, outside the {self.valid_vocab} bridged ids"
                )

    def ar_rows(self) -> Tensor | None:
        """AR row of every bridged DLM id ``[valid_vocab]``; None where it is the identity."""
        if not self.id_map:
            return None
        rows = torch.arange(self.valid_vocab)
        for dlm_id, ar_row in self.id_map.items():
            rows[dlm_id] = ar_row
        return rows

    def to_json(self) -> dict[str, Any]:
        out = dataclasses.asdict(self)
        out["id_map"] = {str(k): v for k, v in self.id_map.items()}
        return out

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> VocabularyBridge:
        return cls(
            valid_vocab=int(data["valid_vocab"]),
            banned_ids=tuple(data["banned_ids"]),
            suppressed_ids=tuple(data.get("suppressed_ids", ())),
            id_map={int(k): int(v) for k, v in data.get("id_map", {}).items()},
        )


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
