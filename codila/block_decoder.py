"""The AR model over one block: ``[window, <think>, e_1 .. e_B, </think>, x_1 .. x_{B-1}]``.

The position of ``</think>`` predicts ``x_1``, the position of ``x_j`` predicts ``x_{j+1}``
(paper, Fig. 2). Training (teacher forcing) and decoding (KV cache) share the layout below.
Position ids count from 0 in every block: the AR model knows nothing of where the block stands.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from codila.bridge import VocabularyBridge
from codila.replay import constant

Sampler = Callable[[int, Tensor], Tensor]
"""``(j, logits [M, valid_vocab]) -> ids [M]`` in the DLM's ids, for position j of each block."""


class BlockKeys:
    """Keys and values of M blocks, in the place of a transformers cache; slots are allocated once.

    An update writes the next slots and hands out a view of those written so far: nothing is copied
    together, and nothing is allocated after the first block of a shape.
    """

    is_compileable = False

    def __init__(self, slots: int) -> None:
        self.slots, self.length = slots, 0
        self.layers: list[tuple[Tensor, Tensor]] = []

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: Any, **__: Any) -> Any:
        if layer_idx == len(self.layers):
            shape = (*key.shape[:2], self.slots, key.shape[3])
            self.layers.append((key.new_empty(shape), value.new_empty(shape)))
        end = self.length + key.shape[2]
        held = self.layers[layer_idx]
        for slots, new in zip(held, (key, value), strict=True):
            slots[:, :, self.length : end] = new
        return held[0][:, :, :end], held[1][:, :, :end]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.length

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return self.length

    def get_mask_sizes(self, query_length: Any, layer_idx: int) -> tuple[int, int]:
        return self.length + int(query_length), 0


