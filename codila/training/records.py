"""Chat and instruction records: where they come from, and what of them is prompt and answer.

A record is a JSON object (a line of a .jsonl file, a row of a .parquet file or of a hub data set)
in one of these forms; a conversation's last assistant turn is the answer:

* ``messages`` or ``conversations``: turns of ``role`` and ``content`` (or ``from`` and ``value``);
  ``HUMAN``, ``human`` and ``user`` mean the same, and so do ``ASSISTANT``, ``gpt`` and
  ``assistant``. Ling-Coder-SFT has this form.
* ``prompt`` and ``response`` (or ``completion``, ``answer``, ``output``).
* ``instruction``, perhaps ``input``, and ``output`` (or ``response``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROLES = {
    "system": "system", "user": "user", "human": "user", "assistant": "assistant",
    "gpt": "assistant", "bot": "assistant",
}  # fmt: skip
ANSWERS = ("response", "completion", "answer", "output")


class MalformedRecord(ValueError):
    """A record that is in none of the known forms, and why."""


class Record(NamedTuple):
    """The turns in front of the answer (``role`` and ``content``), and the answer."""

    prompt: list[dict[str, str]]
    answer: str


class Located(NamedTuple):
    """A raw record, or what is wrong with it, and the place that an error names."""

    place: str
    value: Any
    error: str | None = None


def parse(value: Any) -> Record:
    """A :class:`Record` of a raw one.

    Raises:
        MalformedRecord: not an object, an unknown form or role, no answer, an empty turn.
    """
    if not isinstance(value, dict):
        raise MalformedRecord(f"a {type(value).__name__}, expected an object")
    turns = value.get("messages") or value.get("conversations")
    if turns is None:
        turns = _turns_of_fields(value)
    if not isinstance(turns, list) or len(turns) < 2:
        raise MalformedRecord("fewer than two turns")
    messages = [_turn(turn) for turn in turns]
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()
    if len(messages) < 2:
        raise MalformedRecord("no assistant turn behind another one")
    return Record(messages[:-1], messages[-1]["content"])


def _turns_of_fields(value: dict[str, Any]) -> list[dict[str, Any]]:
    question = value.get("prompt", value.get("instruction"))
    answer = next((value[key] for key in ANSWERS if value.get(key) is not None), None)
    if question is None or answer is None:
        raise MalformedRecord(
            f"fields {sorted(value)}, expected messages, prompt and response, or instruction and "
            "output"
        )
    if value.get("input"):
        question = f"{question}\n\n{value['input']}"
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _turn(turn: Any) -> dict[str, str]:
    if not isinstance(turn, dict):
        raise MalformedRecord(f"a turn that is a {type(turn).__name__}")
    role = turn.get("role", turn.get("from"))
    content = turn.get("content", turn.get("value"))
    known = ROLES.get(str(role).lower())
    if known is None:
        raise MalformedRecord(f"a turn with role {role!r}")
    if not isinstance(content, str) or not content.strip():
        raise MalformedRecord(f"an empty turn of {known}")
    return {"role": known, "content": content}


def read(source: str) -> Iterator[Located]:
    """All raw records of a .jsonl or .parquet file, or of a hub data set's train split.

    Raises:
        ValueError: no such file, or a kind that needs a package that is not installed.
    """
    path = Path(source)
    if path.suffix == ".jsonl":
        return _read_jsonl(path)
    if path.suffix == ".parquet":
        return _read_parquet(path)
    if path.exists() or path.suffix:
        raise ValueError(f"data {source}: expected a .jsonl or .parquet file, or a hub data set")
    return _read_hub(source)


def _read_jsonl(path: Path) -> Iterator[Located]:
    if not path.is_file():
        raise ValueError(f"data {path}: no such file")

    def lines() -> Iterator[Located]:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.strip():
                    continue
                place = f"{path}:{number}"
                try:
                    yield Located(place, json.loads(line))
                except ValueError as error:  # UnicodeDecodeError is one
                    yield Located(place, None, f"not JSON: {error}")

    return lines()


def _read_parquet(path: Path) -> Iterator[Located]:
    if not path.is_file():
        raise ValueError(f"data {path}: no such file")
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise ValueError(f"data {path}: needs pyarrow: pip install 'codila[train]'") from error

    def rows() -> Iterator[Located]:
        number = 0
        for batch in pyarrow.parquet.ParquetFile(path).iter_batches(1024):
            for value in batch.to_pylist():
                number += 1
                yield Located(f"{path}, row {number}", value)

    return rows()


def _read_hub(name: str) -> Iterator[Located]:
    try:
        import datasets
    except ImportError as error:
        raise ValueError(
            f"data {name}: no such file, and a hub data set needs datasets: "
            "pip install 'codila[train]'"
        ) from error

    def rows() -> Iterator[Located]:
        stream = datasets.load_dataset(name, split="train", streaming=True)
        for number, value in enumerate(stream, 1):
            yield Located(f"{name}, row {number}", value)

    return rows()
