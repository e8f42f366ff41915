"""What the ops refuse: named, explained, the same for every `impl`, and before any work is done."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import codila_kernels as ck
from codila_kernels import operators, reference

R, V, D, H = 2, 8, 3, 4
LOGITS, TABLE = torch.zeros(R, V), torch.zeros(V, D)
HIDDEN, HEAD = torch.zeros(R, H), torch.zeros(V, H)
SEEDS, COUNTERS = torch.zeros(R, dtype=torch.int64), torch.zeros(R, 2, dtype=torch.int32)
ENTROPY, MASKED = torch.zeros(1, 2, 3), torch.ones(1, 2, 3, dtype=torch.bool)
STATS = ck.VocabStats(*(torch.zeros(R),) * 2, torch.zeros(R).long(), *(torch.zeros(R),) * 2)


def elsewhere(tensor):
    """ "meta" is another device than "cpu", on every machine."""
    return torch.empty_like(tensor, device="meta")


GOOD = {
    "vocab_stats": dict(logits=LOGITS),
    "head_stats": dict(hidden=HIDDEN, head=HEAD),
    "expected_embedding": dict(logits=LOGITS, table=TABLE),
    "block_entropy": dict(entropy=ENTROPY, masked=MASKED),
    "sample_tokens": dict(logits=LOGITS, seeds=SEEDS, counters=COUNTERS),
}
"""Arguments that each op takes; a case below replaces or adds some of them."""

OF_COLUMNS = [
    (dict(temperature=-0.5), ValueError, r"temperature=-0.5, expected 0 \(arg-max\)"),
    (dict(temperature=math.inf), ValueError, "temperature=inf, expected 0 .* a finite number"),
    (dict(temperature=math.nan), ValueError, "temperature=nan, expected 0 .* a finite number"),
    (dict(temperature=1e-9), ValueError, "temperature=1e-09, expected .* at least 1e-06"),
    (dict(temperature="0.5"), TypeError, "temperature='0.5', expected 0"),
    (dict(temperature=torch.ones(())), TypeError, r"temperature=tensor\(1.\), expected 0"),
    (dict(valid_vocab=0), ValueError, "valid_vocab=0, expected an int from 1 to the 8 columns"),
    (dict(valid_vocab=9), ValueError, "valid_vocab=9, expected an int from 1 to the 8 columns"),
    (dict(valid_vocab=8.0), TypeError, "valid_vocab=8.0, expected an int from 1"),
    (dict(banned_ids=(1, 8)), ValueError, "banned id 8 is not an int from 0 to 7"),
    (dict(banned_ids=(-1,)), ValueError, "banned id -1 is not an int from 0 to 7"),
    (dict(banned_ids=(1.0,)), TypeError, "banned id 1.0 is not an int from 0 to 7"),
    (dict(banned_ids=SEEDS), TypeError, "banned_ids is a Tensor, expected a host sequence"),
    (dict(banned_ids=3), TypeError, "banned_ids is a int, expected a host sequence"),
]
OF_LOGITS = [
    *OF_COLUMNS,
    (dict(logits=[[0.0]]), TypeError, "logits is a list, expected a torch.Tensor"),
    (dict(logits=LOGITS[0]), ValueError, r"logits is \[8\], expected two dimensions"),
    (dict(logits=LOGITS[None]), ValueError, r"logits is \[1, 2, 8\], expected two dimensions"),
    (dict(logits=LOGITS[:, :0]), ValueError, r"logits is \[2, 0\], .* at least one column"),
    (dict(logits=LOGITS.int()), TypeError, "logits is torch.int32, expected a floating-point"),
]
CASES = {
    "vocab_stats": OF_LOGITS,
    "head_stats": [
        *OF_COLUMNS,
        (dict(hidden=None), TypeError, "hidden is a NoneType, expected a torch.Tensor"),
        (dict(hidden=HIDDEN[0]), ValueError, r"hidden is \[4\], expected two dimensions"),
        (dict(hidden=HIDDEN[:, :0]), ValueError, r"hidden is \[2, 0\], .* at least one column"),
        (dict(hidden=HIDDEN.int()), TypeError, "hidden is torch.int32, expected a floating-point"),
        (dict(hidden=HIDDEN.half()), TypeError, "hidden is torch.float16 and head is torch.float3"),
        (dict(hidden=HIDDEN[:, :3]), ValueError, r"hidden is \[2, 3\] and head is \[8, 4\]"),
        (dict(head=HEAD[None]), ValueError, r"head is \[1, 8, 4\], expected two dimensions"),
        (dict(head=HEAD[:0]), ValueError, r"head is \[0, 4\], expected at least one row"),
        (dict(head=HEAD.int()), TypeError, "head is torch.int32, expected a floating-point"),
        (dict(head=elsewhere(HEAD)), ValueError, "hidden is on cpu and head on meta"),
        (dict(bias=torch.zeros(7)), ValueError, r"bias is \[7\], expected \[8\]"),
        (dict(bias=0.0), TypeError, "bias is a float, expected a torch.Tensor"),
        (dict(bias=torch.zeros(V).half()), TypeError, "hidden is torch.float32 and bias is torch"),
        (dict(bias=elsewhere(torch.zeros(V))), ValueError, "hidden is on cpu and bias on meta"),
    ],
    "expected_embedding": [
        *OF_LOGITS,
        (dict(table=None), TypeError, "table is a NoneType, expected a torch.Tensor"),
        (dict(table=TABLE[0]), ValueError, r"table is \[3\], expected two dimensions"),
        (dict(table=TABLE[:, :0]), ValueError, r"table is \[8, 0\], .* at least one column"),
        (dict(table=TABLE[:0]), ValueError, r"table is \[0, 3\], expected at least one row"),
        (dict(table=TABLE.int()), TypeError, "table is torch.int32, expected a floating-point"),
        (dict(table=TABLE[:7]), ValueError, "logits with 8 columns but a table of 7 rows; pass va"),
        (dict(table=TABLE[:5], valid_vocab=6), ValueError, "valid_vocab=6 but a table of 5 rows"),
        (dict(table=elsewhere(TABLE)), ValueError, "logits is on cpu and table on meta"),
        (dict(rows=[0]), TypeError, "rows is a list, expected a torch.Tensor"),
        (dict(rows=SEEDS[None]), ValueError, r"rows is \[1, 2\] .* expected one dimension"),
        (dict(rows=SEEDS.float()), TypeError, "rows is .* torch.float32, expected one dim"),
        (dict(rows=elsewhere(SEEDS)), ValueError, "logits is on cpu and rows on meta"),
        (dict(top_k=0), ValueError, "top_k=0, expected an int from 1 to 64"),
        (dict(top_k=65), ValueError, "top_k=65, expected an int from 1 to 64"),
        (dict(top_k=2.0), TypeError, "top_k=2.0, expected an int from 1 to 64"),
        (dict(top_k=True), TypeError, "top_k=True, expected an int from 1 to 64"),
        (dict(stats=tuple(STATS)), TypeError, "stats is a tuple, expected VocabStats"),
        (
            dict(stats=STATS._replace(top1_id=SEEDS[:1])),
            ValueError,
            r"stats are of \[1\] rows, logits have 2",
        ),
        (
            dict(stats=STATS._replace(top1_id=SEEDS.float())),
            TypeError,
            "stats.top1_id is .* torch.float32, expected one dimension of torch.int64",
        ),
        (
            dict(stats=STATS._replace(top1_id=elsewhere(SEEDS))),
            ValueError,
            "logits is on cpu and stats.top1_id on meta",
        ),
    ],
    "block_entropy": [
        (dict(entropy=None), TypeError, "entropy is a NoneType, expected a torch.Tensor"),
        (dict(masked=None), TypeError, "masked is a NoneType, expected a torch.Tensor"),
        (dict(entropy=ENTROPY[0]), ValueError, r"entropy is \[2, 3\] and .* must be \[N, C, B\]"),
        (dict(masked=MASKED[..., :2]), ValueError, r"masked is \[1, 2, 2\]; both must be \[N"),
        (dict(entropy=ENTROPY.int()), TypeError, "entropy is torch.int32 .* expected a float"),
        (dict(masked=MASKED.int()), TypeError, "masked is torch.int32, expected .* torch.bool"),
        (dict(masked=elsewhere(MASKED)), ValueError, "entropy is on cpu and masked on meta"),
        (
            dict(entropy=ENTROPY[:, :0], masked=MASKED[:, :0]),
            ValueError,
            r"entropy is \[1, 0, 3\]; C and B must be at least 1",
        ),
        (
            dict(entropy=ENTROPY[..., :0], masked=MASKED[..., :0]),
            ValueError,
            r"entropy is \[1, 2, 0\]; C and B must be at least 1",
        ),
        (dict(mode="best"), ValueError, "mode='best', expected 'static' or 'dynamic'"),
        (dict(blocks=0), ValueError, "blocks=0, expected an int of at least 1"),
        (dict(blocks=1.0), TypeError, "blocks=1.0, expected an int of at least 1"),
        (dict(mode="dynamic"), ValueError, "mode='dynamic' needs a threshold in nats, got None"),
        (dict(mode="dynamic", threshold=math.nan), ValueError, "needs a threshold .* got nan"),
        (dict(mode="dynamic", threshold="1"), TypeError, "threshold='1', expected a number"),
        (dict(threshold=1.0), ValueError, "threshold=1.0 has no meaning in mode='static'"),
    ],
    "sample_tokens": [
        *OF_LOGITS,
        (dict(seeds=[0, 1]), TypeError, "seeds is a list, expected a torch.Tensor"),
        (dict(seeds=SEEDS[:1]), ValueError, r"seeds is \[1\] .* expected \[2\] torch.int64"),
        (dict(seeds=SEEDS[None]), ValueError, r"seeds is \[1, 2\] .* expected \[2\] torch.int64"),
        (dict(seeds=SEEDS.int()), TypeError, r"torch.int32, expected \[2\] torch.int64"),
        (dict(seeds=elsewhere(SEEDS)), ValueError, "logits is on cpu and seeds on meta"),
        (dict(counters=COUNTERS[:, 0]), ValueError, r"counters is \[2\] .* expected \[2, 2\] torc"),
        (dict(counters=COUNTERS[:1]), ValueError, r"counters is \[1, 2\] .* expected \[2, 2\]"),
        (dict(counters=COUNTERS.long()), TypeError, r"int64, expected \[2, 2\] torch.int32"),
        (dict(counters=elsewhere(COUNTERS)), ValueError, "logits is on cpu and counters on meta"),
        (dict(top_p=0.0), ValueError, "top_p=0.0, expected 0 < top_p <= 1"),
        (dict(top_p=1.5), ValueError, "top_p=1.5, expected 0 < top_p <= 1"),
        (dict(top_p=-0.1), ValueError, "top_p=-0.1, expected 0 < top_p <= 1"),
        (dict(top_p=math.nan), ValueError, "top_p=nan, expected 0 < top_p <= 1"),
        (dict(top_p="0.9"), TypeError, "top_p='0.9', expected 0 < top_p <= 1"),
        (dict(top_k=-1), ValueError, r"top_k=-1, expected an int from 0 \(off\) to the 8 columns"),
        (dict(top_k=9), ValueError, r"top_k=9, expected an int from 0 \(off\) to the 8 columns"),
        (dict(top_k=2.0), TypeError, "top_k=2.0, expected an int from 0"),
    ],
}
TABLE_OF_CASES = [
    pytest.param(op, *case, id=f"{op}-{index}-{'-'.join(case[0])}")
    for op, cases in CASES.items()
    for index, case in enumerate(cases)
]


class NothingComputed(TorchDispatchMode):
    """Fails on every torch operator but views; all a check may need is metadata."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        view = func in (torch.ops.aten.detach.default, torch.ops.aten.alias.default)
        assert view, f"{func} ran before the arguments were refused"
        return func(*args, **(kwargs or {}))


