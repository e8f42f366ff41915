"""`attach` and `detach`: our models, and modules of which only the logits are known."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "runtime"))

from foreign_modules import RemoteDream, RemoteLLaDA  # noqa: E402
from test_llada_model import write_checkpoint  # noqa: E402
from tiny_pairs import EOS, MASK, make_ar, make_dlm, save_ar, with_metadata  # noqa: E402

import codila  # noqa: E402
from codila.models.checkpoint import CheckpointError  # noqa: E402
from codila.models.loading import load_dlm  # noqa: E402

IDS = torch.tensor([[0, 0, 1, 2], [3, 4, 5, 6]])
KEEP = torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]])


@pytest.fixture(params=["Dream", "llada"])
def models(request, tmp_path):
    """One of our models, and the same as a foreign module."""
    if request.param == "Dream":
        ours = make_dlm()
        return ours, RemoteDream(make_dlm())
    write_checkpoint(tmp_path)
    return (load_dlm(tmp_path, dtype=torch.float64),
            RemoteLLaDA(load_dlm(tmp_path, dtype=torch.float64)))  # fmt: skip


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.7},
        {"alg": "codila_dynamic", "entropy_threshold": 2.0},
        {"alg": "entropy", "steps": 8, "temperature": 0.7},
        {"alg": "entropy", "steps": 8, "compat": "dream"},
    ],
)
def test_a_foreign_module_decodes_as_ours_does(models, options):
    ours, theirs = models
    ar = make_ar(ours)
    torch.manual_seed(0)
    own = {} if options.get("compat") else {"seed": 5}
    want = codila.attach(ours, ar).diffusion_generate(
        IDS, attention_mask=KEEP, max_new_tokens=8, **options, **own
    )
    torch.manual_seed(0)
    got = codila.attach(theirs, ar).diffusion_generate(
        IDS, attention_mask=KEEP, max_new_tokens=8, **options, **own
    )
    assert torch.equal(got, want)
    assert not (got == MASK).any()


def test_no_mask_is_handed_over_where_nothing_is_padded():
    model = codila.attach(RemoteDream(make_dlm()))
    model.diffusion_generate(IDS[1:], max_new_tokens=4, alg="entropy", steps=2)
    assert model.masks == [None, None]


def test_detach_restores_what_was_there():
    theirs = RemoteDream(make_dlm())
    assert theirs.diffusion_generate(IDS) == "their own"
    codila.attach(theirs)
    codila.attach(theirs)  # again: still one layer
    assert theirs.diffusion_generate(IDS, alg="entropy", max_new_tokens=4).shape == (2, 8)
    assert codila.detach(theirs) is theirs
    assert theirs.diffusion_generate(IDS) == "their own"
    assert "diffusion_generate" not in vars(theirs)
    theirs.diffusion_generate = lambda inputs: "set by hand"
    codila.detach(codila.attach(theirs))
    assert theirs.diffusion_generate(IDS) == "set by hand"
    ours = make_dlm()
    codila.detach(codila.detach(codila.attach(ours)))
    assert not hasattr(ours, "diffusion_generate")


def test_the_method_documents_itself():
    model = codila.attach(make_dlm())
    assert "alg" in inspect.getdoc(model.diffusion_generate)


def test_weights_and_submodules_are_left_alone():
    model = make_dlm()
    before = list(model.state_dict())
    codila.attach(model, make_ar(model))
    assert list(model.state_dict()) == before


def test_an_ar_model_by_its_folder(tmp_path):
    model = make_dlm(dtype=torch.float32)
    ar = make_ar(model, dtype=torch.float32)
    save_ar(tmp_path / "ar", ar, model)
    options = dict(max_new_tokens=8, seed=0)
    want = codila.attach(model, ar).diffusion_generate(IDS[1:], **options)
    got = codila.attach(model, tmp_path / "ar").diffusion_generate(IDS[1:], **options)
    assert torch.equal(got, want)


def test_models_that_cannot_be_attached_say_why():
    model = make_dlm()
    other = with_metadata(make_ar(model), dlm={"vocab_size": 5})
    with pytest.raises(CheckpointError, match="vocab_size=5"):
        codila.attach(model, other)
    unknown = RemoteDream(make_dlm())
    unknown.config = SimpleNamespace(model_type="mdlm", mask_token_id=MASK, eos_token_id=EOS)
    with pytest.raises(ValueError, match="model_type 'mdlm': give shift=1"):
        codila.attach(unknown)
    unknown.config = SimpleNamespace(model_type="Dream", mask_token_id=None, eos_token_id=EOS)
    with pytest.raises(ValueError, match="no mask_token_id"):
        codila.attach(unknown)
