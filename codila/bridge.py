"""How the vocabularies of a DLM and of an AR model correspond, so that an id means one token.

The rows of the AR model's tables are put in the order of the DLM's ids when it is loaded
(:mod:`codila.models.ar`); the bridge says which row each id gets, and which ids stay out.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor


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

    @classmethod
    def between(
        cls,
        dlm_tokenizer: Any,
        ar_tokenizer: Any,
        *,
        mask_token_id: int,
        ar_rows: int,
        boundaries: tuple[int, int] | None = None,
        expand_token_id: int | None = None,
    ) -> VocabularyBridge:
        """The bridge of two tokenizers, token by token.

        A token goes to the AR row that its own string has there, the DLM's end token to the AR
        model's. Control tokens that the AR model does not have (the mask, a begin token) and ids
        without a token are banned; ``expand_token_id`` gets a row that no token uses. What only the
        AR model has can be neither written nor conditioned on. So ids that collide (Dream's mask is
        Qwen3's ``</tool_response>``, DreamOn's expand its ``<think>``) never mix two tokens.

        Args:
            ar_rows: rows of the AR model's embedding table.
            boundaries: AR ids of the opening and closing token, which stay apart.

        Raises:
            ValueError: ordinary tokens that the AR model does not have, or no row for ``expand``.
        """
        ours = {i: token for token, i in dlm_tokenizer.get_vocab().items()}
        theirs = {token: i for token, i in ar_tokenizer.get_vocab().items() if i < ar_rows}
        control = set(dlm_tokenizer.added_tokens_decoder)
        row = {i: theirs[token] for i, token in ours.items() if token in theirs}
        end, their_end = dlm_tokenizer.eos_token_id, ar_tokenizer.eos_token_id
        if end is not None and their_end is not None:
            row.setdefault(end, their_end)
        missing = sorted(i for i in ours if i not in row and i not in control)
        if missing:
            names = [ours[i] for i in missing[:5]]
            raise ValueError(
                f"the AR model's vocabulary does not extend the DLM's: {len(missing)} tokens are "
                f"missing, first {names}"
            )
        row.pop(mask_token_id, None)
        if expand_token_id is not None:
            taken = {*theirs.values(), *(boundaries or ())}
            spare = next((r for r in reversed(range(ar_rows)) if r not in taken), None)
            if spare is None:
                raise ValueError(
                    f"the AR model's {ar_rows} rows are all in use, and the expand token "
                    f"{expand_token_id} needs one of its own: resize_token_embeddings first"
                )
            row[expand_token_id] = spare
        valid = max(row) + 1
        banned = [i for i in range(valid) if i not in row]
        row |= {i: 0 for i in banned if i >= ar_rows}  # any row will do
        return cls(
            valid_vocab=valid,
            banned_ids=tuple(banned),
            id_map={i: r for i, r in sorted(row.items()) if i != r},
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
