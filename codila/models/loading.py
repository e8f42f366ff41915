"""Load a pair (DLM, AR model, tokenizer, bridge) from folders; check everything at the door."""

from __future__ import annotations

import dataclasses
import json
from importlib import resources
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import (
    EntryNotFoundError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
)
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from transformers.utils import logging as transformers_logging

from codila.block_decoder import BlockDecoder
from codila.conditioning import VocabularyBridge
from codila.config import CONFIG_NAME, GenerationConfig
from codila.models.dream import DreamModel
from codila.models.protocol import DiffusionLM

FAMILIES: dict[str, type[PreTrainedModel]] = {"Dream": DreamModel}
"""DLM class by ``model_type`` in ``config.json``."""

METADATA_NAME = "codila.json"


class CheckpointError(ValueError):
    """A checkpoint folder that cannot be used, and why."""


@dataclasses.dataclass(frozen=True)
class ARMetadata:
    """``codila.json``: what was decided when the AR model was trained.

    ``block_sizes`` it was trained for, ``boundaries`` (AR ids of the opening and closing token, or
    None), ``conditioning`` it was fed, ``window`` (soft tokens left and right of the block), the
    ``bridge``, and ``dlm``: name, vocab_size, mask_token_id and shift of the DLM.
    """

    block_sizes: tuple[int, ...]
    boundaries: tuple[int, int] | None
    conditioning: str
    window: tuple[int, int]
    dlm: dict[str, Any]
    bridge: VocabularyBridge

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> ARMetadata:
        path = _file(folder, METADATA_NAME)
        if path is None:
            raise CheckpointError(
                f"{folder} has no {METADATA_NAME}: it is not an AR model trained by "
                "`codila train ar`"
            )
        data = _read_json(path)
        if data.get("format") != 1:
            raise CheckpointError(f"{path}: format {data.get('format')!r}, this version reads 1")
        try:
            boundaries = data["boundaries"]
            metadata = cls(
                block_sizes=tuple(data["block_sizes"]),
                boundaries=None if boundaries is None else (boundaries[0], boundaries[1]),
                conditioning=data["conditioning"],
                window=(data["window"][0], data["window"][1]),
                dlm=data["dlm"],
                bridge=VocabularyBridge.from_json(data["bridge"]),
            )
        except KeyError as error:
            raise CheckpointError(f"{path} has no key {error}") from error
        if metadata.window != (0, 0):
            raise CheckpointError(f"{path}: window {metadata.window} is not supported, only (0, 0)")
        return metadata

    def check_dlm(self, dlm: DiffusionLM) -> None:
        """Raise where ``dlm`` is not one that the AR model was trained on."""
        mask = dlm.mask_token_id
        if mask < self.bridge.valid_vocab and mask not in self.bridge.banned_ids:
            raise CheckpointError(
                f"{METADATA_NAME}: bridge.banned_ids must hold the mask token {mask}, or it could "
                "be written"
            )
        actual = _dlm_facts(dlm)
        for key, expected in self.dlm.items():
            if key in actual and actual[key] != expected:
                raise CheckpointError(
                    f"the AR model was trained for a DLM with {key}={expected}, this one has "
                    f"{actual[key]}: give the DLM that it was trained on"
                )


