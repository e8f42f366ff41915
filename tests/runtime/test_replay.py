"""What a device is made to do in a step can be recorded, and the host does not wait for it.

CUDA graphs are stood in for by a tape: it records every operation with the tensors that it ran on
and repeats them on those, while no Python of the step runs, and refuses what a capture refuses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tiny_pairs import EOS, MASK, make_ar, make_dlm
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from codila import generation
from codila.generation import GenerationOutput, generate
from codila.replay import Replayed
from codila.step import Step

WAITS = ("item", "_local_scalar_dense", "is_nonzero", "nonzero", "masked_select", "unique")


class NothingIsAsked(TorchDispatchMode):
    """Refuses operations that would wait for a device, or bring it a tensor from the host."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.name().removeprefix("aten::").partition(".")[0]
        assert name not in WAITS, f"{name} waits for the device"
        assert "lift_fresh" not in name, "a tensor is brought from the host"
        if name in ("index", "index_put", "index_put_"):
            indices = [i for i in args[1] if i is not None]
            assert not any(i.dtype == torch.bool for i in indices), "a bool index waits"
        return self.call(func, args, kwargs or {})

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        return func(*args, **kwargs)


class Tape(NothingIsAsked):
    """Records operations, and repeats them on the same memory."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []
        self.replays = 0

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        out = func(*args, **kwargs)
        self.calls.append((func, args, kwargs, out))
        return out

    @torch.inference_mode()
    def replay(self) -> None:
        self.replays += 1
        for func, args, kwargs, out in self.calls:
            again = func(*args, **kwargs)
            outs, news = ((x,) if isinstance(x, Tensor) else x for x in (out, again))
            for held, new in zip(outs, news, strict=True):
                # a view, and what works in place, is the memory that it was
                if isinstance(held, Tensor) and held.data_ptr() != new.data_ptr():
                    held.copy_(new)


@pytest.fixture
def tapes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Tape]]:
    """Generation as on a device, recorded on tapes; nothing may be asked in a step."""
    made: list[Tape] = []

    def record(call: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        tape = Tape()
        made.append(tape)
        with tape:
            result = call()
        for tensor in result if isinstance(result, tuple) else (result,):
            with torch.inference_mode():
                tensor.fill_(0)  # a capture runs nothing: only a replay gives results
        return result, tape.replay

    whole = Step.__call__

    def watched(self: Step, *args: Any, **options: Any) -> Tensor:
        if args[2] == 0:  # the first step makes the constants
            return whole(self, *args, **options)
        with monkeypatch.context() as patch, NothingIsAsked():
            patch.setattr(Tensor, "tolist", lambda self: pytest.fail("tolist waits"))
            patch.setattr(Tensor, "__bool__", lambda self: pytest.fail("bool waits"))
            return whole(self, *args, **options)

    monkeypatch.setattr(generation, "_in_host_memory", lambda tensor: False)
    monkeypatch.setattr(generation, "_recorder", lambda device: record)
    monkeypatch.setattr(Step, "__call__", watched)
    yield made


PROMPTS = torch.tensor([[EOS, EOS, 3], [1, 2, 3], [EOS, 9, 8]])
KEEP = torch.tensor([[0, 0, 1], [1, 1, 1], [0, 1, 1]])
SETTINGS: dict[str, dict[str, Any]] = {
    "static": {"blocks_per_step": 2},
    "spread": {"blocks_per_step": 2, "block_gap": 1},
    "certain": {"skip_certain": True},
    "dynamic": {"schedule": "dynamic", "entropy_threshold": 1.5},
    "ar_likelihood": {"schedule": "ar_likelihood", "joint_threshold": 0.05},
    "ar_frontier": {"schedule": "ar_frontier", "joint_threshold": 0.05},
    "threshold": {"schedule": "threshold", "confidence_threshold": 0.2},
    "no early end": {"min_new_tokens": 9},
    "suppressed": {"suppress_tokens": (5, 6, 7)},
    "ends fill": {"eos_token_id": (3, 4, 5, 6, 7, 8, 9)},
}


def decode(options: dict[str, Any], **more: Any) -> GenerationOutput:
    dlm = make_dlm(2, sharpness=3.0)
    window = options.get("window", (0, 0))
    ar = make_ar(dlm, 2, window=window)
    given = {"max_new_tokens": 22, "temperature": 0.7, "top_p": 1.0, "seed": 0} | options
    given.pop("window", None)
    return generate(dlm, PROMPTS, attention_mask=KEEP, ar_model=ar, **given, **more)


def same(a: GenerationOutput, b: GenerationOutput) -> None:
    assert a.sequences.tolist() == b.sequences.tolist()
    assert a.step_of.tolist() == b.step_of.tolist()
    assert a.num_function_evaluations.tolist() == b.num_function_evaluations.tolist()


@pytest.mark.parametrize("name", [*SETTINGS, "window"])
def test_recorded_steps_write_the_same_tokens_and_ask_nothing(name, tapes, monkeypatch):
    options = SETTINGS.get(name, {"window": (3, 2)})
    recorded = decode(options, cuda_graphs=True)
    monkeypatch.undo()
    plain = decode(options)
    same(recorded, plain)
    bodies = max(plain.num_function_evaluations.tolist())
    assert sum(tape.replays for tape in tapes) >= bodies - 2  # of each shape the first is not


def test_the_host_looks_every_few_steps_and_rows_leave_by_powers_of_two(tapes, monkeypatch):
    looks, rows = [], []
    look = generation._Loop._look

    def counted(self: Any, index: int) -> bool:
        going_on = look(self, index)
        looks.append(index)
        rows.append(len(self.rows))
        return going_on

    monkeypatch.setattr(generation._Loop, "_look", counted)
    masks = torch.tensor([2, 8, 16, 24, 32])[:, None]  # 1, 4, 8, 12 and 16 steps at B = 2
    prompts = torch.where(torch.arange(32) < masks, MASK, 7)
    prompts = torch.cat([torch.tensor([[1, 2, 3]]).expand(5, -1), prompts], dim=1)
    dlm = make_dlm(3)
    options = {"block_size": 2, "max_new_tokens": 0, "eos_fill": False, "seed": 1}
    options |= {"top_p": 1.0}
    out = generate(dlm, prompts, ar_model=make_ar(dlm, 3), **options, cuda_graphs=True)
    assert looks == [3, 7, 11, 15]
    assert rows == [4, 2, 1, 1]  # 3 are left after 4 steps, and one that is done stays with them
    monkeypatch.undo()
    same(out, generate(dlm, prompts, ar_model=make_ar(dlm, 3), **options))


def test_a_row_without_a_token_is_reported_at_the_next_look(tapes):
    def break_row(ids: Tensor, logits: Tensor) -> Tensor:
        return torch.full_like(logits, torch.nan)

    dlm = make_dlm(2)
    with pytest.raises(FloatingPointError, match=r"by step 3 no token .* row 0"):
        generate(
            dlm, PROMPTS[1:2], max_new_tokens=12, schedule="entropy", seed=0, top_p=1.0,
            logits_processor=break_row,
        )  # fmt: skip


def test_other_shapes_are_recorded_anew():
    recorded = []

    def record(call: Callable[[], Any]) -> tuple[Any, Callable[[], None]]:
        tape = Tape()
        recorded.append(tape)
        with tape:
            return call(), tape.replay

    calls = []

    def double(x: Tensor, y: Tensor | None, *, times: int) -> Tensor:
        calls.append(times)
        return x * times if y is None else x * times + y

    function = Replayed(double, record)
    one = torch.ones(3)
    for i in range(1, 4):
        assert function(one * i, None, times=2).tolist() == [2.0 * i] * 3
    assert calls == [2, 2] and len(recorded) == 1
    assert function(one, one, times=2).tolist() == [3.0] * 3
    assert function(one, one, times=3).tolist() == [4.0] * 3
    assert function(one, one * 2, times=3).tolist() == [5.0] * 3
    assert len(recorded) == 2
    plain = Replayed(double, None)
    assert plain(one, None, times=5).tolist() == [5.0] * 3


def test_graphs_need_a_device_that_has_them():
    dlm = make_dlm(2)
    with pytest.raises(ValueError, match="cuda_graphs=True: the models are on 'cpu'"):
        generate(dlm, PROMPTS[1:2], ar_model=make_ar(dlm, 2), max_new_tokens=8, cuda_graphs=True)
