"""Tile choices: pure functions of vocabulary width, embedding width, dtype and chip.

The number of rows is deliberately not an argument. The tile sizes and the way the vocabulary is
cut into chunks fix the order in which a row's terms are added; were they to depend on the batch,
a row's bits would too.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

_LOW_PRECISION = (torch.float16, torch.bfloat16)

_CORES = {"sm_80": 108, "sm_90": 132, "sm_100": 148, "gfx942": 304, "interpreter": 1}
"""Multiprocessors of a full chip (A100, H100/H200, B200, MI300X): how many programs fill it."""

ZERO_BITS = {torch.float32: 0, torch.bfloat16: 16, torch.float16: 13}
"""Low bits of a float32 that are 0 in every value of a dtype: a bisection on bits skips them."""

CHIPS = ("sm_80", "sm_90", "sm_100", "gfx942")
"""Chips with configs of their own; others take those of the nearest, see `chip_of`."""

SHARED_MEMORY_LIMIT = {
    "sm_80": 99 * 1024,  # sm_86 and sm_89 take these configs, and have no more
    "sm_90": 227 * 1024,
    "sm_100": 227 * 1024,
    "gfx942": 64 * 1024,
}
"""Bytes of shared memory that one program may use."""

ROW_TILES = 5
"""Most tiles of rows that one program of `expected_embedding` multiplies with a table tile."""


def launch_options(
    num_warps: int, num_stages: int | None = None, max_registers: int | None = None
) -> dict[str, int]:
    """Launch options of a Triton kernel; what is None is left to the compiler."""
    options = {"num_warps": num_warps, "num_stages": num_stages, "maxnreg": max_registers}
    return {name: value for name, value in options.items() if value is not None}


@dataclass(frozen=True)
class VocabStatsConfig:
    """One program owns one row and one chunk of `block_v` columns."""

    block_v: int
    chunks: int
    num_warps: int


@dataclass(frozen=True)
class ExpectedEmbeddingConfig:
    """One program owns up to five tiles of `block_r` rows, `block_d` columns and `chunk` ids."""

    block_r: int
    block_v: int
    block_d: int
    chunk: int
    chunks: int
    num_warps: int
    num_stages: int
    transposed: bool = False
    max_registers: int | None = None

    @property
    def launch(self) -> dict[str, int]:
        """Launch options."""
        return launch_options(self.num_warps, self.num_stages, self.max_registers)


@dataclass(frozen=True)
class BackwardConfig:
    """Tiles of the soft backward: `block_d` columns are written, `block_k` are summed over."""

    block_r: int
    block_v: int
    block_d: int
    block_k: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True)
class HeadStatsConfig:
    """One program owns `block_v` rows of the head, and walks H in slabs of `block_h`."""

    block_v: int
    block_h: int
    chunks: int
    num_warps: int
    num_stages: int
    max_registers: int | None = None

    @property
    def launch(self) -> dict[str, int]:
        """Launch options."""
        return launch_options(self.num_warps, self.num_stages, self.max_registers)


@dataclass(frozen=True)
class BlockEntropyConfig:
    """One program owns one batch row: `block_c` candidate blocks of `block_b` positions."""

    block_c: int
    block_b: int
    num_warps: int


@dataclass(frozen=True)
class SampleTokensConfig:
    """One program of a pass owns one row and `block_v` columns; one program per row searches.

    The pass leaves the maximum of every `group` columns. The `listed` groups with the largest
    maxima hold at least the `listed` largest logits: the short list, searched first. Where it is
    too short the search reads the row, `block_s` columns at a time.
    """

    block_v: int
    chunks: int
    group: int
    groups: int
    listed: int
    block_s: int
    num_warps: int
    pick_warps: int
    list_warps: int
    search_warps: int
    search_registers: int | None = None

    @property
    def search_launch(self) -> dict[str, int]:
        """Launch options of the search."""
        return launch_options(self.search_warps, max_registers=self.search_registers)


def vocab_stats_config(width: int, dtype: torch.dtype, chip: str) -> VocabStatsConfig:
    """Config for `width` usable columns of logits in `dtype`."""
    largest = 256 if chip == "interpreter" else 4096
    # 4096 float32 values over 4 warps are 32 registers a thread; the tile is read once and every
    # quantity of it is derived from registers. Wider tiles spill, narrower ones make more states.
    block_v = min(largest, max(128, next_power_of_two(width)))
    return VocabStatsConfig(block_v=block_v, chunks=ceil_div(width, block_v), num_warps=4)


def expected_embedding_config(
    width: int, embedding: int, dtype: torch.dtype, chip: str
) -> ExpectedEmbeddingConfig:
    """Config for `width` usable ids and a table [Va, `embedding`] in `dtype`."""
    # Tiles of 16 rows, five to a program: 80 rows meet a tile of the table that was loaded once,
    # and the matrix instruction of a row is that of 16 rows whatever the batch.
    block_r = 16
    if chip == "interpreter":
        block_v, block_d, num_warps, num_stages = 32, 64, 4, 1
    elif dtype not in _LOW_PRECISION:
        # IEEE float32 products run on the ordinary units: small tiles keep operands in registers
        # (on sm_80, 32 ids took 255 of them and spilled)
        block_v, block_d, num_warps, num_stages = 16 if chip == "sm_80" else 32, 128, 8, 2
    else:
        # 5 x 256 x 16 float32 sums are 80 registers a thread of 8 warps; at D = 1024 the logits
        # cross four column tiles. On sm_80 the operands are in registers too: 255 with 64 ids,
        # 233 with 32.
        # On gfx942 chunks of whole tiles of 32 make 304 programs, one a core; those of 64 make 300.
        block_v, num_stages = {"sm_80": (32, 4), "gfx942": (32, 2)}.get(chip, (64, 3))
        block_d, num_warps = 256, 8
    block_d = min(block_d, max(16, next_power_of_two(embedding)))
    block_v = min(block_v, max(16, next_power_of_two(width)))
    # Two programs per multiprocessor, one where their partial sums [80, D], written and read in
    # float32, would be more than a fifth of the table; a chunk is at least four tiles long. What
    # 16 chunks hold stays in cache and does not count.
    columns = ceil_div(embedding, block_d)
    most = max(16, width * dtype.itemsize // (5 * 8 * ROW_TILES * block_r))
    wanted = ceil_div(2 * _CORES[chip], columns)
    if wanted > most:
        wanted = min(most, ceil_div(_CORES[chip], columns))
    wanted = max(1, min(wanted, ceil_div(width, 4 * block_v)))
    chunk = block_v * ceil_div(ceil_div(width, wanted), block_v)
    return ExpectedEmbeddingConfig(
        block_r=block_r,
        block_v=block_v,
        block_d=block_d,
        chunk=chunk,
        chunks=ceil_div(width, chunk),
        num_warps=num_warps,
        num_stages=num_stages,
        # warp-group instructions have 64 or 128 rows; those of the others have 16
        transposed=chip in ("sm_90", "sm_100") and dtype in _LOW_PRECISION,
        # shared memory admits one program there, and yet the assembler held a thread to 128
        # registers and spilled 8 bytes of the largest build
        max_registers=160 if chip == "sm_100" and dtype in _LOW_PRECISION else None,
    )


def head_stats_config(
    vocabulary: int, hidden: int, dtype: torch.dtype, chip: str
) -> HeadStatsConfig:
    """Config for a head [`vocabulary`, `hidden`] in `dtype`."""
    if chip == "interpreter":
        block_v, block_h, num_warps, num_stages = 64, 64, 4, 1
    elif dtype not in _LOW_PRECISION:
        # IEEE float32 products hold their operands in registers: with 4 warps of 32 they spill
        block_v, block_h, num_warps, num_stages = 64, 32, 4 if chip == "gfx942" else 8, 2
    elif chip == "gfx942":
        block_v, block_h, num_warps, num_stages = 128, 64, 4, 2
    else:
        # A program rereads the hidden rows beside its part of the head: R/128 of the head's bytes
        # from cache. A slab of 64 is a line of 128 bytes per head row, and two programs fit a
        # multiprocessor, so that the epilogue of one hides behind the loads of the other.
        block_v, block_h, num_warps, num_stages = 128, 64, 4, 3 if chip == "sm_80" else 4
    block_v = min(block_v, max(16, next_power_of_two(vocabulary)))
    block_h = min(block_h, max(16, next_power_of_two(hidden)))
    return HeadStatsConfig(
        block_v=block_v,
        block_h=block_h,
        chunks=ceil_div(vocabulary, block_v),
        num_warps=num_warps,
        num_stages=num_stages,
        # as in `expected_embedding`: held to 128, the assembler spilled 8 bytes
        max_registers=160 if chip == "sm_100" and dtype not in _LOW_PRECISION else None,
    )


def combine_warps(chunks: int) -> int:
    """Warps that merge the states of a row: 8 states a thread, up to 4096 chunks."""
    return min(16, max(1, next_power_of_two(chunks) // 256))


def block_entropy_config(candidates: int, block_size: int) -> BlockEntropyConfig:
    """Config for C `candidates` of B = `block_size` positions, on any chip."""
    block_c = next_power_of_two(candidates)
    block_b = max(2, next_power_of_two(block_size))
    # 8 slots a thread: each is a float64 sum and several addresses, 16 spilled
    num_warps = min(16, max(1, block_c * block_b // 256))
    return BlockEntropyConfig(block_c=block_c, block_b=block_b, num_warps=num_warps)


def sample_tokens_config(width: int, dtype: torch.dtype, chip: str) -> SampleTokensConfig:
    """Config for `width` usable columns of logits in `dtype`."""
    if chip == "interpreter":  # small enough that every path and every seam is met
        block_v, group, listed, block_s = 64, 4, 8, 256
    else:
        # 4096 columns over 4 warps are 32 values a thread, read 128 bits at a time. The maxima of
        # a row, and the 256 groups of 32 on its short list, are tiles of 8192: 16 a thread. Tiles
        # of the row keep int64 sums per column: 8192 of them spilled.
        block_v, group = 4096, max(32, next_power_of_two(ceil_div(width, 8192)))
        listed, block_s = 8192 // group, 4096
    block_v = min(block_v, max(2 * group, next_power_of_two(width)))
    return SampleTokensConfig(
        block_v=block_v,
        chunks=ceil_div(width, block_v),
        group=group,
        groups=ceil_div(width, group),
        listed=listed,
        block_s=block_s,
        num_warps=4,
        pick_warps=8 if chip == "gfx942" else 4,  # 4 spilled there
        list_warps=8 if chip == "gfx942" else 16,  # 16 spilled there
        search_warps=16,
        # all that 16 warps can have; left to itself the assembler took half, and spilled 8 bytes
        search_registers=128 if chip == "sm_80" else None,
    )


def backward_config(width: int, embedding: int, dtype: torch.dtype, chip: str) -> BackwardConfig:
    """Config of the soft backward for a table in `dtype`."""
    least = max(16, next_power_of_two(embedding))
    if chip == "interpreter":
        return BackwardConfig(16, 32, min(64, least), min(32, least), 4, 1)
    if dtype not in _LOW_PRECISION:
        return BackwardConfig(32, 64, min(64, least), min(32, least), 8, 2)
    # with two stages sm_80 spilled 8 bytes
    stages = 1 if chip == "sm_80" else 2
    return BackwardConfig(32, 128, min(128, least), min(64, least), 8, stages)


def top_k_config(width: int, dtype: torch.dtype, chip: str) -> VocabStatsConfig:
    """Config for finding the largest of `width` usable columns: int64 keys, 64 registers."""
    return vocab_stats_config(width, dtype, chip)


def gather_blocks(top_k: int, embedding: int) -> tuple[int, int]:
    """Table rows and columns that one program of the top-k gather holds at once."""
    return min(8, next_power_of_two(top_k)), min(256, max(16, next_power_of_two(embedding)))


def row_groups(rows: int, block_r: int) -> tuple[int, int]:
    """Row groups of a launch, and the tiles of `block_r` rows in each: the fewest, evenly filled.

    The one choice that knows the rows: it says which rows share a program, not how one is added up.
    """
    tiles = max(1, ceil_div(rows, block_r))
    groups = ceil_div(tiles, ROW_TILES)
    return groups, ceil_div(tiles, groups)


def combine_block(embedding: int) -> int:
    """Columns that one program of a combine kernel owns."""
    return min(64, max(16, next_power_of_two(embedding)))


def combine_chunks(chunks: int) -> int:
    """Chunks whose partial sums a combine kernel holds at once: 64 x 64 are 32 registers."""
    return min(64, next_power_of_two(chunks))


def chip_of(device: torch.device) -> str:
    """The chip whose configs fit `device`; ``"interpreter"`` for the CPU."""
    if device.type != "cuda":
        return "interpreter"
    if torch.version.hip:
        return "gfx942"
    major, _ = torch.cuda.get_device_capability(device)
    return {8: "sm_80", 9: "sm_90", 10: "sm_100"}.get(major, "sm_80")


def next_power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)
