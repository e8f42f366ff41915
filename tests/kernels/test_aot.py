"""Every kernel with every config, compiled for every chip on a machine that has none.

One build per config here, that with all its optional inputs: the one that needs most. The report
``python -m codila_kernels.aot`` compiles the others as well.
"""

from __future__ import annotations

import pytest

from codila_kernels import aot
from codila_kernels.configs import CHIPS

pytestmark = pytest.mark.compile


def fullest_builds(chip: str) -> list[aot.Build]:
    """The last build of each config: flags come after their absence."""
    chosen = {}
    for build in aot.builds(chip):
        blocks = tuple((n, size) for n, size in build.constants if n.startswith("BLOCK"))
        chosen[build.kernel, blocks, build.options] = build
    return list(chosen.values())


@pytest.mark.parametrize("chip", CHIPS)
def test_compiles_within_the_chip(chip):
    builds = fullest_builds(chip)
    assert {build.kernel for build in builds} == {
        "vocab_stats_split",
        "vocab_stats_combine",
        "expected_embedding_split",
        "expected_embedding_combine",
        "top_k_split",
        "top_k_merge",
        "top_k_gather",
        "soft_table_gradient",
        "soft_logits_gradient",
        "run_sum",
        "top_k_product",
    }
    for build in builds:
        resources = aot.compile_build(build, chip)
        assert not resources.problems, (build.kernel, build.variant, resources.problems)
        if build.kernel.endswith("split"):
            assert resources.load_bits == 128, (build.kernel, build.variant)


def test_report_refuses_unknown_chips(capsys):
    assert aot.main(["sm_42"]) == 2
    assert "expected any of sm_80" in capsys.readouterr().err
