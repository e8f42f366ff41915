"""Decoding an enumerable joint: what must hold at every step, and the law of what comes out.

The joint q lives on 3 tokens and 6 positions. The DLM is its exact conditional marginals, the AR
model its exact conditional of a block given the canvas, so that any error is the decoder's own.
"""

from __future__ import annotations

import functools
import itertools
import types
from typing import Any

import pytest
import torch
from torch import Tensor

from codila import generation, step
from codila.bridge import VocabularyBridge
from codila.canvas import Canvas

V, N, MASK, EOS = 3, 6, 3, 4
STRINGS = torch.tensor(list(itertools.product(range(V), repeat=N)))
PLACE = (V + 1) ** torch.arange(N)


def random_joint(seed: int, support: int = 12) -> Tensor:
    """A sparse law on the 729 strings."""
    generator = torch.Generator().manual_seed(seed)
    q = torch.zeros(len(STRINGS), dtype=torch.float64)
    chosen = torch.randperm(len(STRINGS), generator=generator)[:support]
    q[chosen] = torch.rand(support, generator=generator, dtype=torch.float64) + 0.05
    return q / q.sum()


@functools.cache
def compatible() -> Tensor:
    """``[4096, 729]``: whether a canvas, by its index in base 4, can become a string."""
    canvases = torch.tensor(list(itertools.product(range(V + 1), repeat=N))).flip(-1)
    fits = torch.ones(len(canvases), len(STRINGS), dtype=torch.bool)
    for canvas, token in zip(canvases.T, STRINGS.T, strict=True):
        fits &= (canvas[:, None] == MASK) | (canvas[:, None] == token)
    return fits


