"""The AR model over one block: layout, cache, known positions, the vocabulary bridge, gradients."""

from __future__ import annotations

import pytest
import torch
from tiny_pairs import AR_VOCAB, BOUNDARIES, BRIDGE, MASK, make_ar, make_dlm
from torch import Tensor

from codila.block_decoder import BlockDecoder
from codila.bridge import VocabularyBridge
from codila.conditioning import soft_tokens
from codila.generation import generate

BLOCKS, SIZE, WIDTH = 3, 4, 32
# transformers keeps the norms of a float64 model in float32
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


class Recorder:
    """A sampler that keeps the logits it was given; it takes the rank-th best token."""

    def __init__(self, rank: int = 0) -> None:
        self.rank, self.logits = rank, []

    def __call__(self, j: int, logits: Tensor) -> Tensor:
        assert j == len(self.logits)
        self.logits.append(logits)
        return logits[:, :71].argsort(-1, descending=True)[:, self.rank]


@pytest.fixture(params=[BOUNDARIES, None], ids=["think", "no boundaries"])
def decoder(request, ar) -> BlockDecoder:
    return BlockDecoder(ar, BRIDGE, request.param)


@pytest.fixture
def soft() -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(BLOCKS, SIZE, WIDTH, generator=generator, dtype=torch.float64)


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(0, 70, (BLOCKS, SIZE), generator=torch.Generator().manual_seed(1))


NONE_KNOWN = torch.zeros(BLOCKS, SIZE, dtype=torch.bool)
BLANK = torch.full((BLOCKS, SIZE), MASK)


