"""CoDiLA: locally coherent parallel decoding for diffusion language models.

    import codila
    pair = codila.load("tiny")
    ids = pair.tokenizer(prompt, return_tensors="pt").input_ids
    out = pair.generate(ids, block_size=4, seed=0)
    print(pair.tokenizer.decode(out.sequences[0], skip_special_tokens=True))

The method: arXiv 2603.20216. The kernels: :mod:`codila_kernels`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from codila.attachment import attach, detach
    from codila.config import GenerationConfig
    from codila.generation import GenerationOutput, generate
    from codila.models.ar import push_ar, save_ar
    from codila.models.checkpoint import CheckpointError
    from codila.models.loading import Pair, load

__all__ = [
    "CheckpointError",
    "GenerationConfig",
    "GenerationOutput",
    "Pair",
    "attach",
    "detach",
    "generate",
    "load",
    "push_ar",
    "save_ar",
]
__version__ = "0.1.0"

_HOMES = {
    "CheckpointError": "codila.models.checkpoint",
    "GenerationConfig": "codila.config",
    "GenerationOutput": "codila.generation",
    "Pair": "codila.models.loading",
    "attach": "codila.attachment",
    "detach": "codila.attachment",
    "generate": "codila.generation",
    "load": "codila.models.loading",
    "push_ar": "codila.models.ar",
    "save_ar": "codila.models.ar",
}


def __getattr__(name: str) -> Any:
    # Importing transformers takes seconds; `codila --help` and codila.toy should not.
    if name not in _HOMES:
        raise AttributeError(f"module 'codila' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
