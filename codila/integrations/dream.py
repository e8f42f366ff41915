"""Dream's ``diffusion_generate``: its arguments, its four algorithms, and CoDiLA in their place.

Semantics: ``generation_utils.py`` of Dream, Dream-Coder and DiffuCoder (see docs/families.md for
what differs in the corrected form).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.utils import ModelOutput

from codila.config import GenerationConfig
from codila.generation import generate
from codila.integrations.dream_sampler import ALGORITHMS, corrected, published

SCHEDULE_OF = {"codila": "static", "codila_dynamic": "dynamic"}
"""CoDiLA's schedule by ``alg``."""


@dataclasses.dataclass
class DreamOutput(ModelOutput):
    """``sequences`` ``[N, L]`` int64, and ``history``: the canvas after every step, or None."""

    sequences: Tensor | None = None
    history: tuple[Tensor, ...] | None = None


@dataclasses.dataclass
class DreamOptions:
    """The fields of DreamGenerationConfig that decoding reads, with its defaults.

    Attributes:
        temperature, top_p, top_k: sampling; temperature 0 is arg-max, None is off.
        max_length, max_new_tokens: of the sequence, or of what is behind the prompt (which wins).
        eps, steps: the times ``linspace(1, eps, steps + 1)``.
        alg: "origin", "maskgit_plus", "topk_margin", "entropy"; "codila", "codila_dynamic"; None is
            "codila".
        alg_temp: draws the positions from ``softmax(confidence / alg_temp)``; None, 0: the highest.
        num_return_sequences: continuations of every prompt.
        return_dict_in_generate, output_history: a :class:`DreamOutput`, with every step's canvas.
        mask_token_id, eos_token_id, pad_token_id, bos_token_id: checked against the model's.
        compat: "dream" is token for token as published, None is corrected.
        confidence_source: of the corrected form: "sampled" measures after temperature and nucleus
            (as published), "raw" before.
        seed: of the corrected form; an int (row r draws from seed + r) or one per row.
    """

    temperature: float = 0.0
    top_p: float | None = None
    top_k: int | None = None
    max_length: int | None = None
    max_new_tokens: int | None = None
    eps: float = 1e-3
    steps: int = 512
    alg: str | None = None
    alg_temp: float | None = None
    num_return_sequences: int = 1
    return_dict_in_generate: bool = False
    output_history: bool = False
    mask_token_id: int | None = None
    eos_token_id: Any = None
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    compat: str | None = None
    confidence_source: str = "sampled"
    seed: Any = None

    def __post_init__(self) -> None:
        if self.alg is not None and self.alg not in (*ALGORITHMS, *SCHEDULE_OF):
            raise ValueError(
                f"alg={self.alg!r}: expected one of {[*SCHEDULE_OF, *ALGORITHMS]}, or None"
            )
        if self.compat not in (None, "dream"):
            raise ValueError(f"compat={self.compat!r}: expected 'dream' or None")
        if self.confidence_source not in ("sampled", "raw"):
            raise ValueError(f"confidence_source={self.confidence_source!r}: 'sampled' or 'raw'")
        if self.steps < 1 or not 0 < self.eps < 1 or self.num_return_sequences < 1:
            raise ValueError(
                f"steps={self.steps}, eps={self.eps}, num_return_sequences="
                f"{self.num_return_sequences}: expected at least 1, in (0, 1), at least 1"
            )


_FIELDS = tuple(f.name for f in dataclasses.fields(DreamOptions))
_OF_DREAMS_ALGORITHMS = ("alg_temp", "eps", "compat", "confidence_source")


