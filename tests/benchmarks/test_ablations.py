"""Studies of AR training: what they vary, what they conclude, that they go on and end in points."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from benchmarks import ablations
from benchmarks.ablations import STUDIES, Study, main, means, recipe_of, verdict

SMALL = {
    "pairs": 300, "rows": 2, "eval_batches": 1, "block_sizes": [4], "embeddings_from_dlm": False,
    "model": {
        "vocab_size": 1056, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16,
        "max_position_embeddings": 256, "tie_word_embeddings": True,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", STUDIES)
def test_every_variant_of_a_study_is_a_recipe_whose_model_runs(name):
    study = STUDIES[name]
    recipe = recipe_of(study, 20, 11, tuple(study.variants))
    assert list(recipe.variants) == list(study.variants)
    for variant in study.variants:
        shape = recipe.of(variant).model
        if shape is not None:
            model = Qwen3ForCausalLM(Qwen3Config(**shape))
            assert model(torch.zeros(1, 3, dtype=torch.long)).logits.shape[:2] == (1, 3)


def test_the_bundled_size_is_that_of_the_bundled_model():
    study = STUDIES["ar-size"]
    recipe = recipe_of(study, 20, 11, tuple(study.variants))
    shape = json.loads(Path(ablations.BUNDLED, "config.json").read_text())
    assert {k: shape[k] for k in recipe.of("192 x 3").model if k in shape}.items() <= shape.items()
    assert recipe.of("192 x 3").model["hidden_size"] == shape["hidden_size"] == 192


@pytest.fixture
def study(monkeypatch) -> Study:
    """Two variants of a model that trains in a second."""
    small = Study("Do they?", {"with": {}, "without": {"boundaries": None}}, SMALL)
    monkeypatch.setitem(STUDIES, "boundaries", small)
    return small


def test_a_study_trains_what_is_missing_and_ends_with_its_points(
    study, tmp_path, capsys, monkeypatch
):
    def run(**changes):
        files = {"json_file": tmp_path / "points.json", "plot_file": None}
        options = {"quick": False, "steps": 2, "seeds": 1, "only": "", "solve": 0}
        main("boundaries", **options | files | {"runs": tmp_path} | changes)
        out = capsys.readouterr().out.splitlines()
        return out, json.loads(out[-1])

    out, points = run(only="with")
    assert [(p["variant"], p["block_size"]) for p in points] == [("with", 4)]
    assert not any(line.startswith("nll:") for line in out)  # nothing to hold it against
    out, points = run(runs=tmp_path / "both", plot_file=tmp_path / "curves.png")
    assert [p["variant"] for p in points] == ["with", "without"]
    assert (tmp_path / "curves.png").is_file()
    difference = points[1]["nll"] - points[0]["nll"]
    assert f"nll: without - with at B = 4: {difference:+.3f}" in out
    logged = (tmp_path / "both" / "boundaries-2" / "11" / "log.jsonl").read_text().splitlines()
    last = [json.loads(line) for line in logged if "validation" in line][-1]["validation"]
    assert points[1]["nll"] == last["without/B4"] == points[1]["curve"][-1][1]
    assert points[1]["dlm"] == last["dlm/B4"]

    monkeypatch.setattr(ablations, "train_ar", lambda *_: pytest.fail("trained again"))
    assert run()[1] == points


@pytest.mark.parametrize(
    ("name", "only", "said"),
    [("width", "", "no study 'width'"), ("boundaries", "maybe", r"no variants \['maybe'\]")],
)
def test_unknown_names_are_refused(name, only, said, tmp_path):
    with pytest.raises(SystemExit, match=said):
        main(name, steps=1, only=only, runs=tmp_path, json_file=None)


def test_the_verdict_is_a_mean_of_paired_differences():
    study = Study("?", {"a": {}, "b": {}})
    nll = {(1, "a"): 0.5, (1, "b"): 0.4, (2, "a"): 0.9, (2, "b"): 0.6, (3, "b"): 0.1}
    points = [
        {"seed": s, "variant": v, "block_size": 4, "nll": value} for (s, v), value in nll.items()
    ]
    assert verdict(study, points) == [
        "nll: b - a at B = 4: -0.200 [-0.300, -0.100] over 2 seeds"  # seed 3 has no pair
    ]
    assert verdict(study, points[:2]) == ["nll: b - a at B = 4: -0.100"]
    assert means(points, ("variant", "block_size"), ("nll",)) == [
        {"variant": "a", "block_size": 4, "nll": pytest.approx(0.7), "seeds": 2},
        {"variant": "b", "block_size": 4, "nll": pytest.approx(1.1 / 3), "seeds": 3},
    ]
