"""Keys kept between steps: bits where nothing is kept, equality where keys are exact, errors."""

from __future__ import annotations

import pytest
import torch
from test_generation_equals_naive import padded
from test_llada_model import write_checkpoint
from tiny_pairs import EOS, MASK, make_ar, make_dlm

from codila import generate
from codila.attachment import ForeignDLM
from codila.models.loading import load_dlm

KINDS = ("prefix", "dual")
NEVER = {"window_blocks": 10**6}
PROMPTS = [[3, 1, 4, 1, 5, 9, 2], [6, 5, 3], [5, 8, 9, 7]]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """By family and number of layers."""

    def make(family: str, layers: int):
        if family == "Dream":
            return make_dlm(4, num_hidden_layers=layers)
        folder = tmp_path_factory.mktemp("llada")
        write_checkpoint(folder, n_layers=layers)
        return load_dlm(folder, dtype=torch.float64)

    return {(f, n): make(f, n) for f in ("Dream", "llada") for n in (1, 3)}


class Recorded:
    """What `body` returned at every step, and for how many columns."""

    def __init__(self, dlm, monkeypatch) -> None:
        self.out: list[torch.Tensor] = []
        body = dlm.body

        def record(*args, **kwargs):
            self.out.append(body(*args, **kwargs))
            return self.out[-1]

        monkeypatch.setattr(dlm, "body", record)


def run(dlm, **options):
    ids, mask = padded(PROMPTS, "left")
    given = dict(ar_model=make_ar(dlm), attention_mask=mask, seed=3, max_new_tokens=18)
    return generate(dlm, ids, **(given | dict(scope_blocks=2, eos_fill=False) | options))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["Dream", "llada"])