@torch.no_grad()
def test_teacher_forced_logits_equal_the_causal_model_on_the_spelled_out_sequence(
    decoder, ar, soft, ids
):
    table = ar.get_input_embeddings().weight
    for block in range(BLOCKS):
        parts = [soft[block], table[ids[block, :-1]]]
        if decoder.boundaries:
            parts = [table[[73]], soft[block], table[[74]], table[ids[block, :-1]]]
        sequence = torch.cat(parts)
        assert len(sequence) == (2 * SIZE + 1 if decoder.boundaries else 2 * SIZE - 1)
        expected = ar(inputs_embeds=sequence[None], use_cache=False).logits[0, -SIZE:]
        actual = decoder.teacher_forced_logits(soft, ids)[block]
        torch.testing.assert_close(actual, expected, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("context", [0, 3])
def test_cached_decoding_equals_teacher_forcing_on_what_it_wrote(decoder, soft, context):
    window = torch.randn(BLOCKS, context, WIDTH).double() if context else None
    sampler = Recorder(rank=1)
    written = decoder.decode(soft, BLANK, NONE_KNOWN, sampler, context=window)
    forced = decoder.teacher_forced_logits(soft, written, context=window)
    torch.testing.assert_close(torch.stack(sampler.logits, dim=1), forced, **CLOSE)
    assert torch.equal(written, forced[..., :71].argsort(-1, descending=True)[..., 1])


@torch.no_grad()
def test_context_stands_in_front_of_the_opening_boundary(ar, soft):
    decoder = BlockDecoder(ar, BRIDGE, BOUNDARIES)
    window = torch.ones(BLOCKS, 2, WIDTH).double()
    layout = decoder.layout(soft, window)
    table = ar.get_input_embeddings().weight
    expected = [window[0], table[[73]], soft[0], table[[74]]]
    assert torch.equal(layout[0], torch.cat(expected))


@torch.no_grad()
def test_known_positions_are_fed_and_not_sampled(decoder, soft, ids):
    known = torch.tensor([[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0]]).bool()
    sampler = Recorder()
    written = decoder.decode(soft, torch.where(known, ids, BLANK), known, sampler)
    assert torch.equal(written[known], ids[known])
    assert (written[~known] < 71).all()
    forced = decoder.teacher_forced_logits(soft, written)
    torch.testing.assert_close(torch.stack(sampler.logits, dim=1), forced, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_partial_block_is_the_beginning_of_the_whole_one(decoder, soft, steps):
    whole = decoder.decode(soft, BLANK, NONE_KNOWN, Recorder())
    part = decoder.decode(soft, BLANK, NONE_KNOWN, Recorder(), steps=steps)
    assert torch.equal(part[:, :steps], whole[:, :steps])
    assert (part[:, steps:] == MASK).all()


@torch.no_grad()
def test_a_block_does_not_depend_on_the_others(decoder, soft):
    together = decoder.decode(soft, BLANK, NONE_KNOWN, Recorder())
    for block in range(BLOCKS):
        one = slice(block, block + 1)
        alone = decoder.decode(soft[one], BLANK[one], NONE_KNOWN[one], Recorder())
        assert torch.equal(alone, together[one])


@torch.no_grad()
@pytest.mark.parametrize("tied", [True, False])
def test_a_permuted_ar_model_equals_the_plain_one_through_the_id_map(dlm, soft, ids, tied):
    plain, moved = make_ar(dlm, 5, tied=tied), make_ar(dlm, 5, tied=tied)
    place = torch.randperm(AR_VOCAB, generator=torch.Generator().manual_seed(2))
    weights = {id(m.weight): m.weight for m in (moved.model.embed_tokens, moved.lm_head)}
    assert len(weights) == 2 - tied
    for weight in weights.values():
        weight[place] = weight.clone()
    bridge = VocabularyBridge(
        AR_VOCAB, BRIDGE.banned_ids, BRIDGE.suppressed_ids, dict(enumerate(place.tolist()))
    )
    there = BlockDecoder(moved, bridge, (int(place[73]), int(place[74])))
    here = BlockDecoder(plain, BRIDGE, BOUNDARIES)
    assert torch.equal(there.table, here.table)
    assert torch.equal(
        there.teacher_forced_logits(soft, ids), here.teacher_forced_logits(soft, ids)
    )
    written = [d.decode(soft, BLANK, NONE_KNOWN, Recorder()) for d in (here, there)]
    assert torch.equal(*written)


def test_a_table_that_is_too_small_is_refused(ar):
    for bridge, boundaries in [
        (VocabularyBridge(AR_VOCAB + 1, (MASK,)), None),
        (VocabularyBridge(75, (MASK,), id_map={3: AR_VOCAB}), None),
        (VocabularyBridge(75, (MASK,)), (73, AR_VOCAB)),
    ]:
        with pytest.raises(ValueError, match=r"has 80 embedding rows, the bridge needs 81"):
            BlockDecoder(ar, bridge, boundaries)


def test_one_prefill_and_one_step_per_further_token_whatever_the_number_of_blocks(dlm, ar):
    calls = []
    hook = ar.model.register_forward_pre_hook(
        lambda module, args, kwargs: calls.append(tuple(kwargs["inputs_embeds"].shape[:2])),
        with_kwargs=True,
    )
    try:
        out = generate(
            dlm,
            torch.tensor([[1, 2], [3, 4], [5, 6]]),
            ar_model=ar,
            max_new_tokens=16,
            block_size=4,
            blocks_per_step=2,
            eos_fill=False,
            seed=0,
        )
    finally:
        hook.remove()
    assert out.num_function_evaluations.tolist() == [2, 2, 2]
    # 3 rows of 2 blocks; [<think>, e1..e4, </think>], then x1, x2, x3
    assert calls == [(6, 6), (6, 1), (6, 1), (6, 1)] * 2


@pytest.mark.parametrize("tied", [True, False])
def test_gradients_reach_the_tables_from_soft_tokens_teacher_tokens_and_head(tied):
    dlm = make_dlm(dtype=torch.float32)
    ar = make_ar(dlm, 3, dtype=torch.float32, tied=tied)
    decoder = BlockDecoder(ar, BRIDGE, BOUNDARIES)
    logits = torch.full((SIZE, 96), -60.0)
    logits[:, 10:12] = 0.0  # soft tokens of ids 10 and 11 only
    ids = torch.tensor([[20, 21, 22, 23]])
    soft = soft_tokens(logits, decoder.table, BRIDGE)[None]
    loss = torch.nn.functional.cross_entropy(
        decoder.teacher_forced_logits(soft, ids).flatten(0, 1), ids.flatten()
    )
    loss.backward()
    size = ar.get_input_embeddings().weight.grad.norm(dim=-1)
    head = ar.lm_head.weight.grad.norm(dim=-1)
    assert (size[[10, 11]] > 1e-4).all(), "soft tokens"
    assert (size[[20, 21, 22]] > 1e-4).all(), "teacher tokens"
    assert (size[[73, 74]] > 1e-4).all(), "boundaries"
    assert (head[[23, 40]] > 1e-8).all(), "head"
    if not tied:
        assert size[[23, 40]].max() == 0, "the last token is predicted, never fed"


def test_the_gradient_of_a_tied_table_is_the_sum_of_its_three_parts():
    """Against a central difference along a random direction, with the table used three times."""
    ar = make_ar(make_dlm(), 4)
    decoder = BlockDecoder(ar, BRIDGE, BOUNDARIES)
    logits = torch.randn(2 * SIZE, 96, generator=torch.Generator().manual_seed(3)).double()
    ids = torch.tensor([[20, 21, 22, 23], [1, 2, 3, 4]])
    weight = ar.get_input_embeddings().weight
    assert weight is ar.lm_head.weight

    def loss() -> Tensor:
        soft = soft_tokens(logits, decoder.table, BRIDGE).view(2, SIZE, WIDTH)
        out = decoder.teacher_forced_logits(soft, ids)
        return torch.nn.functional.cross_entropy(out.flatten(0, 1), ids.flatten())

    (gradient,) = torch.autograd.grad(loss(), weight)
    direction = torch.randn_like(gradient)
    with torch.no_grad():
        step = 1e-3
        weight += step * direction
        above = loss()
        weight -= 2 * step * direction
        below = loss()
    difference = (above - below) / (2 * step)
    torch.testing.assert_close(difference, (gradient * direction).sum(), atol=1e-3, rtol=5e-3)


def test_a_model_can_be_trained_after_it_decoded():
    """Decoding runs in inference mode: none of its tensors may be left in a cache or a module."""
    dlm = make_dlm(dtype=torch.float32)
    ar = make_ar(dlm, dtype=torch.float32)
    ids = torch.tensor([[1, 2, 3]])
    out = generate(dlm, ids, ar_model=ar, max_new_tokens=8, temperature=0.7, top_k=5, seed=0)
    out.sequences.add_(0)  # the caller's to change
    logits = dlm(torch.cat([ids, torch.full((1, 4), MASK)], dim=1)).logits[0, 2:6]
    decoder = BlockDecoder(ar, ar.codila.bridge, ar.codila.boundaries)
    soft = soft_tokens(logits, decoder.table, decoder.bridge)
    decoder.teacher_forced_logits(soft[None], ids[:, [0, 1, 2, 0]]).square().mean().backward()
    assert ar.get_input_embeddings().weight.grad is not None
    assert dlm.lm_head.weight.grad is not None