def diffusion_generate(
    dlm: Any,
    inputs: Tensor,
    generation_config: Any = None,
    *,
    ar_model: Any = None,
    attention_mask: Tensor | None = None,
    generation_tokens_hook_func: Callable[..., Tensor] | None = None,
    generation_logits_hook_func: Callable[..., Tensor] | None = None,
    **kwargs: Any,
) -> DreamOutput | Tensor:
    """Decode as Dream's ``diffusion_generate`` does, or with CoDiLA where ``alg`` is not given.

    Args:
        dlm: a DLM (:class:`codila.models.protocol.DiffusionLM`).
        inputs: ``[N, P]`` int64 prompts, left-padded; masks in them are decoded too.
        generation_config: an object with DreamGenerationConfig's attributes; keywords beat it.
        ar_model: the AR model of CoDiLA.
        attention_mask: ``[N, P]``.
        generation_tokens_hook_func: ``(step, x, logits) -> x``, after every step and once before
            the first with ``step`` and ``logits`` None.
        generation_logits_hook_func: ``(step, x, logits) -> logits`` on the shifted logits
            ``[N, L, V]`` of the canvas.
        kwargs: the fields of :class:`DreamOptions`. With CoDiLA also those of
            :class:`codila.GenerationConfig`; there ``steps`` chooses the smallest trained block
            size that needs no more steps, unless ``block_size`` is given.

    Returns:
        ``[N, L]`` int64, or a :class:`DreamOutput` if ``return_dict_in_generate``.

    Raises:
        ValueError: an unknown argument, an argument that the algorithm does not read, CoDiLA
            without an AR model, special ids that are not the model's.
    """
    given: dict[str, Any] = {}
    if generation_config is not None:
        given = {name: getattr(generation_config, name, None) for name in _FIELDS}
    given = {name: value for name, value in (given | kwargs).items() if value is not None}
    options = DreamOptions(**{k: v for k, v in given.items() if k in _FIELDS})
    rest = {k: v for k, v in given.items() if k not in _FIELDS}
    _check_ids(dlm, options)
    new = _new_tokens(options, inputs)
    hooks = (generation_tokens_hook_func, generation_logits_hook_func)
    if options.alg is None or options.alg in SCHEDULE_OF:
        if any(hook is not None for hook in hooks):
            raise ValueError(
                f"the hooks are called by Dream's algorithms {list(ALGORITHMS)}; with alg="
                f"{options.alg!r} use logits_processor= and streamer="
            )
        out = _codila(dlm, inputs, options, given, rest, ar_model, attention_mask, new)
        sequences, history = out.sequences, out.history
    else:
        if rest:
            raise ValueError(f"{sorted(rest)} are not read by alg={options.alg!r}")
        if new == 0 and not bool((inputs == dlm.mask_token_id).any()):
            raise ValueError("nothing to decode: no new tokens, and no mask in the prompts")
        decode = published if options.compat == "dream" else corrected
        copies = options.num_return_sequences
        ids = inputs.repeat_interleave(copies, dim=0)
        keep = None if attention_mask is None else attention_mask.repeat_interleave(copies, dim=0)
        sequences, history = decode(dlm, ids, keep, new, options, *hooks)
    if not options.return_dict_in_generate:
        return sequences
    return DreamOutput(sequences, tuple(history) if options.output_history else None)


def _codila(
    dlm: Any,
    inputs: Tensor,
    options: DreamOptions,
    given: dict[str, Any],
    rest: dict[str, Any],
    ar_model: Any,
    attention_mask: Tensor | None,
    new: int,
) -> Any:
    default = DreamOptions()
    unread = [n for n in _OF_DREAMS_ALGORITHMS if getattr(options, n) != getattr(default, n)]
    if unread:
        raise ValueError(
            f"{unread} belong to Dream's algorithms {list(ALGORITHMS)}; alg={options.alg!r} is "
            "CoDiLA's and does not read them"
        )
    if ar_model is None:
        raise ValueError(
            f"alg={options.alg!r} needs an AR model: attach(model, ar_model), or choose of "
            f"{list(ALGORITHMS)}"
        )
    shared = ("temperature", "top_p", "top_k", "num_return_sequences", "output_history", "seed")
    rest = {"schedule": SCHEDULE_OF[options.alg or "codila"]} | rest
    rest |= {name: given[name] for name in (*shared, "eos_token_id") if name in given}
    if "steps" in given and "block_size" not in rest:
        sizes = sorted(ar_model.codila.block_sizes)
        enough = [size for size in sizes if size * options.steps >= new]
        rest["block_size"] = enough[0] if enough else sizes[-1]
    return generate(
        dlm,
        inputs,
        ar_model=ar_model,
        attention_mask=attention_mask,
        max_new_tokens=new,
        **rest,
    )


def _check_ids(dlm: Any, options: DreamOptions) -> None:
    mask = options.mask_token_id
    if mask is not None and mask != dlm.mask_token_id:
        raise ValueError(f"mask_token_id={mask}, the model's is {dlm.mask_token_id}")


def _new_tokens(options: DreamOptions, inputs: Tensor) -> int:
    if not isinstance(inputs, torch.Tensor) or inputs.ndim != 2 or inputs.dtype != torch.int64:
        raise TypeError("inputs: expected an int64 tensor [rows, prompt length]")
    if options.max_new_tokens is not None:
        new = int(options.max_new_tokens)
    elif options.max_length is not None:
        new = options.max_length - inputs.shape[1]
    else:
        new = GenerationConfig().max_new_tokens
    if new < 0:
        raise ValueError(
            f"max_new_tokens={options.max_new_tokens}, max_length={options.max_length}: the prompt "
            f"has {inputs.shape[1]} tokens already"
        )
    return new
