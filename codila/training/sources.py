"""From a recipe's ``data`` to encoded corpora: the chat template, the limits, the cache on disk."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from codila.models.checkpoint import written_whole
from codila.toy.corpus import encode_corpus
from codila.training.ar_models import StartingPoint
from codila.training.ar_recipe import ARRecipe
from codila.training.corpus import Corpus, Ragged
from codila.training.data import Batches
from codila.training.distributed import World
from codila.training.records import MalformedRecord, Record, parse, read


@dataclasses.dataclass(frozen=True)
class Sources:
    """Training and held-out pairs; with records both are parts of one corpus."""

    train: Corpus
    held_out: Corpus
    train_members: np.ndarray | None = None
    held_out_members: np.ndarray | None = None

    @property
    def sha256(self) -> str:
        return self.train.sha256()

    def train_batches(self, rows: int, eos_token_id: int, **options: Any) -> Batches:
        return Batches(self.train, rows, eos_token_id, members=self.train_members, **options)

    def held_out_batches(self, rows: int, eos_token_id: int, **options: Any) -> Batches:
        members = self.held_out_members
        have = len(self.held_out.prompts) if members is None else len(members)
        return Batches(self.held_out, min(rows, have), eos_token_id, members=members, **options)


def corpora(recipe: ARRecipe, start: StartingPoint, world: World, folder: Path | None) -> Sources:
    """The pairs that a recipe names; records are encoded once and kept in ``folder``.

    Raises:
        ValueError: too many malformed records, none within the limits, or too few to hold some out.
    """
    if recipe.data == ("toy",):
        backend = start.tokenizer.backend_tokenizer
        toy: dict[str, Any] = {"max_body": recipe.region or 64, "end": start.dlm.eos_token_id}
        return Sources(
            encode_corpus(backend, recipe.pairs, recipe.seed, "train", **toy),
            encode_corpus(backend, 2048, 0, "dev", **toy),
        )
    corpus = _cached(recipe, start.tokenizer, start.dlm.eos_token_id, world, folder)
    count = len(corpus.prompts)
    if count <= recipe.validation:
        raise ValueError(
            f"{count} records are within the limits, and {recipe.validation} are to be held out: "
            "give more data or a smaller validation="
        )
    order = np.random.default_rng([recipe.seed, 2]).permutation(count)
    held_out, train = order[: recipe.validation], order[recipe.validation :]
    return Sources(corpus, corpus, np.sort(train), np.sort(held_out))


def encode(record: Record, tokenizer: Any, eos_token_id: int) -> tuple[list[int], list[int]]:
    """Ids of prompt and answer, the latter with the end token.

    With a chat template the answer is what the template writes behind the prompt and its opening of
    the assistant's turn; without one, turns are lines of text.

    Raises:
        MalformedRecord: a template whose conversation does not begin with its own prompt.
    """
    if getattr(tokenizer, "chat_template", None):
        whole = [*record.prompt, {"role": "assistant", "content": record.answer}]
        prompt = tokenizer.apply_chat_template(
            record.prompt, add_generation_prompt=True, tokenize=False
        )
        text = tokenizer.apply_chat_template(whole, tokenize=False)
        if not text.startswith(prompt):
            raise MalformedRecord("the chat template changes the prompt once there is an answer")
        answer = text[len(prompt) :]
    else:
        prompt = "".join(f"{turn['content']}\n" for turn in record.prompt)
        answer = record.answer
    heads, tails = (tokenizer(t, add_special_tokens=False).input_ids for t in (prompt, answer))
    return heads, tails if tails[-1:] == [eos_token_id] else [*tails, eos_token_id]


def _cached(
    recipe: ARRecipe, tokenizer: Any, eos: int, world: World, folder: Path | None
) -> Corpus:
    if folder is None:
        return _in_memory(recipe, tokenizer, eos)
    place, key = folder / "corpus", _key(recipe, tokenizer)
    facts = place / "facts.json"
    stale = not facts.is_file() or json.loads(facts.read_text())["key"] != key
    if stale and world.is_main:
        _write(recipe, tokenizer, eos, key, place)
    world.wait()
    dropped = json.loads(facts.read_text())["dropped"]

    def ragged(name: str) -> Ragged:
        ids = np.memmap(place / f"{name}.ids", np.int32, "r")
        return Ragged(ids, np.load(place / f"{name}.npy"))

    return Corpus(ragged("prompts"), ragged("answers"), dropped)


def _in_memory(recipe: ARRecipe, tokenizer: Any, eos: int) -> Corpus:
    report = Report(recipe.max_malformed)
    pairs = list(_encoded(recipe, tokenizer, eos, report))
    return Corpus(Ragged.of(p for p, _ in pairs), Ragged.of(a for _, a in pairs), report.left_out)


def _write(recipe: ARRecipe, tokenizer: Any, eos: int, key: str, place: Path) -> None:
    """Encode everything into a folder that appears when it is whole."""
    report = Report(recipe.max_malformed)
    pairs = _encoded(recipe, tokenizer, eos, report)
    with written_whole(place) as scratch:
        lengths: dict[str, list[np.ndarray]] = {"prompts": [], "answers": []}
        with (
            (scratch / "prompts.ids").open("wb") as prompts,
            (scratch / "answers.ids").open("wb") as answers,
        ):
            while batch := list(itertools.islice(pairs, 10_000)):
                for i, (name, file) in enumerate((("prompts", prompts), ("answers", answers))):
                    piece = Ragged.of(pair[i] for pair in batch)
                    piece.ids.tofile(file)
                    lengths[name].append(np.diff(piece.offsets))
        if not lengths["prompts"]:
            raise ValueError(f"no record of {list(recipe.data)} is within the limits: {report}")
        for name, parts in lengths.items():
            np.save(scratch / f"{name}.npy", np.concatenate([[0], *parts]).cumsum())
        facts = {"key": key, "dropped": report.left_out, **dataclasses.asdict(report)}
        (scratch / "facts.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    tqdm.write(f"data: {report}")


@dataclasses.dataclass
class Report:
    """What became of the records that were read."""

    max_malformed: int
    read: int = 0
    malformed: list[str] = dataclasses.field(default_factory=list)
    too_long: int = 0
    too_short: int = 0

    @property
    def left_out(self) -> int:
        return len(self.malformed) + self.too_long + self.too_short

    def reject(self, place: str, reason: str) -> None:
        """Count a malformed record; one too many ends the run."""
        self.malformed.append(f"{place}: {reason}")
        tqdm.write(f"skipped {self.malformed[-1]}")
        if len(self.malformed) > self.max_malformed:
            raise ValueError(
                f"more than {self.max_malformed} malformed records (max_malformed), the last: "
                f"{self.malformed[-1]}"
            )

    def __str__(self) -> str:
        return (
            f"{self.read} records read, {len(self.malformed)} malformed, {self.too_long} too long, "
            f"{self.too_short} with too short an answer"
        )


def _encoded(
    recipe: ARRecipe, tokenizer: Any, eos: int, report: Report
) -> Iterator[tuple[list[int], list[int]]]:
    located = itertools.chain.from_iterable(read(source) for source in recipe.data)
    for place, value, error in tqdm(located, unit="record", desc="encoding"):
        if recipe.pairs and report.read == recipe.pairs:
            return
        report.read += 1
        try:
            if error is not None:
                raise MalformedRecord(error)
            prompt, answer = encode(parse(value), tokenizer, eos)
        except MalformedRecord as problem:
            report.reject(place, str(problem))
            continue
        longest = recipe.region or recipe.max_length
        if len(prompt) + len(answer) > recipe.max_length or len(answer) > longest:
            report.too_long += 1
        elif len(answer) <= recipe.min_answer:
            report.too_short += 1
        else:
            yield prompt, answer


def _key(recipe: ARRecipe, tokenizer: Any) -> str:
    """Whatever the encoding depends on: files, limits, tokenizer and template."""
    files = []
    for source in recipe.data:
        path = Path(source)
        stat = path.stat() if path.is_file() else None
        files.append((source, None if stat is None else (stat.st_size, stat.st_mtime_ns)))
    limits = (recipe.pairs, recipe.max_length, recipe.min_answer, recipe.region)
    words = (sorted(tokenizer.get_vocab().items()), getattr(tokenizer, "chat_template", None))
    text = json.dumps([files, limits, words], default=str)
    return hashlib.sha256(text.encode()).hexdigest()
