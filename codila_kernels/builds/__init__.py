"""Which kernels, configs, dtypes and options the ahead-of-time check compiles, a file per op."""

from __future__ import annotations

from codila_kernels.builds.block_entropy import block_entropy_builds
from codila_kernels.builds.common import Build
from codila_kernels.builds.expected_embedding import expected_embedding_builds
from codila_kernels.builds.expected_embedding_backward import backward_builds
from codila_kernels.builds.expected_embedding_top_k import top_k_builds
from codila_kernels.builds.head_stats import head_stats_builds
from codila_kernels.builds.sample_tokens import sample_tokens_builds
from codila_kernels.builds.vocab_stats import vocab_stats_builds

_BUILDS = (
    vocab_stats_builds,
    expected_embedding_builds,
    top_k_builds,
    backward_builds,
    head_stats_builds,
    block_entropy_builds,
    sample_tokens_builds,
)


def builds(chip: str) -> list[Build]:
    """Every config of `chip`, with each dtype and with the optional inputs absent and present.

    Logits and table have one dtype here but where they usually differ; sizes and strides are
    run-time arguments.
    """
    return list(dict.fromkeys(build for per_op in _BUILDS for build in per_op(chip)))


__all__ = ["Build", "builds"]