class Oracle:
    """A diffusion model: the conditional marginals of q given what is known on the canvas.

    Positions behind the sixth (which complete the last block) are uniform. A canvas that q excludes
    has uniform marginals.
    """

    mask_token_id, eos_token_id, max_length = MASK, EOS, 64
    eos_token_ids = (EOS,)
    config = types.SimpleNamespace(vocab_size=V + 2)

    def __init__(self, q: Tensor, shift: int = 1) -> None:
        self.shift = shift
        self.lm_head = types.SimpleNamespace(weight=torch.eye(V + 2).double(), bias=None)
        mass = compatible() * q
        one_hot = torch.nn.functional.one_hot(STRINGS, V).double()
        p = torch.einsum("sx,xnv->snv", mass, one_hot) / mass.sum(-1)[:, None, None]
        self.log_marginals = p.nan_to_num(1 / V).log().clamp_min(-700)
        self.seen = torch.empty(0)

    def logits(self, canvas: Tensor) -> Tensor:
        """``[R, n, V + 2]`` of canvases ``[R, n]``; the columns behind V are impossible."""
        state = (canvas[:, :N] * PLACE).sum(-1)
        out = torch.full((*canvas.shape, V + 2), -700.0, dtype=torch.float64)
        out[..., :V] = 0
        out[:, :N, :V] = self.log_marginals[state]
        return out

    def body(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        self.seen = ids[:, 1:].clone()  # every prompt here has one token
        own = self.logits(self.seen)
        blank = own[:, :1]
        return torch.cat([own, blank] if self.shift else [blank, own], dim=1)


@functools.cache
def oracle_of(seed: int, shift: int = 1) -> Oracle:
    return Oracle(random_joint(seed), shift)


class IdealBlockDecoder:
    """Writes a block from q's exact conditional given the whole canvas.

    A block decoder is not told which block it writes; ``cells`` (row * C + candidate) comes from
    the rows of the conditioning.
    """

    boundaries, window = None, (0, 0)
    table = torch.eye(V + 2).double()

    def __init__(self, oracle: Oracle, scope: int) -> None:
        self.oracle, self.scope = oracle, scope
        self.bridge = VocabularyBridge(V + 2, banned_ids=(MASK,))
        self.cells = torch.empty(0, dtype=torch.int64)
        self.written_masks: list[int] = []  # masked positions of every block it was given

    def decode(self, soft, known_ids, known, sampler, *, steps=None, context=None) -> Tensor:
        size = known.shape[1]
        canvas = torch.nn.functional.pad(self.oracle.seen, (0, -N % size), value=EOS)
        blocks = canvas.shape[1] // size
        count = min(self.scope, blocks) if self.scope else blocks
        row = self.cells // count
        canvas = canvas[row]
        frontier = (canvas == MASK).to(torch.uint8).argmax(-1) // size if count < blocks else 0
        start = (frontier + self.cells % count) * size
        at = start[:, None] + torch.arange(size)
        assert torch.equal(canvas.gather(1, at), known_ids)
        self.written_masks += (~known).sum(-1).tolist()
        out = known_ids.clone()
        for j in range(steps or size):
            logits = self.oracle.logits(canvas).gather(
                1, at[:, j, None, None].expand(-1, 1, V + 2)
            )[:, 0]
            out[:, j] = torch.where(known[:, j], known_ids[:, j], sampler(j, logits))
            canvas = canvas.scatter(1, at[:, j : j + 1], out[:, j : j + 1])
        return out


@pytest.fixture
def decode(monkeypatch):
    """``decode(oracle, rows, known={position: token}, **options)`` -> output, ideal AR."""

    def run(oracle: Oracle, rows: int = 64, known: dict[int, int] | None = None, **options: Any):
        options = {"temperature": 1.0, "top_p": 1.0, "scope_blocks": 0, "seed": 0} | options
        decoder = IdealBlockDecoder(oracle, options["scope_blocks"])
        condition, start = step.soft_tokens, Canvas.start

        def recorded(*args, rows, **kwargs):
            decoder.cells = rows[:: options["block_size"]] // options["block_size"]
            return condition(*args, rows=rows, **kwargs)

        def infilled(*args, **kwargs):
            canvas = start(*args, **kwargs)
            for position, token in (known or {}).items():
                canvas.tokens[:, position] = token
            return canvas

        with monkeypatch.context() as patch:
            patch.setattr(step, "soft_tokens", recorded)
            patch.setattr(generation.Canvas, "start", infilled)
            patch.setattr(generation, "_block_decoder", lambda *_: decoder)
            out = generation.generate(
                oracle,
                torch.zeros(rows, 1, dtype=torch.int64),
                max_new_tokens=N,
                eos_fill=False,
                output_history=True,
                **options,
            )
        return out, decoder

    return run


def tokens(out) -> Tensor:
    return out.sequences[:, 1:]


@pytest.mark.parametrize("known", [{}, {1: 2, 4: 0}], ids=["all-mask", "infilled"])
@pytest.mark.parametrize("block_size", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "static"},
        {"schedule": "static", "blocks_per_step": 2, "scope_blocks": 2},
        {"schedule": "dynamic", "entropy_threshold": 0.6},
        {"schedule": "dynamic", "entropy_threshold": 0.4, "scope_blocks": 1},
        {"schedule": "entropy", "tokens_per_step": 2},
        {"schedule": "threshold", "confidence_threshold": 0.6},
    ],
    ids=lambda o: "-".join(map(str, o.values())),
)
def test_every_step_commits_and_known_tokens_never_change(decode, options, block_size, known):
    oracle = oracle_of(block_size, shift=block_size % 2)
    out, decoder = decode(oracle, known=known, block_size=block_size, **options)
    canvas = torch.full((64, N), MASK)
    for position, token in known.items():
        canvas[:, position] = token
    for index, sequences in enumerate(out.history):
        after = sequences[:, 1:]
        was_known = canvas != MASK
        assert torch.equal(after[was_known], canvas[was_known])
        running = out.num_function_evaluations > index
        assert torch.equal(running, (canvas == MASK).any(-1))
        assert ((after != canvas).any(-1) == running).all()
        canvas = after
    assert (canvas != MASK).all()
    assert torch.equal(canvas, tokens(out))
    assert all(count >= 2 for count in decoder.written_masks)


