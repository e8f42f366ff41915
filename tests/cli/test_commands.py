"""The command as a whole, `codila train` and `codila evaluate`."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import codila

ROOT = Path(__file__).parents[2]

SHAPE = {
    "vocab_size": 1088,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}

LOADED = """
import sys
from typer.testing import CliRunner
from codila.cli import app
for words in (["--help"], ["generate", "--help"], ["train", "ar", "--help"], ["--version"]):
    assert CliRunner().invoke(app, words).exit_code == 0
print(sorted({"torch", "transformers", "numpy"} & set(sys.modules)))
"""


def test_help_imports_neither_torch_nor_transformers():
    done = subprocess.run(
        [sys.executable, "-c", LOADED], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]"


def test_version(codila_command):
    assert codila_command("--version").stdout == f"codila {codila.__version__}\n"


def test_help_lists_the_commands(codila_command):
    output = codila_command("--help").stdout
    for name in ("generate", "evaluate", "train"):
        assert name in output


@pytest.fixture
def tiny_recipes(tmp_path) -> dict[str, str]:
    """Recipe files of models that train in a second, over the bundled tokenizers."""
    pretrained = Path(codila.__file__).parent / "pretrained" / "tiny"
    common = {"pairs": 300, "rows": 2, "steps": 5, "warmup": 1}
    recipes = {
        "dlm": {"tokenizer": str(pretrained / "dlm"), "model": SHAPE},
        "ar": {
            "tokenizer": str(pretrained / "ar"),
            "model": SHAPE | {"vocab_size": 1056, "head_dim": 8},
            "dlm": str(tmp_path / "run-dlm" / "dlm"),
            "region": 64,
            "optimizer": "muon",
        },
    }
    files = {}
    for kind, recipe in recipes.items():
        file = tmp_path / f"{kind}.json"
        file.write_text(json.dumps(recipe | common), encoding="utf-8")
        files[kind] = str(file)
    return files


def test_trained_checkpoints_generate(codila_command, tiny_recipes, tmp_path):
    for kind in ("dlm", "ar"):
        output = tmp_path / f"run-{kind}"
        options = ("--config", tiny_recipes[kind], "--steps", "2", "--set", "rows=3")
        result = codila_command("train", kind, *options, "--output", str(output), "--seed", "7")
        assert result.exit_code == 0, result.output
        assert "checkpoint: " in result.stdout
        recipe = json.loads((output / "config.json").read_text())
        assert (recipe["steps"], recipe["rows"], recipe["seed"]) == (2, 3, 7)
    dlm, ar = tmp_path / "run-dlm" / "dlm", tmp_path / "run-ar" / "ar"
    words = ("--dlm", str(dlm), "--ar", str(ar), "--max-new-tokens", "8", "--json")
    result = codila_command("generate", "def f(n):\n", *words)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["config"]["conditioning"] == "soft"


@pytest.fixture
def train_ar(codila_command, folders, tiny_recipes, tmp_path):
    """``train_ar(*options)``: `codila train ar` on the pair's DLM, in ``tmp_path / "ar"``."""
    words = ("--config", tiny_recipes["ar"], "--set", f"dlm={folders[0]}", "--steps", "1")

    def run(*options):
        return codila_command("train", "ar", *words, "--output", str(tmp_path / "ar"), *options)

    return run


def test_a_dry_run_shows_examples_and_the_first_loss_and_writes_nothing(train_ar, tmp_path):
    result = train_ar("--dry-run")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("--- example") == 3
    assert "⟦" in result.stdout
    assert "first loss " in result.stdout
    assert not (tmp_path / "ar").exists()


