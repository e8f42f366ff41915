"""Give an already loaded diffusion model `diffusion_generate`, with CoDiLA behind it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from codila.models.bidirectional import BidirectionalLM

_METHOD = "diffusion_generate"
_SHIFTS = {"dream": 1, "llada": 0}


def attach(model: Any, ar_model: Any = None, *, shift: int | None = None) -> Any:
    """Let ``model.diffusion_generate(...)`` decode with CoDiLA; returns ``model``.

    The call takes what Dream's takes, see :func:`codila.integrations.dream.diffusion_generate`.

    Args:
        model: one of codila's models, or any module with ``forward(input_ids, attention_mask,
            position_ids).logits`` whose config has ``mask_token_id`` and ``eos_token_id`` (Dream's
            or LLaDA's own remote code on a transformers that runs it). Of the latter only logits
            of the whole canvas can be had, so it is slower.
        ar_model: an AR model from :func:`codila.load`, or a folder or hub id of one; None leaves
            Dream's own algorithms.
        shift: 1 where row p predicts position p + 1, 0 where it predicts p; needed only for a
            ``model_type`` other than Dream and llada.

    Raises:
        ValueError: a model without a mask token, or of unknown shift.
        CheckpointError: an AR model that was trained for another DLM.
    """
    from codila.integrations.dream import diffusion_generate

    dlm = model if isinstance(model, BidirectionalLM) else ForeignDLM(model, shift)
    if isinstance(ar_model, str | Path):
        from codila.models.ar import load_ar

        ar_model = load_ar(ar_model, dtype=dlm.dtype, device=dlm.device)
    if ar_model is not None:
        ar_model.codila.check_dlm(dlm)

    def method(inputs: Any = None, generation_config: Any = None, **kwargs: Any) -> Any:
        return diffusion_generate(dlm, inputs, generation_config, ar_model=ar_model, **kwargs)

    method.__doc__ = diffusion_generate.__doc__
    detach(model)
    method.replaced = vars(model).get(_METHOD)  # type: ignore[attr-defined]
    setattr(model, _METHOD, method)
    return model


def detach(model: Any) -> Any:
    """Undo `attach`; a model that is not attached stays as it is. Returns ``model``."""
    method = vars(model).get(_METHOD)
    if hasattr(method, "replaced"):
        delattr(model, _METHOD)
        if method.replaced is not None:
            setattr(model, _METHOD, method.replaced)
    return model


class ForeignDLM:
    """A :class:`DiffusionLM` of a module of which only ``forward(...).logits`` is known."""

    lm_head = None  # so `body` returns logits

    def __init__(self, model: Any, shift: int | None = None) -> None:
        self.model, self.config = model, model.config
        family = str(getattr(self.config, "model_type", "")).lower()
        self.shift = _SHIFTS.get(family, -1) if shift is None else shift
        if self.shift not in (0, 1):
            raise ValueError(
                f"model_type {family!r}: give shift=1 where row p of the logits predicts position "
                "p + 1 (as in Dream), shift=0 where it predicts p (as in LLaDA)"
            )
        for name in ("mask_token_id", "eos_token_id"):
            if getattr(self.config, name, None) is None:
                raise ValueError(f"the model's config has no {name}: it is no diffusion model")
        self._accepts = set(inspect.signature(model.forward).parameters)

    @property
    def mask_token_id(self) -> int:
        return int(self.config.mask_token_id)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        eos = self.config.eos_token_id
        return tuple(eos) if isinstance(eos, list | tuple) else (int(eos),)

    @property
    def eos_token_id(self) -> int:
        return self.eos_token_ids[0]

    @property
    def max_length(self) -> int:
        for name in ("max_position_embeddings", "max_sequence_length"):
            if getattr(self.config, name, None):
                return int(getattr(self.config, name))
        raise ValueError("the model's config has neither max_position_embeddings nor its like")

    @property
    def dtype(self) -> torch.dtype:
        return next(self.model.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def body(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """Logits ``[N, L, V]``; the mask reaches ``forward`` as its family takes it."""
        arguments: dict[str, Any] = {}
        if attention_mask is not None:
            keep = attention_mask.to(torch.bool)
            if self.shift:  # Dream's: one row of keys for every query, so that none is empty
                arguments["attention_mask"] = keep[:, None, None, :].expand(
                    -1, 1, input_ids.shape[1], -1
                )
                position_ids = (keep.long().cumsum(-1) - 1).clamp_min(0)
            else:
                arguments["attention_mask"] = keep.long()
        if position_ids is not None and "position_ids" in self._accepts:
            arguments["position_ids"] = position_ids
        return self.model(input_ids, **arguments).logits
