"""What launches may depend on: not on the rows, but for the grid, and not on any tensor's values.

The launches are recorded with all their arguments. Those of the first tests run nothing, so that
what looks at a tensor is a launcher and not the interpreter.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from interpreter_checks import INTERPRETER
from torch.utils._python_dispatch import TorchDispatchMode

import codila_kernels as ck

pytestmark = INTERPRETER

VOCABULARY, EMBEDDING = 150, 24  # several tiles and chunks, the last of each not full
ROWS = (1, 16, 17, 80, 300)

# How many row tiles share a program: what a row meets is the same in each.
MAY_FOLLOW_ROWS = {"ROW_TILES", "TILES"}
ROW_COUNTS = {"rows", "whole_stride"}  # where a row is stored, not how it is added up


def inputs(rows: int, first: int = 0) -> dict[str, torch.Tensor]:
    """`rows` rows from the `first` on; row r of each tensor is the same whatever these are."""
    generator = torch.Generator().manual_seed(7)
    most = max(ROWS)
    made = {
        "logits": torch.randn(most, VOCABULARY, generator=generator) * 3,
        "hidden": torch.randn(most, EMBEDDING, generator=generator),
        "entropy": torch.rand(most, 3, 4, generator=generator),
        "masked": torch.rand(most, 3, 4, generator=generator) > 0.3,
        "seeds": torch.arange(most) * 977,
        "counters": torch.arange(2 * most, dtype=torch.int32).view(most, 2),
    }
    made = {name: tensor[first : first + rows] for name, tensor in made.items()}
    made["table"] = torch.randn(VOCABULARY, EMBEDDING, generator=generator)
    return made


def flat(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    return [tensor for part in result for tensor in flat(part)]


def soft_gradients(x, impl):
    logits, table = x["logits"].clone().requires_grad_(), x["table"].clone().requires_grad_()
    ck.expected_embedding(logits, table, impl=impl).sum().backward()
    return [logits.grad]  # that of the table is a sum over the rows


COMMON = {"temperature": 0.7, "valid_vocab": 147, "banned_ids": (3, 64)}
OPS = {
    "vocab_stats": lambda x, impl: ck.vocab_stats(x["logits"], impl=impl, **COMMON),
    "head_stats": lambda x, impl: ck.head_stats(x["hidden"], x["table"], impl=impl, **COMMON),
    "expected_embedding": lambda x, impl: ck.expected_embedding(
        x["logits"], x["table"], impl=impl, **COMMON
    ),
    "expected_embedding top_k": lambda x, impl: ck.expected_embedding(
        x["logits"], x["table"], top_k=3, impl=impl, **COMMON
    ),
    "expected_embedding hard": lambda x, impl: ck.expected_embedding(
        x["logits"], x["table"], temperature=0.0, impl=impl
    ),
    "block_entropy static": lambda x, impl: ck.block_entropy(
        x["entropy"], x["masked"], blocks=2, impl=impl
    ),
    "block_entropy dynamic": lambda x, impl: ck.block_entropy(
        x["entropy"], x["masked"], mode="dynamic", threshold=0.5, impl=impl
    ),
    "sample_tokens": lambda x, impl: ck.sample_tokens(
        x["logits"], x["seeds"], x["counters"], impl=impl, **COMMON
    ),
    "sample_tokens truncated": lambda x, impl: ck.sample_tokens(
        x["logits"], x["seeds"], x["counters"], top_k=20, top_p=0.9, impl=impl, **COMMON
    ),
}
Launch = tuple[str, tuple[int, ...], dict[str, Any]]


@contextlib.contextmanager
def recorded(run: bool = False) -> Iterator[list[Launch]]:
    """(kernel, grid, arguments that are no tensors) of the launches inside, which do not run."""
    from triton.runtime import interpreter

    launches: list[Launch] = []
    launch = interpreter.GridExecutor.__call__

    def record(executor: Any, **arguments: Any) -> None:
        plain = {n: a for n, a in arguments.items() if not isinstance(a, torch.Tensor)}
        launches.append((executor.fn.__name__, tuple(executor.grid), plain))
        if run:
            launch(executor, **arguments)

    with mock.patch.object(interpreter.GridExecutor, "__call__", record):
        yield launches


@pytest.mark.parametrize("op", OPS)
def test_only_the_grid_follows_the_rows(op):
    seen = {}
    for rows in ROWS:
        with recorded() as launches:
            OPS[op](inputs(rows), "triton")
        seen[rows] = [
            (name, grid[1:], {n: a for n, a in plain.items() if n not in ROW_COUNTS})
            for name, grid, plain in launches
        ]
        for name, _, plain in seen[rows]:
            assert "num_warps" in plain, f"{name}: the launch options are not among the arguments"
            assert all(plain.pop(n, 1) <= 5 for n in MAY_FOLLOW_ROWS)
    assert seen[1], "nothing was launched"
    assert all(seen[rows] == seen[1] for rows in ROWS)


@pytest.mark.parametrize("op", OPS)
def test_bits_of_a_row_do_not_depend_on_its_batch(op, quick_device_functions):
    """Nor on its place there: in its tile, in which tile, in which group of tiles."""
    together = flat(OPS[op](inputs(90 if op == "expected_embedding" else 33), "triton"))
    # numpy's product of a tile, which stands in for the matrix instruction, gives a row other bits
    # at other places of the tile: there only its tile and its group are varied
    for row in (0, 16, 80) if op == "expected_embedding" else (0, 5, 16, 32):
        alone = flat(OPS[op](inputs(1, row), "triton"))
        for got, want in zip(together, alone, strict=True):
            assert torch.equal(got[row : row + 1].nan_to_num(7.0), want.nan_to_num(7.0))


@pytest.mark.parametrize("kind", ["soft", "top_k", "hard"])
def test_gradients_are_launched_alike_whatever_the_rows(kind):
    """Those of the table are sums over the rows: they walk them, in one order, and tile as ever."""
    options = {"soft": {}, "top_k": {"top_k": 3}, "hard": {"temperature": 0.0}}[kind]
    walks = {*ROW_COUNTS, "count"}  # how far a walk over rows (or picked table rows) goes
    seen = {}
    for rows in (1, 17, 90):
        x = inputs(rows)
        logits, table = x["logits"].clone().requires_grad_(), x["table"].clone().requires_grad_()
        with recorded(run=True) as launches:  # which ids a gradient meets, it has to know
            out = ck.expected_embedding(logits, table, impl="triton", **options)
            forward = len(launches)
            out.sum().backward()
        assert len(launches) > forward, "the backward launched nothing"
        seen[rows] = [
            (name, {n: a for n, a in plain.items() if n not in walks | MAY_FOLLOW_ROWS})
            for name, _, plain in launches
        ]
    assert seen[1] == seen[17] == seen[90]


class NoLook(TorchDispatchMode):
    """Raises where the host would wait for a value, or a size depends on one."""

    WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.name().removeprefix("aten::").split(".")[0]
        assert not any(name.lstrip("_").startswith(w.lstrip("_")) for w in self.WAITING), name
        if name in ("index", "index_put_"):  # a mask as an index: its count is the size
            assert not any(i is not None and i.dtype == torch.bool for i in args[1]), name
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def no_look() -> Iterator[None]:
    def refuse(tensor: torch.Tensor, *arguments: Any) -> Any:
        raise AssertionError("the host looks at a tensor's values")

    names = ("__bool__", "__int__", "__float__", "__index__", "item", "tolist", "numpy")
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(mock.patch.object(torch.Tensor, name, refuse))
        stack.enter_context(NoLook())
        yield


@pytest.mark.parametrize(
    "look", [lambda x: x.sum().item(), lambda x: x[x > 0], lambda x: bool(x.any())]
)
def test_a_look_at_values_is_found(look):
    with no_look(), pytest.raises(AssertionError):
        look(torch.ones(3))


@pytest.mark.parametrize("op", [*OPS, "gradients"])
def test_launchers_look_at_no_value(op):
    """What a CUDA graph could not replay; tables of constants are made at the first call."""
    call, x = {**OPS, "gradients": soft_gradients}[op], inputs(17)
    with recorded() as launches:
        call(x, "triton")
        first = len(launches)
        with no_look():
            call(x, "triton")
    assert first and len(launches) == 2 * first


@pytest.mark.parametrize("op", OPS)
def test_torch_path_of_a_device_looks_at_no_value(op):
    """On the meta device, whose tensors have none: the paths are those of a GPU."""
    x = {name: tensor.to("meta") for name, tensor in inputs(17).items()}
    with no_look():
        results = flat(OPS[op](x, "torch"))
    assert all(result.device.type == "meta" for result in results)


@pytest.mark.parametrize("impl", ["triton", "torch"])
@pytest.mark.parametrize("op", OPS)
def test_compiles_for_any_number_of_rows(op, impl, monkeypatch):
    monkeypatch.undo()  # the poison is not for torch's own scratch, nor for tracing
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda x: flat(OPS[op](x, impl)), fullgraph=True, dynamic=True, backend="aot_eager"
    )
    for rows in (2, 3):
        x = inputs(rows)
        for got, want in zip(compiled(x), flat(OPS[op](x, impl)), strict=True):
            torch.testing.assert_close(got, want, equal_nan=True, atol=1e-6, rtol=1e-5)
            assert impl == "torch" or torch.equal(got.nan_to_num(7.0), want.nan_to_num(7.0))


@pytest.mark.parametrize("kind", ["soft", "top_k", "hard"])
def test_gradients_compile_for_any_number_of_rows(kind, monkeypatch):
    monkeypatch.undo()
    torch._dynamo.reset()
    options = {"soft": {}, "top_k": {"top_k": 3}, "hard": {"temperature": 0.0}}[kind]

    def loss(logits: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return ck.expected_embedding(logits, table, impl="triton", **options).square().sum()

    compiled = torch.compile(loss, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (2, 3):
        x, gradients = inputs(rows), []
        for call in (compiled, loss):
            tensors = [x[name].clone().requires_grad_() for name in ("logits", "table")]
            call(*tensors).backward()
            gradients.append([t.grad for t in tensors])
        for got, want in zip(*gradients, strict=True):
            assert (got is None) == (want is None)
            assert want is None or torch.equal(got, want)
