"""What the command line reads: prompts, configurations, assignments, and which pair is meant."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import codila

if TYPE_CHECKING:
    from codila.config import GenerationConfig
    from codila.models.loading import Pair

DTYPES = ("float64", "float32", "bfloat16", "float16")


@contextlib.contextmanager
def wrong_types_are_values(source: str) -> Iterator[None]:
    """A value of the wrong type in a file is the user's mistake, not the program's."""
    try:
        yield
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{source} cannot be used: {type(error).__name__}: {error}") from error


def read_prompt(argument: str | None) -> str:
    """The prompt behind the command's argument: a text, a file, or standard input.

    Raises:
        ValueError: nothing given and nothing piped in, or an empty prompt.
        FileNotFoundError: what looks like the name of a file, and is none.
    """
    if argument is None and sys.stdin.isatty():
        raise ValueError("no prompt: give a text, a file, or - to read standard input")
    if argument is None or argument == "-":
        text = sys.stdin.read()
    elif _is_file(argument):
        text = Path(argument).read_text(encoding="utf-8")
    elif re.fullmatch(r"[\w.~/\\-]+\.\w{1,5}", argument):
        raise FileNotFoundError(f"no such file: {argument} (a text of this form: pipe it in)")
    elif "\n" in argument:
        text = argument
    else:
        text = argument.replace("\\n", "\n").replace("\\t", "\t")
    if not text.strip():
        raise ValueError("the prompt is empty: give the model something to continue")
    return text


def _is_file(name: str) -> bool:
    try:
        return Path(name).is_file()
    except OSError:  # a prompt may be longer than any name of a file
        return False


def read_config(path: Path | None) -> dict[str, Any]:
    """The values of a generation config file, or of the folder that holds one."""
    if path is None:
        return {}
    if path.is_dir():
        from codila.config import CONFIG_NAME

        path = path / CONFIG_NAME
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path}: expected a JSON object of generation options")
    return values


def parse_assignments(assignments: list[str]) -> dict[str, Any]:
    """``key=value`` -> value, read as JSON where it is JSON and as a string where it is not."""
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if not equals or not key:
            raise ValueError(f"--set {assignment}: expected KEY=VALUE")
        try:
            values[key] = json.loads(value)
        except json.JSONDecodeError:
            values[key] = value
    return values


def recipe_changes(assignments: list[str] | None, **named: Any) -> dict[str, Any]:
    """What --set and the options that were given change of a recipe."""
    given = {name: value for name, value in named.items() if value is not None}
    return parse_assignments(assignments or []) | given


def generation_config(
    pair: Pair, from_file: dict[str, Any], given: dict[str, Any], base: bool
) -> GenerationConfig:
    """The pair's configuration with the file's values, and over them the options given.

    Raises:
        ValueError: a value that :class:`codila.GenerationConfig` refuses, an option given that
            the schedule does not read, or a schedule that needs an AR model where there is none.
    """
    from codila.schedules import SCHEDULES

    given = {name: value for name, value in given.items() if value is not None}
    with wrong_types_are_values("the configuration"):
        config = pair.config.updated(**from_file)
        if base:
            given = _base_options(config, given, "tokens_per_step" in from_file)
        config = config.for_call(**given)
    if pair.ar is None and SCHEDULES[config.schedule].uses_ar:
        raise ValueError(
            f"schedule {config.schedule!r} needs an AR model: give --ar FOLDER, or --base to "
            "decode with the plain DLM"
        )
    return config


def _base_options(
    config: GenerationConfig, given: dict[str, Any], k_is_set: bool
) -> dict[str, Any]:
    """The options given, turned to a schedule without the AR model at equal parallelism."""
    from codila.schedules import SCHEDULES

    named = SCHEDULES.get(given.get("schedule", ""))
    if named is not None and named.uses_ar:
        raise ValueError(
            f"--base decodes without the AR model that schedule {given['schedule']!r} needs: leave "
            "one of the two out"
        )
    if "schedule" not in given and SCHEDULES[config.schedule].uses_ar:
        given = {"schedule": "entropy", **given}
    chosen = SCHEDULES.get(given.get("schedule", config.schedule))
    if chosen is not None and "tokens_per_step" in chosen.reads and not k_is_set:
        shape = config.updated(**{k: given.get(k) for k in ("block_size", "max_new_tokens")})
        k = min(shape.block_size, shape.max_new_tokens)
        given = {"tokens_per_step": k, **given}
    return given


def require_folder(option: str, name: str) -> None:
    """Raise FileNotFoundError where ``name`` is neither a folder nor of a hub id's form.

    Anything else would be looked for on the hub, slowly and in vain.
    """
    if not Path(name).is_dir() and not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
        raise FileNotFoundError(f"{option}: no such folder: {name}")


def recipe_folder(key: str, name: str) -> str:
    """The folder that a recipe names, from here or, as the bundled recipes do, from the package."""
    bundled = Path(codila.__file__).parents[1] / name
    if not Path(name).is_dir() and bundled.is_dir():
        return str(bundled)
    require_folder(key, name)
    return name


def load_pair(
    name: str | None, dlm: str | None, ar: str | None, base: bool, device: str, dtype: str | None
) -> Pair:
    """The pair that the options name, without its AR model for ``--base``."""
    if name is not None and dlm is not None:
        raise ValueError("give --pair or --dlm, not both")
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"--dtype {dtype}: expected one of {', '.join(DTYPES)}")
    for option, folder in (("--dlm", dlm), ("--ar", ar if dlm else None)):
        if folder is not None:
            require_folder(option, folder)
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ValueError(f"--device {device}: torch {torch.__version__} finds no CUDA device")
    try:
        torch.device(device)
    except RuntimeError as error:
        raise ValueError(f"--device {device}: expected cpu, cuda or cuda:N") from error
    wanted = None if base and dlm is not None else ar
    with wrong_types_are_values("the checkpoint"):
        pair = codila.load(
            None if dlm is not None else name or "tiny",
            dlm=dlm,
            ar=wanted,
            dtype=dtype,
            device=device,
        )
    return dataclasses.replace(pair, ar=None) if base else pair
