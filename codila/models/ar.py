"""The AR side of a pair: a causal LM of transformers and ``codila.json`` beside it."""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import HfApi
from transformers import AutoModelForCausalLM

from codila.block_decoder import BlockDecoder
from codila.bridge import VocabularyBridge
from codila.models.checkpoint import (
    CheckpointError,
    checkpoint_file,
    gguf_options,
    load_weights,
    read_json,
    written_whole,
)
from codila.models.protocol import DiffusionLM

METADATA_NAME = "codila.json"


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
    def of(
        cls,
        dlm: DiffusionLM,
        bridge: VocabularyBridge,
        *,
        block_sizes: Sequence[int],
        boundaries: tuple[int, int] | None,
        conditioning: str = "soft",
        window: tuple[int, int] = (0, 0),
        name: str = "",
    ) -> ARMetadata:
        """Of an AR model that is trained on ``dlm``."""
        facts = {"name": name, **dlm_facts(dlm)}
        return cls(tuple(block_sizes), boundaries, conditioning, window, facts, bridge)

    def to_json(self) -> dict[str, Any]:
        """The content of ``codila.json``."""
        return {
            "format": 1,
            "block_sizes": list(self.block_sizes),
            "boundaries": None if self.boundaries is None else list(self.boundaries),
            "conditioning": self.conditioning,
            "window": list(self.window),
            "dlm": self.dlm,
            "bridge": self.bridge.to_json(),
            "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        }

    def save_pretrained(self, folder: str | Path) -> None:
        """Write ``codila.json`` into ``folder``, atomically."""
        path = Path(folder) / METADATA_NAME
        scratch = path.with_name(path.name + ".tmp")
        scratch.write_text(json.dumps(self.to_json(), indent=2) + "\n", encoding="utf-8")
        os.replace(scratch, path)

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> ARMetadata:
        path = checkpoint_file(folder, METADATA_NAME)
        if path is None:
            raise CheckpointError(
                f"{folder} has no {METADATA_NAME}: it is not an AR model trained by "
                "`codila train ar`. To use one that was not trained for soft tokens, give "
                "ar_block_sizes= and ar_boundaries="
            )
        data = read_json(path)
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
        if min(metadata.window) < 0:
            raise CheckpointError(f"{path}: window {metadata.window} has a negative side")
        return metadata

    def check_dlm(self, dlm: DiffusionLM) -> None:
        """Raise where ``dlm`` is not one that the AR model was trained on."""
        mask = dlm.mask_token_id
        if mask < self.bridge.valid_vocab and mask not in self.bridge.banned_ids:
            raise CheckpointError(
                f"{METADATA_NAME}: bridge.banned_ids must hold the mask token {mask}, or it could "
                "be written"
            )
        actual = dlm_facts(dlm)
        for key, expected in self.dlm.items():
            if key in actual and actual[key] != expected:
                raise CheckpointError(
                    f"the AR model was trained for a DLM with {key}={expected}, this one has "
                    f"{actual[key]}: give the DLM that it was trained on"
                )


def put_in_dlm_order(model: Any, bridge: VocabularyBridge) -> None:
    """Move the rows of an AR model's tables: row i becomes that of the DLM's id i.

    The rows that no id stands for (boundaries among them) follow behind. ``model.codila_order``
    ``[rows]`` then says which row of the checkpoint each one is; nothing is moved, or set, where
    ids and rows agree.
    """
    rows = bridge.ar_rows()
    if rows is None:
        return
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    have = embedding.weight.shape[0]
    used = torch.zeros(have, dtype=torch.bool)
    used[rows] = True
    order = torch.cat([rows, (~used).nonzero().flatten()])
    tables = {id(p): p for m in (embedding, head) for p in m.parameters(recurse=False)}
    with torch.no_grad():
        for parameter in tables.values():
            parameter.data = parameter.data[order.to(parameter.device)]
    embedding.num_embeddings = head.out_features = model.config.vocab_size = len(order)
    model.codila_order = order


def save_ar(
    model: Any, folder: str | Path, *, tokenizer: Any = None, metadata: ARMetadata | None = None
) -> None:
    """Write an AR model as a transformers folder with ``codila.json``; the folder is replaced.

    Args:
        model: a causal LM; its tables are written in the order of its own tokenizer.
        tokenizer: written too, if given.
        metadata: default ``model.codila``.

    Raises:
        ValueError: a model without metadata.
    """
    metadata = metadata or getattr(model, "codila", None)
    if metadata is None:
        raise ValueError("the model carries no codila.json: give metadata=ARMetadata.of(...)")
    with written_whole(folder) as scratch:
        write_ar(model, metadata, scratch)
        if tokenizer is not None:
            tokenizer.save_pretrained(scratch)


def push_ar(model: Any, repo_id: str, *, tokenizer: Any = None, private: bool = False) -> str:
    """Upload what `save_ar` writes to a model repository of the hub; returns its address."""
    with tempfile.TemporaryDirectory() as scratch:
        save_ar(model, Path(scratch) / "ar", tokenizer=tokenizer)
        return upload_ar(Path(scratch) / "ar", repo_id, private=private)


def upload_ar(folder: Path, repo_id: str, *, private: bool = False) -> str:
    """Upload a folder that `save_ar` wrote; returns the repository's address."""
    api = HfApi()
    address = str(api.create_repo(repo_id, private=private, exist_ok=True))
    api.upload_folder(repo_id=repo_id, folder_path=folder)
    return address


def write_ar(model: Any, metadata: ARMetadata, folder: Path) -> None:
    """Weights, config and ``codila.json`` into an existing folder; see `save_ar`."""
    metadata.save_pretrained(folder)
    order = getattr(model, "codila_order", None)
    if order is None:
        model.save_pretrained(folder)
        return
    rows, size = int(order.max()) + 1, model.config.vocab_size
    tables = {id(p) for m in (model.get_input_embeddings(), model.get_output_embeddings())
              for p in m.parameters(recurse=False)}  # fmt: skip
    moved = {name for name, p in model.named_parameters(remove_duplicate=False) if id(p) in tables}
    state = model.state_dict()
    for name in moved:
        back = state[name].new_empty((rows, *state[name].shape[1:]))
        back[order.to(back.device)] = state[name]
        state[name] = back
    if model.config.tie_word_embeddings:  # one tensor under two names, as the model has it
        first, *others = sorted(moved)
        state |= {name: state[first] for name in others}
    model.config.vocab_size = rows
    try:
        model.save_pretrained(folder, state_dict=state)
    finally:
        model.config.vocab_size = size


def load_ar(
    folder: str | Path,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    metadata: ARMetadata | None = None,
) -> Any:
    """A causal LM and its ``codila.json`` (attribute ``codila``, an :class:`ARMetadata`).

    Its tables are in the DLM's order (`put_in_dlm_order`). Never runs code from the folder.

    Args:
        folder: folder or hub id, or the path of a GGUF file.
        metadata: in place of a ``codila.json``, for a model that has none.
    """
    metadata = metadata or ARMetadata.from_pretrained(folder)
    place, options = gguf_options(folder)
    model = load_weights(AutoModelForCausalLM, place, dtype, **options)
    model.codila = metadata
    BlockDecoder(model, metadata.bridge, metadata.boundaries)  # the tables must be large enough
    put_in_dlm_order(model, metadata.bridge)
    return model.to(device).eval()


def dlm_facts(dlm: DiffusionLM) -> dict[str, Any]:
    """What an AR model must agree with its DLM about."""
    return {
        "vocab_size": dlm.config.vocab_size,
        "mask_token_id": dlm.mask_token_id,
        "shift": dlm.shift,
    }