def test_an_estimate_reads_no_weights(train_ar, folders, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(folders[0] / "config.json", bare)
    result = train_ar("--estimate", "--set", f"dlm={bare}")
    assert result.exit_code == 0, result.output
    assert "DLM weights" in result.stdout
    assert "work per step" in result.stdout
    assert not (tmp_path / "ar").exists()


@pytest.mark.parametrize(
    ("variants", "uploaded"),
    [
        ({"ar": {}}, {"ar": "me/codila"}),
        ({"a": {}, "b": {}}, {"a": "me/codila-a", "b": "me/codila-b"}),
    ],
)
def test_trained_models_are_uploaded_under_their_names(train_ar, monkeypatch, variants, uploaded):
    seen = {}

    def upload(folder, repo):
        assert (folder / "model.safetensors").is_file() and (folder / "codila.json").is_file()
        seen[folder.name] = repo
        return f"https://hub/{repo}"

    monkeypatch.setattr("codila.models.ar.upload_ar", upload)
    result = train_ar("--set", f"variants={json.dumps(variants)}", "--push-to-hub", "me/codila")
    assert result.exit_code == 0, result.output
    assert seen == uploaded
    assert all(f"uploaded: https://hub/{repo}" in result.stdout for repo in uploaded.values())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--config", "huge"), "no recipe 'huge'"),
        (("--set", "rows"), "expected KEY=VALUE"),
        (("--set", "speed=9"), "unknown keys ['speed']"),
        (("--set", "tokenizer=nowhere"), "no such folder: nowhere"),
    ],
)
def test_train_mistakes(codila_command, tmp_path, arguments, said):
    result = codila_command("train", "dlm", *arguments, "--output", str(tmp_path / "run"))
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_bundled_recipes_are_found_from_any_folder(codila_command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ("--set", "pairs=100", "--set", "rows=1", "--set", f"model={json.dumps(SHAPE)}")
    result = codila_command("train", "dlm", "--steps", "1", *words, "--output", "run")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "run" / "dlm" / "config.json").is_file()


def test_resume_with_another_recipe_is_refused(codila_command, tiny_recipes, tmp_path):
    words = ("train", "dlm", "--config", tiny_recipes["dlm"], "--output", str(tmp_path / "run"))
    assert codila_command(*words, "--steps", "1").exit_code == 0
    result = codila_command(*words, "--steps", "1", "--seed", "9")
    assert result.exit_code == 2
    assert "another configuration (seed)" in result.stderr


def test_evaluate(codila_command):
    words = ("evaluate", "--task", "toy", "PAIR", "--n", "3", "--max-new-tokens", "8")
    result = codila_command(*words, "--json", "--block-size", "2", "--split", "dev")
    assert result.exit_code == 0, result.output
    out = json.loads(result.stdout)
    assert out["n"] == 3
    assert out["split"] == "dev"
    assert 0 <= out["interval"][0] <= out["pass_at_1"] <= out["interval"][1] <= 1
    assert 0 <= out["syntax_error"] <= 1
    assert {"nfe", "tokens_per_forward", "seconds"} <= out.keys()
    assert out["config"]["block_size"] == 2
    plain = codila_command(*words, "--base")
    assert plain.exit_code == 0, plain.output
    assert "Pass@1" in plain.stdout


def test_evaluate_passes_its_options_on(codila_command, monkeypatch):
    import codila.evaluation.toy as toy

    seen = {}

    def fake(pair, **options):
        seen.update(options, ar=pair.ar)
        fields = {f.name: 0 for f in dataclasses.fields(toy.ToyResult)}
        return toy.ToyResult(**fields | {"interval": (0.0, 1.0)})

    monkeypatch.setattr(toy, "evaluate_toy", fake)
    options = ("--n", "7", "--split", "dev", "--batch-size", "2", "--seed", "5")
    result = codila_command("evaluate", "PAIR", *options, "--base", "--top-p", "0.5")
    assert result.exit_code == 0, result.output
    assert callable(seen.pop("progress"))
    config = seen.pop("generation_config")
    assert seen == {"ar": None, "n": 7, "split": "dev", "batch_size": 2, "seed": 5}
    assert (config.schedule, config.tokens_per_step, config.top_p) == ("entropy", 4, 0.5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("--task", "chess"), "expected 'toy'"), (("--split", "rest"), "split is 'rest'")],
)
def test_evaluate_mistakes(codila_command, arguments, said):
    result = codila_command("evaluate", "PAIR", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
