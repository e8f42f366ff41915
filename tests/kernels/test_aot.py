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


@pytest.fixture(scope="module")
def compiled() -> list[aot.Resources]:
    return list(aot.compile_all([(b, chip) for chip in CHIPS for b in fullest_builds(chip)]))


@pytest.mark.parametrize("chip", CHIPS)
def test_compiles_within_the_chip(chip, compiled):
    rows = [resources for resources in compiled if resources.chip == chip]
    assert {resources.build.kernel for resources in rows} == {
        "vocab_stats_split",
        "vocab_stats_combine",
        "expected_embedding_split",
        "expected_embedding_combine",
        "head_stats_split",
        "block_entropy",
        "sample_tokens_max_split",
        "sample_tokens_short_list",
        "sample_tokens_edge",
        "sample_tokens_sum_split",
        "sample_tokens_pick",
        "top_k_split",
        "top_k_merge",
        "top_k_gather",
        "soft_table_gradient",
        "soft_logits_gradient",
        "run_sum",
        "top_k_product",
    }
    for resources in rows:
        build = resources.build
        assert not resources.problems, (build.kernel, build.variant, resources.problems)
        if build.kernel.endswith("split"):
            assert resources.load_bits == 128, (build.kernel, build.variant)


def test_the_hot_loops_load_16_bytes_at_a_time():
    """The large builds without options, of the kernels that read a table, a head or logits."""
    pairs = []
    for chip in CHIPS:
        for kernel in ("vocab_stats_split", "head_stats_split", "expected_embedding_split"):
            plain = (b for b in aot.builds(chip) if b.kernel == kernel and "HAS_BANNED" in str(b))
            build = next(b for b in plain if not dict(b.constants)["HAS_BANNED"])
            pairs.append((build, chip))
    for resources in aot.compile_all(pairs):
        assert resources.load_bits == 128 and not resources.problems, resources
        assert resources.wide_share > 0.5, resources


def test_widths_and_loops_are_read_from_the_assembly():
    sass = """
        LDG.E R2, desc[UR4][R2.64] ;
.L_x_0:
        LDGSTS.E.BYPASS.128 [R9], desc[UR6][R4.64] ;
        HMMA.16816.F32.BF16 R8, R4, R2, R8 ;
        LDG.E.U16 R3, desc[UR4][R6.64] ;
        @!P0 BRA `(.L_x_0) ;
.L_x_1:
        BRA `(.L_x_1) ;"""
    assert aot.load_widths(sass) == [32, 128, 16]
    assert aot.load_widths(aot.hot_loop(sass)) == [128, 16]
    assert aot.wide_share(aot.hot_loop(sass)) == 128 / 144
    isa = """
.LBB0_1:
        global_load_dwordx4 v[0:3], v4, s[0:1]
        buffer_load_ushort v5, v6, s[4:7], 0 offen
        s_cbranch_scc1 .LBB0_1"""
    assert aot.load_widths(aot.hot_loop(isa)) == [128, 16]


def test_report_refuses_unknown_chips(capsys):
    assert aot.main(["sm_42"]) == 2
    assert "expected any of sm_80" in capsys.readouterr().err


def test_occupancy_is_that_of_the_scarcest_resource():
    assert aot.occupancy("sm_80", 128, 0, 4) == (4, 0.25)  # 65536 / (128 * 128)
    assert aot.occupancy("sm_80", 129, 0, 4) == (3, 0.1875)  # 136 registers: 3.76
    assert aot.occupancy("sm_90", 32, 100 * 1024, 4) == (2, 0.125)  # 228 / 101
    assert aot.occupancy("sm_90", 32, 0, 1) == (32, 0.5)  # the limit of programs
    assert aot.occupancy("gfx942", 128, 0, 4) == (4, 0.5)  # 512 / 128 waves a SIMD
    assert aot.occupancy("gfx942", 64, 64 * 1024, 4) == (1, 0.125)
    assert aot.occupancy("sm_90", 255, 0, 16)[0] == 0