def ar_metadata(
    dlm: DiffusionLM,
    bridge: VocabularyBridge,
    *,
    block_sizes: list[int],
    boundaries: tuple[int, int] | None,
    conditioning: str,
    name: str = "",
) -> dict[str, Any]:
    """The content of ``codila.json`` for an AR model trained on ``dlm``."""
    return {
        "format": 1,
        "block_sizes": block_sizes,
        "boundaries": None if boundaries is None else list(boundaries),
        "conditioning": conditioning,
        "window": [0, 0],
        "dlm": {"name": name, **_dlm_facts(dlm)},
        "bridge": bridge.to_json(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


@dataclasses.dataclass
class Pair:
    """A DLM (:class:`DiffusionLM`) and the AR model trained on it (None: baselines only)."""

    dlm: Any
    ar: Any
    tokenizer: Any
    config: GenerationConfig

    @property
    def bridge(self) -> VocabularyBridge | None:
        return None if self.ar is None else self.ar.codila.bridge

    def generate(self, input_ids: Any, **options: Any) -> Any:
        """:func:`codila.generate` with this pair's models and configuration."""
        from codila.generation import generate

        if options.get("generation_config") is None:
            options["generation_config"] = self.config
        return generate(self.dlm, input_ids, ar_model=self.ar, **options)


def load(
    pair: str | None = None,
    *,
    dlm: str | Path | None = None,
    ar: str | Path | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | torch.device = "cpu",
) -> Pair:
    """Load a bundled pair by name, or a DLM and an AR model from folders or hub ids.

    Args:
        pair: ``"tiny"``, the bundled pair. ``ar`` may then name another of its AR models
            (``"ar-top3"``, ``"ar-top1"``) or a folder.
        dlm, ar: folders (or hub ids, downloaded by transformers only when asked for by name).
        dtype: of both models; default float32 on CPU, bfloat16 elsewhere.
        device: of both models.

    Raises:
        CheckpointError: a folder without what it needs, a missing or damaged tensor, an AR model
            whose DLM had another vocabulary, mask token or shift, or tokenizers that do not match.
        ValueError: an unknown pair, dtype or device.
    """
    if pair is not None:
        if dlm is not None:
            raise ValueError("give the name of a bundled pair or dlm=, not both")
        folder = resources.files("codila") / "pretrained" / pair
        if not pair or not (folder / "dlm").is_dir():
            raise ValueError(f"no bundled pair {pair!r}: there is 'tiny'; for folders give dlm=")
        dlm = str(folder / "dlm")
        ar = ar if ar and (Path(ar) / METADATA_NAME).is_file() else str(folder / (ar or "ar"))
    elif dlm is None:
        raise ValueError("give the name of a bundled pair, or dlm=FOLDER and ar=FOLDER")
    device = _usable_device(device)
    if dtype is None:
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    elif isinstance(dtype, str):
        named = getattr(torch, dtype, None)
        if not isinstance(named, torch.dtype):
            raise ValueError(f"dtype={dtype!r}: expected the name of a torch dtype, as 'bfloat16'")
        dtype = named
    model = load_dlm(dlm, dtype=dtype, device=device)
    tokenizer = load_tokenizer(dlm, model.config)
    _check_tokenizer(tokenizer, model, dlm)
    if ar is None:
        return Pair(model, None, tokenizer, GenerationConfig())
    ar_model = load_ar(ar, dtype=dtype, device=device)
    ar_model.codila.check_dlm(model)
    _check_same_words(tokenizer, load_tokenizer(ar), ar_model.codila.bridge, dlm, ar)
    saved = _file(ar, CONFIG_NAME)
    config = GenerationConfig() if saved is None else GenerationConfig.from_pretrained(saved.parent)
    if config.conditioning is None:
        config = config.updated(conditioning=ar_model.codila.conditioning)
    return Pair(model, ar_model, tokenizer, config)


def load_dlm(
    folder: str | Path, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Any:
    """A diffusion model by the ``model_type`` of its config; never runs code from the folder."""
    config = _read_json(Path(folder) / "config.json") if Path(folder).is_dir() else None
    if config is None:
        from transformers import PreTrainedConfig

        try:
            config = PreTrainedConfig.get_config_dict(str(folder))[0]
        except OSError as error:
            raise CheckpointError(f"{folder}: no such folder, nor a hub model: {error}") from error
    family = config.get("model_type")
    if family not in FAMILIES:
        raise CheckpointError(
            f"{folder}: model_type {family!r} is no diffusion model that codila knows; "
            f"supported: {sorted(FAMILIES)}"
        )
    model = _from_pretrained(FAMILIES[family], folder, dtype)
    if model.config.mask_token_id is None or model.config.eos_token_id is None:
        raise CheckpointError(f"{folder}/config.json: mask_token_id and eos_token_id are needed")
    return model.to(device).eval()


def load_ar(
    folder: str | Path, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Any:
    """A causal LM and its ``codila.json`` (attribute ``codila``, an :class:`ARMetadata`).

    Never runs code from the folder.
    """
    metadata = ARMetadata.from_pretrained(folder)
    model = _from_pretrained(AutoModelForCausalLM, folder, dtype)
    model.codila = metadata
    BlockDecoder(model, metadata.bridge, metadata.boundaries)  # the tables must be large enough
    return model.to(device).eval()


def _from_pretrained(cls: Any, folder: str | Path, dtype: torch.dtype) -> Any:
    progress = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        model, info = cls.from_pretrained(
            str(folder), dtype=dtype, output_loading_info=True, trust_remote_code=False
        )
    except Exception as error:  # safetensors and transformers raise many kinds
        raise CheckpointError(f"{folder}: the checkpoint cannot be read: {error}") from error
    finally:
        if progress:
            transformers_logging.enable_progress_bar()
    for kind in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if info.get(kind):
            names = sorted(str(k) for k in info[kind])
            raise CheckpointError(
                f"{folder}: {kind.replace('_', ' ')} in the weights: {names[:4]}"
                + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            )
    return model


def load_tokenizer(folder: str | Path, config: Any = None) -> Any:
    """The tokenizer of a checkpoint folder; never runs code from it.

    ``config`` (that of the model, or one of its kind) spares AutoTokenizer a ``config.json`` whose
    ``model_type`` it does not know.
    """
    path = Path(folder) / "config.json"
    if config is None and path.is_file():
        family: Any = FAMILIES.get(_read_json(path).get("model_type", ""))
        config = None if family is None else family.config_class()
    try:
        return AutoTokenizer.from_pretrained(str(folder), config=config, trust_remote_code=False)
    except Exception as error:
        raise CheckpointError(f"{folder}: no usable tokenizer: {error}") from error


def _check_tokenizer(tokenizer: Any, dlm: DiffusionLM, folder: str | Path) -> None:
    if len(tokenizer) > dlm.config.vocab_size:
        raise CheckpointError(
            f"{folder}: the tokenizer has {len(tokenizer)} ids, the model {dlm.config.vocab_size}"
        )
    for name in ("mask_token_id", "eos_token_id"):
        ours, theirs = getattr(dlm, name), getattr(tokenizer, name, None)
        if theirs is not None and ours != theirs:
            raise CheckpointError(
                f"{folder}: {name} is {ours} in config.json and {theirs} in the tokenizer"
            )


def _check_same_words(
    dlm_tokenizer: Any, ar_tokenizer: Any, bridge: VocabularyBridge, dlm: Any, ar: Any
) -> None:
    """An id must mean one token on both sides, but for the control tokens of either."""
    special = set(dlm_tokenizer.added_tokens_decoder) | set(ar_tokenizer.added_tokens_decoder)
    ours = {i: token for token, i in dlm_tokenizer.get_vocab().items() if i not in special}
    theirs = {i: token for token, i in ar_tokenizer.get_vocab().items()}
    wrong = sorted(
        i
        for i, token in ours.items()
        if i < bridge.valid_vocab and theirs.get(bridge.id_map.get(i, i)) != token
    )
    if wrong:
        i = wrong[0]
        raise CheckpointError(
            f"the tokenizers of {dlm} and {ar} do not match: {len(wrong)} ids differ, first "
            f"{i}: {ours[i]!r} against {theirs.get(bridge.id_map.get(i, i))!r}"
        )


def _dlm_facts(dlm: DiffusionLM) -> dict[str, Any]:
    return {
        "vocab_size": dlm.config.vocab_size,
        "mask_token_id": dlm.mask_token_id,
        "shift": dlm.shift,
    }


def _file(folder: str | Path, name: str) -> Path | None:
    """A file of a checkpoint folder, or of a hub id (downloaded or cached); None: not there."""
    if Path(folder).is_dir():
        path = Path(folder) / name
        return path if path.is_file() else None
    try:
        return Path(hf_hub_download(str(folder), name))
    except LocalEntryNotFoundError as error:
        raise CheckpointError(f"{folder}/{name} is not cached and cannot be fetched") from error
    except EntryNotFoundError:
        return None
    except (HfHubHTTPError, HFValidationError) as error:
        raise CheckpointError(f"{folder}: no such folder, nor a hub model: {error}") from error


def _usable_device(device: str | torch.device) -> torch.device:
    try:
        wanted = torch.device(device)
        torch.zeros(1, device=wanted).tolist()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"device={str(device)!r} cannot be used here: {reason}") from error
    return wanted


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path.parent} has no {path.name}") from error
    except json.JSONDecodeError as error:
        raise CheckpointError(f"{path} is not JSON: {error}") from error
