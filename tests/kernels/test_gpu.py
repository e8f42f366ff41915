"""On a GPU: real vocabulary, bfloat16, the same bits twice and in any batch, graph capture."""

from __future__ import annotations

import pytest
import torch

import codila_kernels as ck

pytestmark = pytest.mark.gpu

WIDTH, VALID, EMBEDDING = 152_064, 151_936, 1024
COLUMNS = dict(valid_vocab=VALID, banned_ids=(151_666, 151_667))


@pytest.fixture(scope="module")
def real_size():
    generator = torch.Generator("cuda").manual_seed(7)
    logits = torch.randn(80, WIDTH, generator=generator, device="cuda") * 4
    table = torch.randn(VALID, EMBEDDING, generator=generator, device="cuda") * 0.03
    return logits.bfloat16(), table.bfloat16()


@pytest.mark.parametrize("temperature", [0.1, 1.0])
def test_vocab_stats_against_float64(real_size, temperature):
    logits, _ = real_size
    got = ck.vocab_stats(logits, temperature=temperature, impl="triton", **COLUMNS)
    want = ck.vocab_stats(logits.double(), temperature=temperature, **COLUMNS)
    assert torch.equal(got.top1_id, want.top1_id)
    # exponents of a few tens, summed over a tree of 17 + 6 levels, in units of 6e-8
    for name in ("entropy", "top1_prob", "margin"):
        assert (getattr(got, name).double() - getattr(want, name)).abs().max() < 1e-5, name
    assert ((got.lse.double() - want.lse) / want.lse).abs().max() < 1e-6


def test_expected_embedding_is_no_worse_than_eager(real_size):
    """Error against float64 at most that of the eager bfloat16 expression and one rounding."""
    logits, table = real_size
    got = ck.expected_embedding(logits, table, impl="triton", **COLUMNS).double()
    exact = ck.expected_embedding(logits.double(), table.double(), impl="torch", **COLUMNS)
    z = logits[:, :VALID].float()
    z[:, list(COLUMNS["banned_ids"])] = float("-inf")
    eager = (torch.softmax(z, -1).bfloat16() @ table).double()
    rounding = exact.abs() * 2**-8
    assert (got - exact).norm() <= (eager - exact).norm() + rounding.norm()
    assert ((got - exact).abs() <= 4 * rounding + 1e-4).all()


@pytest.mark.parametrize("rows", [1, 3, 16, 40, 65, 80])
def test_bits_repeat_and_do_not_depend_on_the_batch(real_size, rows):
    logits, table = real_size
    stats = ck.vocab_stats(logits, impl="triton", **COLUMNS)
    soft = ck.expected_embedding(logits, table, impl="triton", **COLUMNS)
    for _ in range(2):
        again = ck.vocab_stats(logits[:rows], impl="triton", **COLUMNS)
        assert all(torch.equal(a, b[:rows]) for a, b in zip(again, stats, strict=True))
        part = ck.expected_embedding(logits[:rows], table, impl="triton", **COLUMNS)
        assert torch.equal(part, soft[:rows])
    picked = torch.arange(rows, device="cuda").flip(0)
    assert torch.equal(
        ck.expected_embedding(logits, table, rows=picked, impl="triton", **COLUMNS), soft[picked]
    )


@pytest.mark.parametrize("rows", [1, 16, 33, 80])
def test_other_ops_repeat_and_do_not_depend_on_the_batch(real_size, rows):
    logits, table = real_size
    hidden, head = table[:80].clone(), table[:8192].clone()
    entropy = torch.rand(80, 10, 4, generator=torch.Generator("cuda").manual_seed(1), device="cuda")
    masked = entropy > 0.3
    calls = {
        "head_stats": lambda n: ck.head_stats(hidden[:n], head, impl="triton"),
        "top_k": lambda n: ck.expected_embedding(
            logits[:n], table, top_k=5, impl="triton", **COLUMNS
        ),
        "static": lambda n: ck.block_entropy(entropy[:n], masked[:n], blocks=2, impl="triton"),
        "dynamic": lambda n: ck.block_entropy(
            entropy[:n], masked[:n], mode="dynamic", threshold=0.5, impl="triton"
        ),
    }
    for name, call in calls.items():
        whole, *parts = (_tensors(call(n)) for n in (80, rows, rows))
        for part in parts:
            assert all(torch.equal(a, b[:rows]) for a, b in zip(part, whole, strict=True)), name


def _tensors(result) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result]
    return [tensor for part in result for tensor in _tensors(part)]


def test_a_sampled_token_does_not_depend_on_the_batch(real_size):
    logits, _ = real_size
    seeds = torch.arange(80, device="cuda")
    counters = torch.zeros(80, 2, dtype=torch.int32, device="cuda")
    options = dict(temperature=0.7, top_p=0.8, top_k=1000)
    ids, probs = ck.sample_tokens(logits, seeds, counters, **options)
    for r in (0, 41, 79):
        one = slice(r, r + 1)
        alone = ck.sample_tokens(logits[one], seeds[one], counters[one], **options)
        assert alone[0] == ids[r] and alone[1] == probs[r]
    on_the_host = ck.sample_tokens(logits.cpu(), seeds.cpu(), counters.cpu(), **options)
    assert (on_the_host[0] == ids.cpu()).float().mean() > 0.95  # exp rounds by device


def test_a_cuda_graph_can_hold_every_op(real_size):
    logits, table = real_size
    seeds = torch.arange(80, device="cuda")
    counters = torch.zeros(80, 2, dtype=torch.int32, device="cuda")
    masked = torch.ones(4, 5, 4, dtype=torch.bool, device="cuda")
    hidden, head = table[:80].clone(), table[:4096].clone()

    def step():
        stats = ck.vocab_stats(logits, **COLUMNS)
        entropy = stats.entropy.view(4, 5, 4)
        choice = ck.block_entropy(entropy, masked, mode="dynamic", threshold=2.0)
        rows = choice.block.flatten().clamp_min(0)
        soft = ck.expected_embedding(logits, table, rows=rows, stats=stats, **COLUMNS)
        hard = ck.expected_embedding(logits, table, top_k=3, **COLUMNS)
        ids, probs = ck.sample_tokens(logits, seeds, counters, top_p=0.8, **COLUMNS)
        return *stats, *choice, soft, hard, ids, probs, ck.head_stats(hidden, head)[0].entropy

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        want = step()  # compiles the kernels, fills the caches of constants
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = step()
    graph.replay()
    torch.cuda.synchronize()
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)
