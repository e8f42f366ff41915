"""Head, online softmax and P E in one kernel, logits never stored: an experiment, and its counts.

    python -m benchmarks.experiments.one_pass

prints the bytes that it and the two-kernel path (`head_stats`, `expected_embedding`) move for
Dream-7B with Qwen3-0.6B on an H100, and what one program must hold. Head and table are read once by
both. One pass saves the round trip of the logits. It pays in partial sums: a program that has the
probabilities of a chunk in registers must hold the sums [R, D] of all D columns, so that every
multiprocessor leaves one, where `expected_embedding` cuts D among its programs and leaves fewer.
It also conditions every candidate row, before the choice of a block is known.

*Split*: one program owns all R <= 32 rows and one chunk of ids, grid (chunks). *Combine*: that of
`expected_embedding`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from codila_kernels.configs import (
    _CORES,
    ceil_div,
    combine_block,
    combine_chunks,
    expected_embedding_config,
    head_stats_config,
    next_power_of_two,
)
from codila_kernels.kernels.expected_embedding import _expected_embedding_combine_kernel
from codila_kernels.kernels.online_softmax import LOG2_E, finite_shift


@triton.jit
def _one_pass_split_kernel(
    hidden_ptr,
    head_ptr,
    table_ptr,
    acc_ptr,
    state_ptr,
    rows,
    width,
    chunk,
    hidden_size,
    embedding,
    hidden_stride,
    head_stride,
    table_stride,
    scale,
    DOT_IN_FP32: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    part = tl.program_id(0).to(tl.int64)
    r = tl.arange(0, BLOCK_R).to(tl.int64)  # [BLOCK_R]
    d = tl.arange(0, BLOCK_D)  # [BLOCK_D], all columns of the table
    r_here = r < rows
    d_here = d < embedding
    m = tl.full([BLOCK_R], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_R], tl.float32)  # noqa: E741
    acc = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    first = (part * chunk).to(tl.int32)
    last = tl.minimum(first + chunk, width)
    for start in range(first, last, BLOCK_V):
        v = start + tl.arange(0, BLOCK_V)  # [BLOCK_V]
        v_here = v < last
        w_row = head_ptr + v.to(tl.int64) * head_stride
        z = tl.zeros([BLOCK_R, BLOCK_V], tl.float32)
        for slab in range(0, hidden_size, BLOCK_H):
            h = slab + tl.arange(0, BLOCK_H)  # [BLOCK_H]
            h_here = h < hidden_size
            x = tl.load(
                (hidden_ptr + r * hidden_stride)[:, None] + h[None, :],
                mask=r_here[:, None] & h_here[None, :],
                other=0.0,
            )  # [BLOCK_R, BLOCK_H]
            w = tl.load(
                w_row[None, :] + h[:, None], mask=h_here[:, None] & v_here[None, :], other=0.0
            )  # [BLOCK_H, BLOCK_V]
            if DOT_IN_FP32:
                z += tl.dot(x.to(tl.float32), w.to(tl.float32))
            else:
                z = tl.dot(x, w, z, input_precision="ieee")
        z = z.to(hidden_ptr.dtype.element_ty).to(tl.float32)  # as `head_stats` would store them
        z = tl.where(v_here[None, :], z, float("-inf"))
        higher = tl.maximum(m, tl.max(z, axis=1))
        c = tl.exp2((m - finite_shift(higher)) * scale)
        m = higher
        p = tl.exp2((z - finite_shift(m)[:, None]) * scale)
        l = l * c + tl.sum(p, axis=1)  # noqa: E741
        e = tl.load(
            (table_ptr + v.to(tl.int64) * table_stride)[:, None] + d[None, :],
            mask=v_here[:, None] & d_here[None, :],
            other=0.0,
        )  # [BLOCK_V, BLOCK_D]
        acc = acc * c[:, None]
        if DOT_IN_FP32:
            acc += tl.dot(p.to(e.dtype).to(tl.float32), e.to(tl.float32))
        else:
            acc = tl.dot(p.to(e.dtype), e, acc, input_precision="ieee")
    at = part * rows + r
    tl.store(
        acc_ptr + (at * embedding)[:, None] + d[None, :],
        acc,
        mask=r_here[:, None] & d_here[None, :],
    )
    tl.store(state_ptr + at, m, mask=r_here)
    tl.store(state_ptr + tl.num_programs(0).to(tl.int64) * rows + at, l, mask=r_here)


def one_pass(
    hidden: Tensor,
    head: Tensor,
    table: Tensor,
    *,
    width: int,
    chunks: int,
    temperature: float = 1.0,
    block_v: int = 16,
    block_h: int = 128,
) -> Tensor:
    """``softmax(hidden @ head[:width].T / T) @ table[:width]`` for R <= 32 rows, [R, D]."""
    (rows, hidden_size), embedding = hidden.shape, table.shape[1]
    chunk = block_v * ceil_div(ceil_div(width, chunks), block_v)
    chunks = ceil_div(width, chunk)
    acc = torch.empty((chunks, rows, embedding), dtype=torch.float32, device=hidden.device)
    state = torch.empty((2, chunks, rows), dtype=torch.float32, device=hidden.device)
    out = torch.empty((rows, embedding), dtype=table.dtype, device=hidden.device)
    _one_pass_split_kernel[(chunks,)](
        hidden_ptr=hidden,
        head_ptr=head,
        table_ptr=table,
        acc_ptr=acc,
        state_ptr=state,
        rows=rows,
        width=width,
        chunk=chunk,
        hidden_size=hidden_size,
        embedding=embedding,
        hidden_stride=hidden.stride(0),
        head_stride=head.stride(0),
        table_stride=table.stride(0),
        scale=LOG2_E / temperature,
        DOT_IN_FP32=not hidden.is_cuda,
        BLOCK_R=16 if rows <= 16 else 32,
        BLOCK_V=block_v,
        BLOCK_H=block_h,
        BLOCK_D=max(16, next_power_of_two(embedding)),
        num_warps=8,
        num_stages=2,
    )
    block_d = combine_block(embedding)
    _expected_embedding_combine_kernel[(rows, ceil_div(embedding, block_d))](
        acc_ptr=acc,
        state_ptr=state,
        out_ptr=out,
        whole_ptr=torch.empty((2, rows), dtype=torch.float32, device=out.device),
        rows=rows,
        chunks=chunks,
        embedding=embedding,
        whole_stride=rows,
        scale=LOG2_E / temperature,
        BLOCK_C=combine_chunks(chunks),
        BLOCK_D=block_d,
        num_warps=4,
    )
    return out


def counts(rows: int, chip: str = "sm_90") -> dict[str, tuple[float, float]]:
    """MB moved by (two kernels, one pass) for Dream-7B with Qwen3-0.6B in bfloat16."""
    vocabulary, width, hidden, embedding = 152_064, 151_936, 3584, 1024
    soft = expected_embedding_config(width, embedding, torch.bfloat16, chip)
    stats = head_stats_config(vocabulary, hidden, torch.bfloat16, chip)
    both = {"head": 2 * vocabulary * hidden, "table": 2 * width * embedding}
    moved = {name: (size, size) for name, size in both.items()}
    moved["logits, written and read once"] = (2 * 2 * rows * vocabulary, 0)
    moved["states of the statistics"] = (2 * 20 * rows * stats.chunks, 0)
    moved["partial sums, written and read"] = (
        8 * soft.chunks * rows * embedding,
        8 * _CORES[chip] * rows * embedding,
    )
    moved["all"] = tuple(sum(column) for column in zip(*moved.values(), strict=True))
    return {name: (a / 1e6, b / 1e6) for name, (a, b) in moved.items()}


def main() -> None:
    for rows in (4, 16, 32):
        print(f"R = {rows}: MB, two kernels and one pass")
        for name, (two, one) in counts(rows).items():
            print(f"  {name:34} {two:9.1f} {one:9.1f}")
        held = ceil_div(rows, 16) * 16 * 4  # bytes per column of whole tiles of 16 rows
        print(
            f"  sums that a program holds, kB      {held * 256 // 1024:9} {held * 1024 // 1024:9}"
        )


if __name__ == "__main__":
    main()
