"""`codila generate`: where the prompt comes from, what is printed, and which options win."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from codila import GenerationConfig
from codila.config import CONFIG_NAME

PROMPT = 'def f(nums):\n    """Return the sum."""\n'
SHORT = ("--max-new-tokens", "12")


def generated(result) -> dict:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_json_is_one_object(codila_command):
    result = codila_command("generate", PROMPT, "PAIR", "--json", *SHORT)
    out = generated(result)
    assert out["prompt"] == PROMPT
    assert out["config"]["block_size"] == 4
    assert out["config"]["max_new_tokens"] == 12
    assert 1 <= out["tokens"] <= 12
    assert out["num_function_evaluations"] >= 1
    assert out["tokens_per_forward"] == pytest.approx(
        out["tokens"] / out["num_function_evaluations"]
    )
    assert out["seconds"] > 0
    assert isinstance(out["text"], str)
    assert result.stdout.count("\n") == 1
    assert result.stderr == ""


def test_plain_output_is_the_text_and_figures_are_apart(codila_command):
    text = generated(codila_command("generate", PROMPT, "PAIR", "--json", *SHORT))["text"]
    result = codila_command("generate", PROMPT, "PAIR", *SHORT)
    assert result.exit_code == 0
    assert result.stdout.rstrip("\n") == (PROMPT + text).rstrip("\n")
    assert "steps (NFE)" in result.stderr
    assert "tokens per forward" in result.stderr


def test_masks_in_a_prompt_are_filled_in_place(codila_command):
    prompt = "def f(nums):\n    total =<|mask|><|mask|>\n    return total\n"
    result = codila_command("generate", prompt, "PAIR", "--json", "--max-new-tokens", "0")
    out = generated(result)
    assert out["prompt"].endswith("total =")
    assert out["text"].endswith("return total\n")
    assert out["tokens"] == 2
    assert "<|mask|>" not in out["prompt"] + out["text"]


def test_seed_decides(codila_command):
    def text(seed: str) -> str:
        options = ("--temperature", "1", "--top-p", "1", "--seed", seed, "--json", *SHORT)
        return generated(codila_command("generate", PROMPT, "PAIR", *options))["text"]

    assert text("3") == text("3")
    assert text("3") != text("4")


def test_typed_newlines_are_decoded(codila_command):
    typed = PROMPT.replace("\n", "\\n")
    assert "\n" not in typed
    assert (
        generated(codila_command("generate", typed, "PAIR", "--json", *SHORT))["prompt"] == PROMPT
    )


def test_backslashes_stay_where_there_are_real_newlines(codila_command):
    prompt = 'def f(s):\n    """Split s at \\n."""\n'
    out = generated(codila_command("generate", prompt, "PAIR", "--json", *SHORT))
    assert out["prompt"] == prompt


@pytest.mark.parametrize("argument", [("-",), ()])
def test_standard_input(codila_command, argument):
    result = codila_command("generate", *argument, "PAIR", "--json", *SHORT, input=PROMPT)
    assert generated(result)["prompt"] == PROMPT


def test_file(codila_command, tmp_path):
    file = tmp_path / "prompt.py"
    file.write_text(PROMPT, encoding="utf-8")
    out = generated(codila_command("generate", str(file), "PAIR", "--json", *SHORT))
    assert out["prompt"] == PROMPT


def test_base_has_equal_parallelism(codila_command):
    options = ("--base", "--block-size", "2", "--scope", "3", "--json", *SHORT)
    config = generated(codila_command("generate", PROMPT, "PAIR", *options))["config"]
    assert config["schedule"] == "entropy"
    assert config["tokens_per_step"] == 2
    assert config["scope_blocks"] == 3


def test_base_needs_no_ar_model_and_takes_another_count(codila_command, folders):
    options = ("--dlm", str(folders[0]), "--base", "--tokens-per-step", "3", "--json", *SHORT)
    out = generated(codila_command("generate", PROMPT, *options, "--schedule", "margin"))
    assert out["config"]["tokens_per_step"] == 3
    assert out["config"]["schedule"] == "margin"
    # 12 positions at 3 a step, sooner if an end token comes first
    assert out["num_function_evaluations"] <= 4


def test_options_win_over_the_file(codila_command, tmp_path):
    GenerationConfig(block_size=2, temperature=0.7, schedule="dynamic").save_pretrained(tmp_path)
    file = tmp_path / CONFIG_NAME
    for given in (str(file), str(tmp_path)):
        options = ("--config", given, "--temperature", "0", "--tau", "0.5", "--json", *SHORT)
        config = generated(codila_command("generate", PROMPT, "PAIR", *options))["config"]
        assert config["block_size"] == 2
        assert config["schedule"] == "dynamic"
        assert config["temperature"] == 0
        assert config["entropy_threshold"] == 0.5


def test_shown_defaults_are_the_defaults():
    import typer.main

    from codila.cli import app

    command = typer.main.get_command(app).commands["generate"]  # type: ignore[attr-defined]
    defaults = GenerationConfig()
    checked = 0
    for parameter in command.params:
        shown = getattr(parameter, "show_default", None)
        if isinstance(shown, str) and hasattr(defaults, parameter.name):
            if parameter.name == "conditioning":
                continue
            assert shown == str(getattr(defaults, parameter.name)), parameter.name
            checked += 1
    assert checked >= 8


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--schedule", "fastest"), "expected one of"),
        (("--block-size", "3"), "trained for [2, 4]"),
        (("--top-p", "1.5"), "top_p=1.5"),
        (("--conditioning", "hard"), "expected 'soft' or 'top-K'"),
        (("--max-new-tokens", "200"), "exceed the model's limit of 128 tokens"),
        (("--base", "--schedule", "static"), "leave one of the two out"),
        (("--dtype", "int8"), "expected one of float64"),
        (("--device", "abacus"), "expected cpu"),
        (("--config", "missing.json"), "no such file"),
        (("--pair", "tiny"), "not both"),
    ],
)
def test_mistakes_take_one_line(codila_command, arguments, said):
    result = codila_command("generate", PROMPT, "PAIR", *arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert said in result.stderr
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("prompt", "said"),
    [("", "empty"), (" \n", "empty"), ("prompts/missing.py", "no such file")],
)
def test_unusable_prompts(codila_command, prompt, said):
    result = codila_command("generate", prompt, "PAIR")
    assert result.exit_code == 2
    assert said in result.stderr


@pytest.mark.parametrize(
    ("content", "said"),
    [("{", "not JSON"), ("[1]", "JSON object"), ('{"speed": 9}', "unknown generation option")]
    + [('{"temperature": "hot"}', "temperature='hot'")],
)
def test_unusable_config_files(codila_command, tmp_path, content, said):
    file = tmp_path / "config.json"
    file.write_text(content, encoding="utf-8")
    result = codila_command("generate", PROMPT, "PAIR", "--config", str(file))
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.count("\n") == 1


def test_dlm_alone_points_to_base(codila_command, folders):
    result = codila_command("generate", PROMPT, "--dlm", str(folders[0]))
    assert result.exit_code == 2
    assert "--base" in result.stderr


def test_missing_folder(codila_command):
    result = codila_command("generate", PROMPT, "--dlm", "./nowhere", "--base")
    assert result.exit_code == 2
    assert "no such folder" in result.stderr


def damage_weights(ar: Path) -> None:
    weights = ar / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:5000])


def damage_metadata(ar: Path) -> None:
    data = json.loads((ar / "codila.json").read_text())
    del data["boundaries"]
    (ar / "codila.json").write_text(json.dumps(data))


def remove_metadata(ar: Path) -> None:
    (ar / "codila.json").unlink()


@pytest.mark.parametrize("damage", [damage_weights, damage_metadata, remove_metadata])
def test_broken_checkpoints(codila_command, folders, tmp_path, damage):
    import shutil

    ar = tmp_path / "ar"
    shutil.copytree(folders[1], ar)
    damage(ar)
    arguments = ("generate", PROMPT, "--dlm", str(folders[0]), "--ar", str(ar))
    result = codila_command(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    assert codila_command(*arguments, "--debug").exception is not None
    assert not isinstance(codila_command(*arguments, "--debug").exception, SystemExit)


def test_unreadable_number_names_the_option(codila_command):
    result = codila_command("generate", PROMPT, "PAIR", "--block-size", "four")
    assert result.exit_code == 2
    assert "--block-size" in result.stderr
