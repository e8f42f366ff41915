"""On a GPU the loop keeps fixed shapes instead of leaving out what was not chosen."""

from __future__ import annotations

import pytest
import torch
from tiny_pairs import EOS, make_ar, make_dlm

from codila.generation import generate


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize(
    "options",
    [
        {"schedule": "static", "blocks_per_step": 2},
        {"schedule": "dynamic", "entropy_threshold": 1.5},
        {"schedule": "dynamic", "entropy_threshold": 1.5, "conditioning": "top-3"},
        {"schedule": "confidence", "tokens_per_step": 2, "confidence_source": "sampled"},
    ],
    ids=lambda o: "-".join(map(str, o.values())),
)
@pytest.mark.parametrize("graphs", [False, True], ids=["plain", "graphs"])
def test_a_gpu_writes_the_tokens_of_the_cpu(options, graphs):
    dlm = make_dlm(2, sharpness=3.0)
    ar = make_ar(dlm, 2)
    prompts = torch.tensor([[EOS, EOS, 3], [1, 2, 3]])
    mask = torch.tensor([[0, 0, 1], [1, 1, 1]])
    options = {"max_new_tokens": 14, "temperature": 0.7, "seed": 0} | options
    runs = []
    for device in ("cpu", "cuda"):
        runs.append(
            generate(
                dlm.to(device),
                prompts.to(device),
                ar_model=ar.to(device),
                attention_mask=mask.to(device),
                cuda_graphs=graphs and device == "cuda",
                **options,
            )
        )
    cpu, gpu = runs
    assert gpu.sequences.cpu().tolist() == cpu.sequences.tolist()
    assert gpu.step_of.cpu().tolist() == cpu.step_of.tolist()
