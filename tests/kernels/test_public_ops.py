"""The public face: names, imports, dispatch, errors at the door, `torch.compile`."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import codila_kernels as ck
from codila_kernels import ops

ROOT = Path(ck.__file__).parents[1]

PUBLIC = [
    "BlockChoice",
    "VocabStats",
    "block_entropy",
    "expected_embedding",
    "head_stats",
    "sample_tokens",
    "vocab_stats",
]


def test_public_names():
    assert sorted(ck.__all__) == PUBLIC == sorted(ops.__all__)
    assert set(PUBLIC) <= set(dir(ck))
    assert ck.VocabStats._fields == ("lse", "entropy", "top1_id", "top1_prob", "margin")
    assert ck.BlockChoice._fields == ("prefix_mean", "block", "length", "fallback_slot")
    with pytest.raises(AttributeError, match="no attribute 'softmax'"):
        _ = ck.softmax


def in_a_fresh_process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_loads_nothing_it_does_not_need():
    code = """
import sys, codila_kernels
assert "torch" not in sys.modules and "codila" not in sys.modules
codila_kernels.vocab_stats
assert "torch" in sys.modules
assert not {"triton", "codila", "transformers"} & set(sys.modules), sorted(sys.modules)
"""
    in_a_fresh_process(code)


def test_works_without_triton():
    code = """
import sys, importlib.abc
class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("triton", "transformers", "codila"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Blocker())
import torch
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "triton" else find(name, *rest)
import codila_kernels as ck
logits, table = torch.zeros(2, 4), torch.ones(4, 3)
seeds, counters = torch.zeros(2, dtype=torch.int64), torch.zeros(2, 2, dtype=torch.int32)
masked = torch.ones(1, 2, 3, dtype=torch.bool)
calls = [
    lambda impl: ck.vocab_stats(logits, impl=impl).entropy,
    lambda impl: ck.head_stats(torch.zeros(2, 3), table, impl=impl)[0].entropy,
    lambda impl: ck.expected_embedding(logits, table, impl=impl),
    lambda impl: ck.expected_embedding(logits, table, top_k=2, impl=impl),
    lambda impl: ck.block_entropy(masked.float(), masked, impl=impl).prefix_mean,
    lambda impl: ck.sample_tokens(logits, seeds, counters, top_p=0.9, impl=impl)[1],
]
for call in calls:
    print(call("auto").flatten()[0].item(), call("torch").flatten()[0].item())
    try:
        call("triton")
    except RuntimeError as error:
        print(error)