def test_a_refresh_in_every_step_has_the_bits_of_no_cache(models, family, kind, monkeypatch):
    dlm = models[family, 3]
    seen = []
    for options in ({}, {"dlm_cache": kind, "refresh_interval": 1}):
        with monkeypatch.context() as patch:
            record = Recorded(dlm, patch)
            seen.append((run(dlm, **options), record.out))
    (plain, want), (cached, got) = seen
    assert torch.equal(plain.sequences, cached.sequences)
    assert len(want) == len(got)
    assert all(torch.equal(a, b) for a, b in zip(want, got, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("schedule", ["static", "dynamic", "entropy"])
@pytest.mark.parametrize("family", ["Dream", "llada"])
def test_one_layer_needs_no_refresh(models, family, schedule, kind, monkeypatch):
    """Its keys depend on their own token alone: what is kept is exact, if the window is right."""
    dlm = models[family, 1]
    options = dict(schedule=schedule, block_size=3, temperature=0.7)
    plain = run(dlm, **options)
    record = Recorded(dlm, monkeypatch)
    cached = run(dlm, dlm_cache=kind, **NEVER, **options)
    assert torch.equal(plain.sequences, cached.sequences)
    assert torch.equal(plain.num_function_evaluations, cached.num_function_evaluations)
    assert torch.equal(plain.step_of, cached.step_of)
    widths = [out.shape[1] for out in record.out]
    assert widths[0] == 25 and max(widths[1:]) < 25  # one whole pass


@pytest.mark.parametrize("window", [(0, 0), (3, 4)])
@pytest.mark.parametrize("kind", KINDS)
def test_one_layer_in_holes_and_with_rows_that_leave(models, kind, window):
    dlm = models["Dream", 1]
    ids = torch.tensor([[1, MASK, MASK, 4, 5, MASK, 7, MASK], [1, 2, 3, 4, 5, 6, MASK, 8]])
    for options in ({"max_new_tokens": 0}, {"max_new_tokens": 5, "eos_fill": True}):
        ar = make_ar(dlm, window=window)
        options |= dict(ar_model=ar, seed=1, temperature=0.7, scope_blocks=1)
        plain = generate(dlm, ids, **options)
        cached = generate(dlm, ids, dlm_cache=kind, **NEVER, **options)
        assert torch.equal(plain.sequences, cached.sequences)


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", ["Dream", "llada"])
def test_a_window_is_those_columns_of_the_whole(models, family, attention):
    from codila.dlm_cache import CanvasKeys

    dlm = models[family, 1]
    dlm.set_attn_implementation(attention)
    ids, keep = padded([[1, 2, 3, MASK, MASK, 6], [4, 5, MASK, 7]], "left")
    for mask in (None, keep):
        keys = CanvasKeys()
        dlm.body(ids, mask, cache=keys)
        changed = ids.clone()
        changed[:, 4] = 9
        keys.window = slice(3, 5)
        part = dlm.body(changed[:, 3:5], mask, cache=keys, window=keys.window, length=6)
        torch.testing.assert_close(part, dlm.body(changed, mask)[:, 3:5])
    dlm.set_attn_implementation("sdpa")


@torch.no_grad()
@pytest.mark.parametrize("family", ["Dream", "llada"])
def test_a_window_is_a_pass_over_kept_keys_layer_by_layer(models, family):
    """By hand, on the decoder's own layers: the window's rows meet kept keys and their new ones."""
    dlm, body = models[family, 3], models[family, 3].model
    old = torch.tensor([[1, 2, 3, MASK, MASK, MASK, MASK, 8]])
    new = old.clone()
    new[0, 3:5] = torch.tensor([9, 4])
    window, at = slice(2, 6), torch.arange(8)[None]

    def layer_input(layer, x):
        return layer.input_layernorm(x)

    def attend(layer, x, queries):
        """Attention of some positions over the inputs x of all, and the rest of the layer."""
        mask = torch.ones(1, 1, queries.shape[1], 8, dtype=torch.bool)

        class Keys:
            def update(self, key, value, layer_idx, *_, **__):
                full = layer_input(layer, x)
                shape = (1, 8, -1, layer.self_attn.head_dim)
                k = layer.self_attn.k_proj(full).view(shape).transpose(1, 2)
                v = layer.self_attn.v_proj(full).view(shape).transpose(1, 2)
                cos, sin = body.rotary_emb(x, at)
                half = k.shape[-1] // 2
                turned = torch.cat([-k[..., half:], k[..., :half]], dim=-1)
                return k * cos[:, None] + turned * sin[:, None], v

        cos, sin = body.rotary_emb(x, at[:, window] if queries.shape[1] < 8 else at)
        out = layer(
            queries, attention_mask=mask, position_embeddings=(cos, sin), use_cache=True,
            **{dlm._cache_argument: Keys()},
        )  # fmt: skip
        return out[0] if isinstance(out, tuple) else out

    kept, fresh = body.embed_tokens(old), body.embed_tokens(new)[:, window]
    for layer in body.layers:
        inputs = kept.clone()
        inputs[:, window] = fresh  # what stands outside the window keeps the keys of the old pass
        fresh = attend(layer, inputs, fresh)
        kept = attend(layer, kept, kept)
    want = body.norm(fresh)

    from codila.dlm_cache import CanvasKeys

    keys = CanvasKeys()
    dlm.body(old, cache=keys)
    keys.window = window
    got = dlm.body(new[:, window], cache=keys, window=window, length=8)
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
    assert (got - dlm.body(new)[:, window]).abs().max() > 1e-3, "keys that are kept are not exact"


@pytest.mark.parametrize("family", ["Dream", "llada"])
def test_the_first_token_of_a_cached_block_is_predicted_like_any_other(models, family, monkeypatch):
    """A row that predicts its right neighbour must be in the window: the one before the block."""
    dlm, windows = models[family, 3], []
    body = dlm.body

    def record(ids, *args, window=None, **kwargs):
        windows.append(window)
        return body(ids, *args, window=window, **kwargs)

    monkeypatch.setattr(dlm, "body", record)
    options = dict(schedule="static", block_size=4, scope_blocks=1, eos_fill=False)
    generate(
        dlm, torch.tensor([PROMPTS[1]]), ar_model=make_ar(dlm), max_new_tokens=16, seed=0,
        dlm_cache="dual", **NEVER, **options,
    )  # fmt: skip
    # what the last step committed is written again; the next block ends the window
    starts = [3 + 4 * i - dlm.shift for i in range(3)]
    assert [(w.start, w.stop) for w in windows[1:]] == [(a, a + 8 + dlm.shift) for a in starts]


@pytest.mark.parametrize("kind", KINDS)
def test_refreshes_come_as_often_as_asked(models, kind, monkeypatch):
    dlm = models["Dream", 3]
    record = Recorded(dlm, monkeypatch)
    run(dlm, dlm_cache=kind, refresh_interval=3, schedule="entropy", **NEVER)
    whole = [out.shape[1] == 25 for out in record.out]
    assert whole == [i % 3 == 0 for i in range(18)]


def test_a_refresh_is_due_where_the_frontier_has_moved(models, monkeypatch):
    dlm = models["Dream", 3]
    record = Recorded(dlm, monkeypatch)
    ids = torch.tensor([PROMPTS[0]])
    options = dict(ar_model=make_ar(dlm), max_new_tokens=24, block_size=4, scope_blocks=1)
    generate(dlm, ids, dlm_cache="dual", window_blocks=2, eos_fill=False, **options)
    assert [out.shape[1] == 31 for out in record.out] == [True, False, True, False, True, False]


def test_deeper_models_decode_everything_all_the_same(models):
    dlm = models["Dream", 3]
    for kind in KINDS:
        out = run(dlm, dlm_cache=kind, refresh_interval=4)
        assert not (out.sequences[:, 7:] == MASK).any()
        assert (out.sequences < EOS + 1).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dlm_cache": "both"}, "dlm_cache='both': expected none, prefix or dual"),
        ({"dlm_cache": "dual", "refresh_interval": 0}, "refresh_interval=0"),
        ({"refresh_interval": 4}, r"\['refresh_interval'\] are read by dlm_cache"),
    ],
)
def test_what_cannot_be_is_refused(models, options, message):
    with pytest.raises(ValueError, match=message):
        run(models["Dream", 1], **options)


def test_a_model_of_which_only_logits_are_known_has_no_keys_to_keep():
    dlm = make_dlm()
    foreign = ForeignDLM(dlm)
    with pytest.raises(ValueError, match="only logits are known"):
        generate(
            foreign, torch.tensor([[1]]), schedule="entropy", max_new_tokens=4, dlm_cache="dual"
        )