@pytest.fixture
def nothing_launched(monkeypatch):
    """No operator with a kernel is called, nor a reference."""

    def launched(*args, **kwargs):
        raise AssertionError("the op went to work before the arguments were refused")

    for name in operators.__all__:
        monkeypatch.setattr(operators, name, launched)
    for name in GOOD:
        monkeypatch.setattr(reference, f"{name}_reference", launched)


@pytest.mark.parametrize("op", GOOD)
def test_the_arguments_that_the_cases_start_from_are_good(op):
    getattr(ck, op)(**GOOD[op], impl="torch")


@pytest.mark.parametrize("impl", ["auto", "triton", "torch"])
@pytest.mark.parametrize("op, bad, error, message", TABLE_OF_CASES)
def test_bad_input_is_refused_at_the_door(op, bad, error, message, impl, nothing_launched):
    with pytest.raises(error, match=f"^{op}: .*{message}") as caught, NothingComputed():
        getattr(ck, op)(**{**GOOD[op], **bad}, impl=impl)
    assert type(caught.value) is error  # a refusal of dispatch is a RuntimeError


@pytest.mark.parametrize("op", GOOD)
@pytest.mark.parametrize("impl", ["cuda", "", None])
def test_an_unknown_selector_is_refused(op, impl, nothing_launched):
    with pytest.raises(ValueError, match=f"^{op}: impl={impl!r}, expected one of 'auto', 'tri"):
        with NothingComputed():
            getattr(ck, op)(**GOOD[op], impl=impl)
