"""Chat and instruction records: every form, every mistake, the template, the cache."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from codila.models.loading import load_tokenizer
from codila.training.ar import ARTraining, train_ar
from codila.training.ar_recipe import ARRecipe
from codila.training.export import export_ars
from codila.training.records import MalformedRecord, Record, parse, read
from codila.training.sources import encode

USER, ANSWER = "write f", "def f(): return 1"
ASKED = [{"role": "user", "content": USER}]
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.mark.parametrize(
    "value",
    [
        {"messages": [*ASKED, {"role": "assistant", "content": ANSWER}]},
        {"messages": [{"role": "HUMAN", "content": USER}, {"role": "ASSISTANT", "content": ANSWER}],
         "mid": "x", "tags": ["code"], "languages": ["Python"]},  # Ling-Coder-SFT's fields
        {"conversations": [{"from": "human", "value": USER}, {"from": "gpt", "value": ANSWER}]},
        {"prompt": USER, "response": ANSWER},
        {"prompt": USER, "completion": ANSWER},
        {"instruction": USER, "output": ANSWER},
        {"instruction": USER, "input": "", "output": ANSWER},
        {"messages": [*ASKED, {"role": "assistant", "content": ANSWER}, ASKED[0]]},
    ],
)  # fmt: skip
def test_all_forms_say_the_same(value: dict) -> None:
    assert parse(value) == Record(ASKED, ANSWER)


def test_an_input_follows_its_instruction_and_turns_are_kept() -> None:
    value = {"instruction": "add", "input": "1 2", "output": "3"}
    assert parse(value).prompt[0]["content"] == "add\n\n1 2"
    turns = [{"role": "system", "content": "s"}, *ASKED]
    turns += [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    record = parse({"messages": [*turns, {"role": "assistant", "content": ANSWER}]})
    assert record == Record(turns, ANSWER)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([1], "a list, expected an object"),
        ({"text": "x"}, "fields \\['text'\\], expected messages"),
        ({"prompt": USER}, "expected messages, prompt and response"),
        ({"messages": []}, "expected messages"),
        ({"messages": ASKED}, "fewer than two turns"),
        ({"messages": [*ASKED, *ASKED]}, "no assistant turn"),
        ({"messages": [{"role": "assistant", "content": "a"}, *ASKED]}, "no assistant turn"),
        ({"messages": [*ASKED, {"role": "tool", "content": "x"}]}, "role 'tool'"),
        ({"messages": [*ASKED, {"role": "assistant", "content": " "}]}, "an empty turn of assist"),
        ({"messages": [*ASKED, {"role": "assistant", "content": None}]}, "an empty turn"),
        ({"messages": [*ASKED, "hello"]}, "a turn that is a str"),
    ],
)
def test_what_is_malformed_says_why(value, said: str) -> None:
    with pytest.raises(MalformedRecord, match=said):
        parse(value)


def test_lines_that_are_no_json_keep_their_number(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"prompt": "a"}\n\nnot json\n\xff\n[1]\n')
    got = [(located.place, located.error is None) for located in read(str(path))]
    expected = [(1, True), (3, False), (4, False), (5, True)]
    assert got == [(f"{path}:{line}", good) for line, good in expected]


def test_parquet_rows(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [{"prompt": f"q{i}", "response": f"a{i}"} for i in range(3000)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    got = list(read(str(tmp_path / "a.parquet")))
    assert [located.value for located in got] == rows
    assert got[2999].place.endswith("a.parquet, row 3000")


def test_hub_data_sets_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def load_dataset(name, **options):
        calls.append((name, options))
        return iter([{"prompt": "q", "response": "a"}])

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    (located,) = read("inclusionAI/Ling-Coder-SFT")
    assert located.place == "inclusionAI/Ling-Coder-SFT, row 1" and located.value["prompt"] == "q"
    assert calls == [("inclusionAI/Ling-Coder-SFT", {"split": "train", "streaming": True})]


@pytest.mark.parametrize(
    ("source", "said"),
    [("nowhere.jsonl", "no such file"), ("nowhere.parquet", "no such file"),
     ("data.csv", "expected a .jsonl or .parquet file")],
)  # fmt: skip
def test_sources_that_cannot_be_read(source: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        read(source)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match="pip install 'codila\\[train\\]'"):
        read("someone/data")


@pytest.fixture
def chat_tokenizer(dlm_folder: Path):
    tokenizer = load_tokenizer(dlm_folder)
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def test_the_answer_is_what_the_template_writes_behind_the_prompt(chat_tokenizer) -> None:
    prompt, answer = encode(Record(ASKED, ANSWER), chat_tokenizer, 1024)
    decode = chat_tokenizer.decode
    opening = "<|im_start|>assistant\n"
    assert decode(prompt) == f"<|im_start|>user\n{USER}<|im_end|>\n{opening}"
    assert decode(answer[:-1]) == f"{ANSWER}<|im_end|>\n" and answer[-1] == 1024
    assert 1024 not in answer[:-1]


def test_a_template_that_rewrites_its_prompt_is_malformed(chat_tokenizer) -> None:
    chat_tokenizer.chat_template = "{{ messages | length }}" + TEMPLATE
    with pytest.raises(MalformedRecord, match="changes the prompt"):
        encode(Record(ASKED, ANSWER), chat_tokenizer, 1024)


def test_without_a_template_turns_are_lines(dlm_folder: Path) -> None:
    tokenizer = load_tokenizer(dlm_folder)
    prompt, answer = encode(Record(ASKED, ANSWER), tokenizer, 1024)
    assert tokenizer.decode(prompt) == USER + "\n" and tokenizer.decode(answer[:-1]) == ANSWER


@pytest.fixture
def chat_recipe(ar_recipe: ARRecipe, tmp_path: Path) -> ARRecipe:
    """Two hundred records in a file, one of them no JSON, one too long, one too short."""
    lines = [
        json.dumps({"prompt": f"question {i}", "response": "def f(n):\n    return n + " + str(i)})
        for i in range(200)
    ]
    lines[7] = "{not json"
    lines[9] = json.dumps({"prompt": "q", "response": "return n " * 200})
    lines[11] = json.dumps({"prompt": "q", "response": "n"})
    (tmp_path / "chat.jsonl").write_text("\n".join(lines))
    return dataclasses.replace(
        ar_recipe,
        variants={"ar": {}},
        data=(str(tmp_path / "chat.jsonl"),),
        region=None,
        pairs=0,
        validation=20,
        max_length=180,
        extra=9,
        rows=2,
        steps=2,
    )


def test_records_train_and_what_is_left_out_is_counted(
    chat_recipe: ARRecipe, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    training = train_ar(chat_recipe, tmp_path / "run")
    assert len(training.train.members) == 200 - 3 - 20
    assert not set(training.train.members) & set(training.held_out.members)
    facts = json.loads((tmp_path / "run" / "corpus" / "facts.json").read_text())
    assert (facts["read"], facts["too_long"], facts["too_short"]) == (200, 1, 1)
    assert facts["malformed"][0].startswith(f"{chat_recipe.data[0]}:8: not JSON")
    said = capsys.readouterr()
    assert "200 records read, 1 malformed, 1 too long, 1 with too short" in said.out + said.err
    assert (export_ars(training, tmp_path / "run")[0] / "codila.json").is_file()
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["data_sha256"] == training.train.corpus.sha256()


def test_the_encoded_records_are_kept_until_something_changes(
    chat_recipe: ARRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ARTraining(chat_recipe, folder=tmp_path / "run").train(3)
    with monkeypatch.context() as patch:
        patch.setattr("codila.training.sources.read", None)  # it is not read again
        again = ARTraining(chat_recipe, folder=tmp_path / "run").train(3)
    assert first.ids.equal(again.ids)
    shorter = dataclasses.replace(chat_recipe, max_length=40)
    few = ARTraining(shorter, folder=tmp_path / "run")
    assert few.train.corpus.prompts.ids.size < 200 * 40
    in_memory = ARTraining(chat_recipe).train(3)
    assert first.ids.equal(in_memory.ids)


def test_resume_on_other_data_is_refused(chat_recipe: ARRecipe, tmp_path: Path) -> None:
    train_ar(chat_recipe, tmp_path / "run")
    path = Path(chat_recipe.data[0])
    path.write_text(path.read_text().replace("question 50", "another 50"))
    with pytest.raises(ValueError, match="another configuration \\(data_sha256\\)"):
        train_ar(dataclasses.replace(chat_recipe, steps=3), tmp_path / "run")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"max_malformed": 0}, "more than 0 malformed records .*:8: not JSON"),
        ({"max_length": 5}, "no record of .* is within the limits"),
        ({"validation": 197}, "197 records are within the limits, and 197 are to be held out"),
        ({"rows": 400}, "gives no batch of 400"),
    ],
)
def test_data_that_cannot_be_trained_on(chat_recipe, tmp_path, changes, said) -> None:
    with pytest.raises(ValueError, match=said):
        train_ar(dataclasses.replace(chat_recipe, **changes), tmp_path / "run")
    assert not (tmp_path / "run" / "log.jsonl").exists()