class BlockDecoder:
    """Decodes blocks of B tokens with any causal LM of transformers.

    Args:
        model: causal LM; its input embeddings and LM head are used through ``bridge``.
        bridge: which DLM id is which row of the tables.
        boundaries: AR ids of the opening and closing token, or None to leave both out.
        window: how many soft tokens left and right of a block the model is fed in front of it.

    Raises:
        ValueError: an AR table with fewer rows than the bridge or the boundaries need.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        bridge: VocabularyBridge,
        boundaries: tuple[int, int] | None,
        window: tuple[int, int] = (0, 0),
    ) -> None:
        self.model, self.bridge, self.boundaries = model, bridge, boundaries
        self.window = window
        causal_lm: Any = model
        self._body = causal_lm.get_decoder()
        self._embedding = causal_lm.get_input_embeddings()
        self._head = causal_lm.get_output_embeddings()
        order = getattr(model, "codila_order", None)  # see `codila.models.ar.put_in_dlm_order`
        if order is not None:
            self._rows = None
            if boundaries is not None:
                opening, closing = (int((order == row).nonzero()[-1]) for row in boundaries)
                self.boundaries = (opening, closing)
        else:
            rows = bridge.ar_rows()
            self._rows = None if rows is None else rows.to(self._embedding.weight.device)
        needed = max([bridge.valid_vocab - 1, *bridge.id_map.values(), *(boundaries or ())]) + 1
        have = int(self._embedding.weight.size(0))
        if have < needed:
            raise ValueError(
                f"the AR model has {have} embedding rows, the bridge needs {needed}: "
                "give the AR model that codila.json was written for"
            )
        self._keys: dict[tuple[int, int], BlockKeys] = {}
        # transformers 5.24 renamed ``past_key_values`` to ``cache``.
        names = inspect.signature(self._body.forward).parameters
        self.cache_argument = "cache" if "cache" in names else "past_key_values"

    @property
    def table(self) -> Tensor:
        """Input embeddings in the DLM's id order, ``[valid_vocab, D]``."""
        return self._in_dlm_order(self._embedding.weight)

    def layout(self, soft: Tensor, context: Tensor | None = None) -> Tensor:
        """Prefix embeddings ``[M, W + B + 2, D]`` (``B`` without boundaries) of M blocks."""
        parts = [] if context is None else [context]
        if self.boundaries is None:
            parts.append(soft)
        else:
            ids = constant(self.boundaries, soft.device)
            opening, closing = self._embedding(ids).to(soft.dtype)[:, None, None].unbind(0)
            shape = (soft.shape[0], 1, -1)
            parts += [opening.expand(shape), soft, closing.expand(shape)]
        return torch.cat(parts, dim=1)

    def teacher_forced_logits(
        self, soft: Tensor, ids: Tensor, context: Tensor | None = None
    ) -> Tensor:
        """Logits ``[M, B, valid_vocab]`` of every token of M blocks given the true ones before it.

        Args:
            soft: ``[M, B, D]`` soft tokens.
            ids: ``[M, B]`` the blocks' tokens, DLM ids; the last one is not read.
            context: ``[M, W, D]`` soft tokens in front of the opening boundary, or None.
        """
        teacher = self.table[ids[:, :-1]].to(soft.dtype)
        embeds = torch.cat([self.layout(soft, context), teacher], dim=1)
        hidden = self._body(inputs_embeds=embeds, use_cache=False).last_hidden_state
        return self._logits(hidden[:, -ids.shape[1] :])

    @torch.no_grad()
    def decode(
        self,
        soft: Tensor,
        known_ids: Tensor,
        known: Tensor,
        sampler: Sampler,
        *,
        steps: int | None = None,
        context: Tensor | None = None,
    ) -> Tensor:
        """Write M blocks token by token: one prefill, then one cached step per further token.

        Args:
            soft: ``[M, B, D]``.
            known_ids, known: ``[M, B]`` tokens that stand already; they are fed, not sampled.
            sampler: draws the ids of one position.
            steps: positions to write (default B); the rest of the result repeats ``known_ids``.
            context: as in :meth:`teacher_forced_logits`.

        Returns:
            ``[M, B]`` int64 DLM ids.
        """
        out = known_ids.clone()
        steps = soft.shape[1] if steps is None else steps
        prefix = self.layout(soft, context)
        cache = self.new_cache(len(soft), prefix.shape[1] + soft.shape[1] - 1)
        hidden = self._cached(prefix, cache)
        for j in range(steps):
            drawn = sampler(j, self._logits(hidden[:, -1]))
            out[:, j] = torch.where(known[:, j], known_ids[:, j], drawn)
            if j + 1 < steps:
                # an id of -1 (nothing could be drawn) is for the caller to see, not for the table
                token = self._embedding(self._ar_ids(out[:, j].clamp_min(0))).unsqueeze(1)
                hidden = self._cached(token.to(soft.dtype), cache)
        return out

    def new_cache(self, blocks: int, slots: int) -> BlockKeys:
        """Empty keys of a batch of blocks; those of the last batch of that shape, if there was."""
        cache = self._keys.setdefault((blocks, slots), BlockKeys(slots))
        cache.length = 0
        return cache

    @torch.inference_mode()
    def _cached(self, embeds: Tensor, cache: BlockKeys) -> Tensor:
        arguments: dict[str, Any] = {self.cache_argument: cache}
        out = self._body(inputs_embeds=embeds, use_cache=True, **arguments).last_hidden_state
        cache.length += embeds.shape[1]
        return out

    def _ar_ids(self, ids: Tensor) -> Tensor:
        return ids if self._rows is None else self._rows[ids]

    def _in_dlm_order(self, weight: Tensor) -> Tensor:
        if self._rows is None:
            return weight[: self.bridge.valid_vocab]
        return weight.index_select(0, self._rows)

    def _logits(self, hidden: Tensor) -> Tensor:
        bias = getattr(self._head, "bias", None)
        bias = None if bias is None else self._in_dlm_order(bias)
        return nn.functional.linear(hidden, self._in_dlm_order(self._head.weight), bias)