@pytest.mark.parametrize("blocks_per_step", [1, 2, 3])
@pytest.mark.parametrize("block_size", [1, 2, 3, 6])
def test_static_takes_a_fixed_number_of_forwards(decode, block_size, blocks_per_step):
    out, _ = decode(oracle_of(1), block_size=block_size, blocks_per_step=blocks_per_step)
    expected = -(-N // (block_size * blocks_per_step))
    assert out.num_function_evaluations.tolist() == [expected] * 64


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("scope", [0, 2])
@pytest.mark.parametrize("block_size", [1, 2, 3])
def test_dynamic_without_a_limit_equals_static_with_one_block(
    decode, block_size, scope, temperature
):
    oracle = oracle_of(2)
    options = {"block_size": block_size, "scope_blocks": scope, "temperature": temperature}
    static, _ = decode(oracle, schedule="static", **options)
    dynamic, _ = decode(oracle, schedule="dynamic", entropy_threshold=float("inf"), **options)
    assert torch.equal(tokens(dynamic), tokens(static))
    assert torch.equal(dynamic.step_of, static.step_of)


@pytest.mark.parametrize("known", [{}, {2: 1}], ids=["all-mask", "infilled"])
@pytest.mark.parametrize("scope", [0, 1, 2])
@pytest.mark.parametrize("block_size", [1, 2, 3])
def test_dynamic_below_zero_equals_one_token_entropy_decoding(decode, block_size, scope, known):
    oracle = oracle_of(3)
    options = {"block_size": block_size, "scope_blocks": scope, "known": known}
    base, _ = decode(oracle, schedule="entropy", **options)
    dynamic, decoder = decode(oracle, schedule="dynamic", entropy_threshold=-0.5, **options)
    assert torch.equal(tokens(dynamic), tokens(base))
    assert torch.equal(dynamic.step_of, base.step_of)
    assert decoder.written_masks == []


@pytest.mark.parametrize("scope", [0, 3])
def test_static_with_blocks_of_one_equals_one_token_entropy_decoding(decode, scope):
    oracle = oracle_of(4)
    base, _ = decode(oracle, schedule="entropy", block_size=1, scope_blocks=scope)
    static, decoder = decode(oracle, schedule="static", block_size=1, scope_blocks=scope)
    assert torch.equal(tokens(static), tokens(base))
    assert torch.equal(static.step_of, base.step_of)
    assert decoder.written_masks == []


@pytest.mark.parametrize(
    "options",
    [{"schedule": "static"}, {"schedule": "dynamic", "entropy_threshold": float("inf")}],
    ids=["static", "dynamic"],
)
def test_a_block_with_one_masked_position_is_filled_by_the_diffusion_model(decode, options):
    """Whatever the AR model would write there: this one is never asked."""
    oracle = oracle_of(5)
    known = {0: 1, 2: 0, 3: 2, 4: 2}  # one hole in either block of three
    base, _ = decode(oracle, schedule="entropy", block_size=3, known=known)
    out, decoder = decode(oracle, block_size=3, known=known, **options)
    assert decoder.written_masks == []
    assert torch.equal(tokens(out), tokens(base))


def total_variation(q: Tensor, drawn: Tensor) -> float:
    index = (drawn * V ** torch.arange(N - 1, -1, -1)).sum(-1)
    return 0.5 * (torch.bincount(index, minlength=V**N) / len(drawn) - q).abs().sum().item()


ROWS = 12_000  # 12 strings: the total variation of exact draws is about 0.012


@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "dynamic", "entropy_threshold": 0.7, "block_size": 3},
        {"schedule": "dynamic", "entropy_threshold": 0.5, "block_size": 2, "scope_blocks": 2},
        {"schedule": "dynamic", "entropy_threshold": 0.6, "block_size": 4},
        {"schedule": "static", "block_size": 3},
        {"schedule": "entropy", "block_size": 2},
    ],
    ids=lambda o: "-".join(map(str, o.values())),
)
def test_one_block_per_step_with_an_ideal_ar_model_draws_from_the_joint(decode, options):
    q = random_joint(6)
    out, _ = decode(oracle_of(6), rows=ROWS, **options)
    assert total_variation(q, tokens(out)) < 0.025
    if options["schedule"] == "dynamic":  # neither the AR model alone nor the fallback alone
        forwards = out.num_function_evaluations
        assert forwards.float().mean() < N - 0.5
        assert forwards.max() > N // options["block_size"]


@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "entropy", "tokens_per_step": 2, "block_size": 2},
        {"schedule": "static", "blocks_per_step": 2, "block_size": 2},
    ],
    ids=["two tokens", "two blocks"],
)
def test_independent_draws_in_one_step_miss_the_joint(decode, options):
    q = random_joint(6)
    out, _ = decode(oracle_of(6), rows=ROWS, **options)
    assert total_variation(q, tokens(out)) > 0.1
