"""Pass@1 of a pair on the toy problems: decode, execute, count."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from codila.evaluation.execution import problem_program, run_programs
from codila.evaluation.extraction import has_syntax_error
from codila.evaluation.metrics import wilson_interval
from codila.toy import Problem, problems


@dataclasses.dataclass(frozen=True)
class ToyResult:
    """What :func:`evaluate_toy` measured.

    ``pass_at_1``, ``syntax_error`` are fractions of ``n`` problems; ``interval`` is the 95 % Wilson
    interval of ``pass_at_1``; ``nfe`` and the two ``tokens_per_forward`` are totals over totals
    (up to and with EOS, and over the canvas); ``seconds`` is the time spent decoding. ``passed``
    and ``broken`` hold the outcome of every problem, in order, for paired comparisons.
    """

    n: int
    pass_at_1: float
    interval: tuple[float, float]
    syntax_error: float
    nfe: float
    tokens_per_forward: float
    tokens_per_forward_canvas: float
    seconds: float
    passed: tuple[bool, ...]
    broken: tuple[bool, ...]
    completions: tuple[str, ...]


def encode_prompts(pair: Any, prompts: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
    """Left-padded ids and attention mask ``[N, P]``."""
    rows = [pair.tokenizer(p, add_special_tokens=False).input_ids for p in prompts]
    width = max(map(len, rows))
    ids = torch.full((len(rows), width), pair.dlm.eos_token_id)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        ids[i, width - len(row) :] = torch.tensor(row)
        mask[i, width - len(row) :] = 1
    return ids.to(pair.dlm.device), mask.to(pair.dlm.device)


def completion_text(pair: Any, tokens: torch.Tensor) -> str:
    """The text of generated tokens ``[n]`` up to EOS."""
    ids = tokens.tolist()
    eos = pair.dlm.eos_token_id
    ids = ids[: ids.index(eos)] if eos in ids else ids
    return pair.tokenizer.decode(ids, skip_special_tokens=True)


def evaluate_toy(
    pair: Any,
    *,
    n: int = 100,
    split: str = "test",
    batch_size: int = 32,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> ToyResult:
    """Decode ``n`` problems of ``split`` and run what was written.

    ``options`` are fields of :class:`codila.GenerationConfig`.

    Problem i draws from ``seed + i`` whatever the batch. Problems are batched by prompt length.
    Generated code runs in child processes that guard against accidents, not against attackers.
    """
    chosen = problems(split, n, seed=0)
    order = sorted(range(n), key=lambda i: len(chosen[i].prompt))
    completions = [""] * n
    forwards = up_to_eos = canvas = 0.0
    started = time.perf_counter()
    for first in range(0, n, batch_size):
        members = order[first : first + batch_size]
        ids, mask = encode_prompts(pair, [chosen[i].prompt for i in members])
        out = pair.generate(ids, attention_mask=mask, seed=[seed + i for i in members], **options)
        for row, i in enumerate(members):
            completions[i] = completion_text(pair, out.sequences[row, ids.shape[1] :])
        nfe = out.num_function_evaluations
        forwards += float(nfe.sum())
        up_to_eos += float((out.tokens_per_forward * nfe).sum())
        canvas += float((out.tokens_per_forward_canvas * nfe).sum())
        if progress is not None:
            progress(first + len(members), n)
    seconds = time.perf_counter() - started
    passed = [r.passed for r in run_programs(_programs(chosen, completions), timeout=10.0)]
    broken = [has_syntax_error(p.prompt, c) for p, c in zip(chosen, completions, strict=True)]
    interval = wilson_interval(sum(passed), n)
    return ToyResult(
        n=n,
        pass_at_1=sum(passed) / n,
        interval=(interval.lower, interval.upper),
        syntax_error=sum(broken) / n,
        nfe=forwards / n,
        tokens_per_forward=up_to_eos / forwards,
        tokens_per_forward_canvas=canvas / forwards,
        seconds=seconds,
        passed=tuple(passed),
        broken=tuple(broken),
        completions=tuple(completions),
    )


def time_toy(
    pair: Any, *, n: int = 20, split: str = "test", seed: int = 0, **options: Any
) -> float:
    """Tokens per second at batch 1: tokens up to EOS over decoding time, prompts not counted."""
    tokens = seconds = 0.0
    for i, problem in enumerate(problems(split, n, seed=0)):
        ids, _ = encode_prompts(pair, [problem.prompt])
        started = time.perf_counter()
        out = pair.generate(ids, seed=seed + i, **options)
        seconds += time.perf_counter() - started
        tokens += float((out.tokens_per_forward * out.num_function_evaluations).sum())
    return tokens / seconds


def _programs(chosen: Sequence[Problem], completions: Sequence[str]) -> list[str]:
    return [
        problem_program(p.prompt, c, p.tests, p.entry_point)
        for p, c in zip(chosen, completions, strict=True)
    ]