assert "triton" not in sys.modules
"""
    lines = in_a_fresh_process(code).strip().splitlines()
    expected = (math.log(4), math.log(4), 1.0, 1.0, 1.0, 0.25)  # of equal logits
    assert len(lines) == 2 * len(expected)
    for values, message, want in zip(lines[::2], lines[1::2], expected, strict=True):
        assert [float(value) for value in values.split()] == pytest.approx([want] * 2, rel=1e-6)
        assert "the package 'triton' is not installed" in message


LOGITS, TABLE = torch.zeros(2, 8), torch.zeros(8, 3)
SEEDS, COUNTERS = torch.zeros(2, dtype=torch.int64), torch.zeros(2, 2, dtype=torch.int32)
MASKED = torch.ones(1, 2, 3, dtype=torch.bool)

CALLS = {
    "vocab_stats": lambda **k: ck.vocab_stats(LOGITS, **k),
    "head_stats": lambda **k: ck.head_stats(torch.zeros(2, 3), TABLE, **k),
    "expected_embedding": lambda **k: ck.expected_embedding(LOGITS, TABLE, **k),
    "expected_embedding top_k": lambda **k: ck.expected_embedding(LOGITS, TABLE, top_k=2, **k),
    "block_entropy": lambda **k: ck.block_entropy(torch.zeros(1, 2, 3), MASKED, **k),
    "sample_tokens": lambda **k: ck.sample_tokens(LOGITS, SEEDS, COUNTERS, **k),
}


@pytest.mark.parametrize("op", CALLS)
def test_every_op_takes_the_selector(op):
    CALLS[op]()
    CALLS[op](impl="torch")
    with pytest.raises(ValueError, match="impl='cuda', expected one of 'auto', 'triton', 'torch'"):
        CALLS[op](impl="cuda")


def test_triton_is_refused_where_there_is_no_kernel():
    entropy = torch.zeros(1, 300, 8)  # more candidate positions than a program holds
    with pytest.raises(RuntimeError, match="there is no Triton kernel for this op"):
        ck.block_entropy(entropy, torch.ones(1, 300, 8, dtype=torch.bool), impl="triton")


def test_triton_is_refused_where_it_cannot_run(monkeypatch):
    monkeypatch.setattr(ops, "_interpreting", lambda: False)
    with pytest.raises(RuntimeError, match="the tensors are on 'cpu'|is not installed"):
        ck.vocab_stats(LOGITS, impl="triton")
    with pytest.raises(RuntimeError, match="a tensor is float64"):
        ck.vocab_stats(LOGITS.double(), impl="triton")


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: ck.vocab_stats(torch.zeros(8)), ValueError, "expected two dimensions"),
        (lambda: ck.vocab_stats(torch.zeros(2, 0)), ValueError, "at least one column"),
        (lambda: ck.vocab_stats(SEEDS[None]), TypeError, "expected a floating-point tensor"),
        (lambda: ck.vocab_stats(LOGITS, temperature=-1.0), ValueError, r"expected 0 \(arg-max\)"),
        (lambda: ck.vocab_stats(LOGITS, temperature=1e-9), ValueError, "at least 1e-06"),
        (lambda: ck.vocab_stats(LOGITS, temperature=float("nan")), ValueError, "arg-max"),
        (lambda: ck.vocab_stats(LOGITS, valid_vocab=9), ValueError, "from 1 to the 8 columns"),
        (lambda: ck.vocab_stats(LOGITS, valid_vocab=0), ValueError, "from 1 to the 8 columns"),
        (lambda: ck.vocab_stats(LOGITS, banned_ids=(8,)), ValueError, "banned id 8 is not"),
        (lambda: ck.vocab_stats(LOGITS, banned_ids=SEEDS), TypeError, "host sequence of ints"),
        (
            lambda: ck.head_stats(torch.zeros(2, 4), TABLE),
            ValueError,
            r"hidden is \[2, 4\] and head is \[8, 3\]",
        ),
        (
            lambda: ck.head_stats(torch.zeros(2, 3).half(), TABLE),
            TypeError,
            "hidden is torch.float16 and head is torch.float32; cast one",
        ),
        (
            lambda: ck.head_stats(torch.zeros(2, 3), TABLE, torch.zeros(7)),
            ValueError,
            r"expected \[8\], one per head row",
        ),
        (lambda: ck.expected_embedding(LOGITS, TABLE, top_k=0), ValueError, "from 1 to 64"),
        (lambda: ck.expected_embedding(LOGITS, TABLE, top_k=65), ValueError, "from 1 to 64"),
        (
            lambda: ck.expected_embedding(LOGITS, TABLE, rows=torch.zeros(2)),
            TypeError,
            "expected one dimension of torch.int64 or torch.int32",
        ),
        (
            lambda: ck.expected_embedding(LOGITS, TABLE, stats=ck.vocab_stats(LOGITS[:1])),
            ValueError,
            "statistics of all logits rows",
        ),
        (
            lambda: ck.block_entropy(torch.zeros(2, 3), MASKED),
            ValueError,
            r"both must be \[N, C, B\]",
        ),
        (
            lambda: ck.block_entropy(torch.zeros(1, 2, 3), MASKED.int()),
            TypeError,
            "torch.bool tensor",
        ),
        (
            lambda: ck.block_entropy(torch.zeros(1, 0, 3), MASKED[:, :0]),
            ValueError,
            "C and B must be at least 1",
        ),
        (
            lambda: ck.block_entropy(
                torch.zeros(1, 2, 3), MASKED, mode="dynamic", threshold=torch.tensor(0.5)
            ),
            TypeError,
            "threshold=tensor.*expected a number of nats",
        ),
        (
            lambda: ck.sample_tokens(LOGITS, SEEDS, COUNTERS, top_p=torch.tensor(0.5)),
            TypeError,
            "top_p=tensor.*expected 0 < top_p <= 1",
        ),
        (
            lambda: ck.sample_tokens(LOGITS, SEEDS[:1], COUNTERS),
            ValueError,
            r"seeds is \[1\] torch.int64, expected \[2\]",
        ),
        (
            lambda: ck.sample_tokens(LOGITS, SEEDS, COUNTERS[:, :1]),
            ValueError,
            r"counters is \[2, 1\] torch.int32, expected \[2, 2\]",
        ),
        (
            lambda: ck.sample_tokens(LOGITS, SEEDS.to("meta"), COUNTERS),
            ValueError,
            "logits is on cpu and seeds on meta",
        ),
        (
            lambda: ck.sample_tokens(LOGITS, SEEDS, COUNTERS, temperature=float("inf")),
            ValueError,
            "temperature=inf, expected 0",
        ),
        (
            lambda: ck.sample_tokens(LOGITS, SEEDS, COUNTERS, top_k=True),
            TypeError,
            "top_k=True, expected an int from 0",
        ),
        (
            lambda: ck.vocab_stats(torch.zeros(2, 8, device="meta"), impl="triton"),
            RuntimeError,
            "impl='triton' cannot run",
        ),
        (
            lambda: ck.expected_embedding(LOGITS, TABLE.to("meta")),
            ValueError,
            "logits is on cpu and table on meta",
        ),
    ],
)
def test_errors_name_what_was_given_and_expected(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize("op", CALLS)
def test_reference_path_compiles_without_a_graph_break(op, generator):
    if op == "sample_tokens":
        pytest.skip("on the CPU it asks whether a short list holds the nucleus")
    compiled = torch.compile(CALLS[op], fullgraph=True, backend="aot_eager")
    got, want = compiled(impl="torch"), CALLS[op](impl="torch")
    torch.testing.assert_close(got, want)


ROW_CALLS = {
    "vocab_stats": lambda x: ck.vocab_stats(x, impl="torch"),
    "head_stats": lambda x: ck.head_stats(x, torch.eye(8), impl="torch"),
    "expected_embedding": lambda x: ck.expected_embedding(x, torch.eye(8), impl="torch"),
    "block_entropy": lambda x: ck.block_entropy(
        x.view(-1, 2, 4), x.view(-1, 2, 4) > 0, mode="dynamic", threshold=0.5, impl="torch"
    ),
}


@pytest.mark.parametrize("op", ROW_CALLS)
def test_reference_path_compiles_for_any_number_of_rows(op, generator):
    compiled = torch.compile(ROW_CALLS[op], fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (2, 5):
        x = torch.randn(rows, 8, generator=generator)
        torch.testing.assert_close(compiled(x), ROW_CALLS[op](x))


def test_statistics_carry_no_gradient():
    logits = torch.zeros(2, 8, requires_grad=True)
    assert not any(field.requires_grad for field in ck.vocab_stats(logits))
    assert not ck.sample_tokens(logits, SEEDS, COUNTERS)[1].requires_grad
