"""Run by torchrun in two processes: decode a folder, sharded or row by row; write the tokens."""

from __future__ import annotations

import json
import os
import sys

import torch
import torch.distributed as dist
from tiny_pairs import make_ar

import codila
from codila.models.loading import load_dlm

IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])
OPTIONS = {"max_new_tokens": 12, "temperature": 0.7}


def tensor_parallel(folder: str, **options) -> list[list[int]]:
    """Each process holds a part of every layer; all of them see every row."""
    dlm = load_dlm(folder, dtype=torch.float64, tp_plan="auto")
    weight = dlm.model.layers[0].self_attn.q_proj.weight
    assert weight.to_local().shape[0] * 2 == weight.shape[0], "nothing was sharded"
    ar = make_ar(dlm, dtype=torch.float64)
    return codila.generate(dlm, IDS, ar_model=ar, seed=[7, 8], **options).sequences.tolist()


def data_parallel(folder: str, **options) -> list[list[int]]:
    """Each process decodes its rows with their own seeds; accelerate hands them out."""
    from accelerate import PartialState
    from accelerate.utils import gather_object

    state = PartialState(cpu=True)
    dlm = load_dlm(folder, dtype=torch.float64)
    ar = make_ar(dlm, dtype=torch.float64)
    with state.split_between_processes([(IDS[0], 7), (IDS[1], 8)]) as mine:
        ids, seeds = torch.stack([row for row, _ in mine]), [seed for _, seed in mine]
        out = codila.generate(dlm, ids, ar_model=ar, seed=seeds, **options)
    return gather_object(out.sequences.tolist())


if __name__ == "__main__":
    run = {"tensor": tensor_parallel, "data": data_parallel}[sys.argv[1]]
    tokens = run(sys.argv[2], **OPTIONS, **json.loads(sys.argv[3]))
    with open(f"{sys.argv[4]}-{os.environ['RANK']}", "w", encoding="utf-8") as file:
        json.dump(tokens, file)
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()
