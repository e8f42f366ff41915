"""The AR side of a pair: a causal LM of transformers and ``codila.json`` beside it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM

from codila.block_decoder import BlockDecoder
from codila.conditioning import VocabularyBridge
from codila.models.checkpoint import CheckpointError, checkpoint_file, load_weights, read_json
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
    def from_pretrained(cls, folder: str | Path) -> ARMetadata:
        path = checkpoint_file(folder, METADATA_NAME)
        if path is None:
            raise CheckpointError(
                f"{folder} has no {METADATA_NAME}: it is not an AR model trained by "
                "`codila train ar`"
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
        actual = dlm_facts(dlm)
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
        "dlm": {"name": name, **dlm_facts(dlm)},
        "bridge": bridge.to_json(),
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }


def load_ar(
    folder: str | Path, *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu"
) -> Any:
    """A causal LM and its ``codila.json`` (attribute ``codila``, an :class:`ARMetadata`).

    Never runs code from the folder.
    """
    metadata = ARMetadata.from_pretrained(folder)
    model = load_weights(AutoModelForCausalLM, folder, dtype)
    model.codila = metadata
    BlockDecoder(model, metadata.bridge, metadata.boundaries)  # the tables must be large enough
    return model.to(device).eval()


def dlm_facts(dlm: DiffusionLM) -> dict[str, Any]:
    """What an AR model must agree with its DLM about."""
    return {
        "vocab_size": dlm.config.vocab_size,
        "mask_token_id": dlm.mask_token_id,
        "shift": dlm.shift,
    }
