"""What ``model.generate(..., custom_generate=codila.generate)`` of transformers hands over.

transformers prepares a call before it passes it on: it completes its ``GenerationConfig`` with
defaults, and adds processors and criteria made from that. What it made up is taken out here, so
that only what somebody asked for is left. Read in transformers 5.17 and 5.24.
"""

from __future__ import annotations

from typing import Any

from transformers import GenerationConfig as TransformersConfig
from transformers.generation import (
    EosTokenCriteria,
    MaxLengthCriteria,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

_FILLED_IN: dict[str, Any] = {"temperature": 1.0, "top_p": 1.0, "top_k": 50}
_DEFAULT_NEW_TOKENS = 20

IGNORED = ("position_ids", "cache", "past_key_values", "use_cache", "logits_to_keep")
"""Keywords that transformers adds to every call and that a canvas has no use for."""


LEFT_TO_TRANSFORMERS = ("max_new_tokens", "min_new_tokens", "suppress_tokens", "eos_token_id")
"""Options of both configurations that come in transformers'."""


def options_of(config: TransformersConfig, prompt_length: int) -> dict[str, Any]:
    """Options of :class:`codila.GenerationConfig` that a transformers config holds.

    ``temperature``, ``top_p``, ``top_k``, ``max_new_tokens`` (or ``max_length``, less the prompt),
    ``min_new_tokens``, ``suppress_tokens`` and ``eos_token_id``; the values that transformers fills
    in by itself count as unset.
    """
    options: dict[str, Any] = {}
    for name, filler in _FILLED_IN.items():
        value = getattr(config, name, None)
        if value is not None and value != filler:
            options[name] = value
    for name in LEFT_TO_TRANSFORMERS:
        value = getattr(config, name, None)
        if value is not None:
            options[name] = value
    longest = config.max_length
    if "max_new_tokens" not in options and longest is not None:
        if longest not in (_DEFAULT_NEW_TOKENS, prompt_length + _DEFAULT_NEW_TOKENS):
            options["max_new_tokens"] = longest - prompt_length
    return options


def asked_processors(processors: Any, config: TransformersConfig) -> list[Any]:
    """``logits_processor`` without the warpers that repeat the config's own sampling."""
    own = {
        TemperatureLogitsWarper: ("temperature", "temperature"),
        TopKLogitsWarper: ("top_k", "top_k"),
        TopPLogitsWarper: ("top_p", "top_p"),
    }

    def repeats(processor: Any) -> bool:
        names = own.get(type(processor))
        return names is not None and getattr(processor, names[0]) == getattr(config, names[1])

    return [p for p in processors or () if not repeats(p)]


def asked_criteria(criteria: Any, config: TransformersConfig) -> list[Any]:
    """``stopping_criteria`` without those of length and end, which the canvas has itself."""

    def made_up(criterion: Any) -> bool:
        if isinstance(criterion, MaxLengthCriteria):
            return criterion.max_length == config.max_length
        return isinstance(criterion, EosTokenCriteria)

    return [c for c in criteria or () if not made_up(c)]
