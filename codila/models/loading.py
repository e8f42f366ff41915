"""Load a pair (DLM, AR model, tokenizer, bridge) from folders; check everything at the door."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, Qwen2Tokenizer

from codila.bridge import VocabularyBridge
from codila.config import CONFIG_NAME, GenerationConfig
from codila.models.ar import METADATA_NAME, ARMetadata, load_ar
from codila.models.checkpoint import (
    CheckpointError,
    checkpoint_file,
    gguf_options,
    load_weights,
    read_json,
)
from codila.models.dream import DreamModel
from codila.models.llada import LladaModel
from codila.models.protocol import DiffusionLM

FAMILIES: dict[str, type[PreTrainedModel]] = {"Dream": DreamModel, "llada": LladaModel}
"""DLM class by ``model_type`` in ``config.json``."""

TOKENIZERS: dict[str, Any] = {"DreamTokenizer": Qwen2Tokenizer}
"""transformers' own class for tokenizers that are published as remote code."""


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
    device: str | torch.device | None = None,
    attn_implementation: str | None = None,
    device_map: Any = None,
    tp_plan: Any = None,
    adapter: str | Path | None = None,
    ar_block_sizes: Sequence[int] | None = None,
    ar_boundaries: tuple[str, str] | None = None,
) -> Pair:
    """Load a bundled pair by name, or a DLM and an AR model from folders or hub ids.

    Args:
        pair: ``"tiny"``, the bundled pair. ``ar`` may then name another of its AR models
            (``"ar-top3"``, ``"ar-top1"``) or a folder.
        dlm, ar: folders (or hub ids, downloaded by transformers only when asked for by name).
        dtype: of both models; default float32 on CPU, bfloat16 elsewhere.
        device: of both models; default the CPU.
        attn_implementation: of the DLM, one of transformers'; default SDPA.
        device_map, tp_plan: place the DLM by accelerate, or shard it by transformers' tensor
            parallelism, in place of ``device``; the AR model then goes to the DLM's first device.
        adapter: a LoRA adapter of the DLM (needs PEFT), merged when loaded.
        ar_block_sizes, ar_boundaries: make a block decoder of any causal LM (a folder without
            ``codila.json``, or a GGUF file): the block sizes to offer, and the two tokens around
            the soft ones (None: none). It was not trained for soft tokens, so a warning is given.

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
    placed = device_map is not None or tp_plan is not None
    if placed and device is not None:
        raise ValueError(f"device={str(device)!r} and device_map= or tp_plan=: give one of them")
    device = _usable_device("cpu" if device is None else device)
    if dtype is None:
        dtype = torch.bfloat16 if placed or device.type != "cpu" else torch.float32
    elif isinstance(dtype, str):
        named = getattr(torch, dtype, None)
        if not isinstance(named, torch.dtype):
            raise ValueError(f"dtype={dtype!r}: expected the name of a torch dtype, as 'bfloat16'")
        dtype = named
    model = load_dlm(
        dlm,
        dtype=dtype,
        device=device,
        adapter=adapter,
        attn_implementation=attn_implementation,
        device_map=device_map,
        tp_plan=tp_plan,
    )
    device = model.device
    tokenizer = load_tokenizer(dlm, model.config)
    _check_tokenizer(tokenizer, model, dlm)
    if ar is None:
        return Pair(model, None, tokenizer, GenerationConfig())
    ar_tokenizer = load_tokenizer(ar)
    metadata = None
    if ar_block_sizes is not None and checkpoint_file(ar, METADATA_NAME) is None:
        metadata = _untrained(model, tokenizer, ar, ar_tokenizer, ar_block_sizes, ar_boundaries)
    elif ar_block_sizes is not None or ar_boundaries is not None:
        raise ValueError(
            f"{ar}: ar_block_sizes= and ar_boundaries= are for a model without {METADATA_NAME}, "
            "and the first is needed"
        )
    metadata = metadata or ARMetadata.from_pretrained(ar)
    metadata.check_dlm(model)
    _check_same_words(tokenizer, ar_tokenizer, metadata.bridge, dlm, ar)
    ar_model = load_ar(ar, dtype=dtype, device=device, metadata=metadata)
    saved = checkpoint_file(ar, CONFIG_NAME)
    config = GenerationConfig() if saved is None else GenerationConfig.from_pretrained(saved.parent)
    if config.conditioning is None:
        config = config.updated(conditioning=ar_model.codila.conditioning)
    return Pair(model, ar_model, tokenizer, config)


def _untrained(
    dlm: Any,
    tokenizer: Any,
    ar: str | Path,
    ar_tokenizer: Any,
    block_sizes: Sequence[int],
    boundaries: tuple[str, str] | None,
) -> ARMetadata:
    """Metadata of a causal LM that knows nothing of CoDiLA, its bridge from the two tokenizers."""
    ids = None
    if boundaries is not None:
        vocabulary = ar_tokenizer.get_vocab()
        unknown = [token for token in boundaries if token not in vocabulary]
        if unknown or len(boundaries) != 2:
            raise ValueError(f"ar_boundaries={boundaries!r}: {ar} has no tokens {unknown}")
        ids = (vocabulary[boundaries[0]], vocabulary[boundaries[1]])
    place, options = gguf_options(ar)
    config = AutoConfig.from_pretrained(place, trust_remote_code=False, **options)
    try:
        bridge = VocabularyBridge.between(
            tokenizer,
            ar_tokenizer,
            mask_token_id=dlm.mask_token_id,
            ar_rows=config.vocab_size,
            boundaries=ids,
            expand_token_id=getattr(dlm.config, "expand_token_id", None),
        )
    except ValueError as error:
        raise CheckpointError(f"{ar}: {error}") from error
    warnings.warn(
        f"{ar} was not trained on soft tokens: it decodes blocks, but not well. "
        "`codila train ar` trains one for this DLM",
        UserWarning,
        stacklevel=3,
    )
    return ARMetadata.of(dlm, bridge, block_sizes=block_sizes, boundaries=ids)


def load_dlm(
    folder: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    adapter: str | Path | None = None,
    **options: Any,
) -> Any:
    """A diffusion model by the ``model_type`` of its config; never runs code from the folder.

    ``adapter`` is a LoRA folder, merged into the weights by PEFT. ``options`` go to transformers'
    ``from_pretrained`` (attn_implementation, device_map, tp_plan); with a ``device_map`` or
    ``tp_plan`` the model stays where that put it.
    """
    config = read_json(Path(folder) / "config.json") if Path(folder).is_dir() else None
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
    options = {name: value for name, value in options.items() if value is not None}
    model = load_weights(FAMILIES[family], folder, dtype, **options)
    if model.config.mask_token_id is None or model.config.eos_token_id is None:
        raise CheckpointError(f"{folder}/config.json: mask_token_id and eos_token_id are needed")
    if adapter is not None:
        model = _with_adapter(model, adapter)
    placed = "device_map" in options or "tp_plan" in options
    return (model if placed else model.to(device)).eval()


def _with_adapter(model: Any, adapter: str | Path) -> Any:
    """``model`` with a LoRA adapter merged into its weights."""
    try:
        from peft import PeftModel
    except ImportError as error:
        raise ImportError("adapter= needs PEFT: pip install peft") from error
    try:
        merged = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload()
    except Exception as error:  # peft, safetensors and the hub raise many kinds
        raise CheckpointError(f"{adapter}: the adapter cannot be used: {error}") from error
    return merged


def load_tokenizer(folder: str | Path, config: Any = None) -> Any:
    """The tokenizer of a checkpoint folder, hub id or GGUF file; never runs code from it.

    ``config`` (that of the model, or one of its kind) spares AutoTokenizer a ``config.json`` whose
    ``model_type`` it does not know.
    """
    path = Path(folder) / "config.json"
    if config is None and path.is_file():
        family: Any = FAMILIES.get(read_json(path).get("model_type", ""))
        config = None if family is None else family.config_class()
    place, options = gguf_options(folder)
    settings = checkpoint_file(folder, "tokenizer_config.json")
    name = None if settings is None else read_json(settings).get("tokenizer_class")
    try:
        if name in TOKENIZERS:
            return TOKENIZERS[name].from_pretrained(place)
        return AutoTokenizer.from_pretrained(
            place, config=config, trust_remote_code=False, **options
        )
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


def _usable_device(device: str | torch.device) -> torch.device:
    try:
        wanted = torch.device(device)
        torch.zeros(1, device=wanted).tolist()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"device={str(device)!r} cannot be used here: {reason}") from error
    return wanted
