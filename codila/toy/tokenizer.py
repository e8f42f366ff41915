"""Two tokenizers over one base vocabulary, as a diffusion model and an AR model have.

The base is a byte-level BPE. The two folders share its ids and differ in the special tokens
added behind it, as Dream's and Qwen3's tokenizers do.
"""

from __future__ import annotations

import itertools
import json
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|endoftext|>"
DLM_TOKENS = (END, "<|beginoftext|>", "<|mask|>")
AR_TOKENS = (END, "<tool_response>", "</tool_response>", "<think>", "</think>")

# What a merge may not cross: letters, digits and punctuation stay apart, every digit stands
# alone, and a run of indentation is a piece of its own.
_PIECES = Regex(
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_STDLIB_MODULES = (
    "abc argparse ast base64 bisect bdb calendar cmd code codecs collections/__init__ colorsys "
    "configparser contextlib copy csv dataclasses datetime difflib dis doctest enum filecmp "
    "fileinput fnmatch fractions functools getopt gettext glob graphlib gzip hashlib heapq hmac "
    "inspect ipaddress json/decoder json/encoder linecache locale mailbox mimetypes operator "
    "optparse pathlib pickle pprint queue random reprlib sched shelve shlex statistics string "
    "tempfile textwrap timeit tokenize traceback types typing uuid weakref zipfile"
).split()


def stdlib_source() -> list[str]:
    """The source of a fixed list of pure-Python standard-library modules, where present."""
    folder = Path(sysconfig.get_path("stdlib"))
    paths = [folder / f"{module}.py" for module in _STDLIB_MODULES]
    return [path.read_text(encoding="utf-8") for path in paths if path.is_file()]


def train_tokenizer(corpus: Iterable[str], vocab_size: int = 1024) -> Tokenizer:
    """A byte-level BPE with exactly ``vocab_size`` base ids, of which 256 are the bytes.

    It is trained on the standard library's source and on ``corpus``, cut to half its size, so
    that two thirds of the text are ordinary Python and most words stay several tokens.
    Raises ValueError if the text does not yield that many merges.
    """
    source = stdlib_source()
    budget = sum(map(len, source)) // 2

    def text() -> Iterator[str]:
        yield from source
        sizes = itertools.accumulate(len(document) for document in documents)
        for document, total in zip(documents, sizes, strict=True):
            if source and total > budget:
                return
            yield document

    documents = list(corpus)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_PIECES, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[],
        show_progress=False,
    )
    tokenizer.train_from_iterator(text(), trainer)
    if tokenizer.get_vocab_size() != vocab_size:
        raise ValueError(
            f"the text gives {tokenizer.get_vocab_size()} ids, not {vocab_size}: give more text"
        )
    return tokenizer


def save_tokenizers(tokenizer: Tokenizer, dlm_dir: str | Path, ar_dir: str | Path) -> None:
    """Write the DLM's and the AR model's tokenizer folders, for ``AutoTokenizer``.

    Both add ``<|endoftext|>`` (end and padding) first. The DLM goes on with its beginning and
    mask tokens; the AR model with two pairs of ordinary added tokens. Nothing is inserted
    around an encoded text.
    """
    named = {"bos_token": "<|beginoftext|>", "mask_token": "<|mask|>"}
    _save(tokenizer, Path(dlm_dir), DLM_TOKENS, named, special=DLM_TOKENS)
    _save(tokenizer, Path(ar_dir), AR_TOKENS, {}, special=(END,))


def _save(
    base: Tokenizer,
    folder: Path,
    tokens: tuple[str, ...],
    named: dict[str, str],
    special: tuple[str, ...],
) -> None:
    tokenizer = Tokenizer.from_str(base.to_str())
    tokenizer.add_tokens(
        [AddedToken(token, special=token in special, normalized=False) for token in tokens]
    )
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": END,
        **named,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
    }
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (folder / "tokenizer_config.json").write_text(text, encoding="utf-8")
