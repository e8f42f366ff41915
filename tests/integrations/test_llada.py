"""LLaDA's `generate` against its definition, written out row by row."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

sys.path.append(str(Path(__file__).parents[1] / "runtime"))

from test_llada_model import write_checkpoint  # noqa: E402
from tiny_pairs import MASK, WORDS  # noqa: E402

from codila.integrations import llada  # noqa: E402
from codila.models.loading import load_dlm  # noqa: E402

EOS, EOT = 60, 61
IDS = {"mask_id": MASK, "eos_ids": (EOS, EOT)}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("llada")
    write_checkpoint(folder)
    return load_dlm(folder)


@torch.no_grad()
def definition(
    model: Any, prompts: list[list[int]], steps: int, gen_length: int, block_length: int,
    temperature: float, cfg_scale: float, remasking: str, eos_out: bool, eos_last: bool,
) -> list[list[int]]:  # fmt: skip
    """Rows without padding; the random numbers are drawn for the padded batch, as published."""
    width, rows = max(map(len, prompts)), len(prompts)
    length, x = width + gen_length, [[*p, *[MASK] * gen_length] for p in prompts]
    per_block = steps * block_length // gen_length
    for block in range(gen_length // block_length):
        end = [len(p) + (block + 1) * block_length for p in prompts]
        begin = [sum(v == MASK for v in x[r][end[r] - block_length : end[r]]) for r in range(rows)]
        for step in range(per_block):
            z = []
            for r, prompt in enumerate(prompts):
                row = model(torch.tensor([x[r]])).logits[0]
                if cfg_scale > 0:
                    hidden = [MASK] * len(prompt) + x[r][len(prompt) :]
                    hidden = [
                        MASK if v != MASK and i < len(prompt) else v for i, v in enumerate(hidden)
                    ]
                    free = model(torch.tensor([hidden])).logits[0]
                    row = free + (cfg_scale + 1) * (row - free)
                row = row.clone()
                if eos_out:
                    row[:, EOS] = float("-inf")
                z.append(row)
            noise = (
                torch.rand(rows, length, z[0].shape[1], dtype=torch.float64)
                if temperature
                else None
            )
            coins = torch.rand(rows, length) if remasking == "random" else None
            for r in range(rows):
                gap = width - len(prompts[r])
                score = z[r]
                if noise is not None:
                    u = noise[r, gap:]
                    score = z[r].double().exp() / (-u.log()) ** temperature
                token = score.argmax(-1)
                p = z[r].double().softmax(-1)
                rank = []
                for c in range(end[r]):
                    if x[r][c] == MASK:
                        v = int(token[c])
                        sure = float(p[c, v]) if coins is None else float(coins[r, gap + c])
                        rank.append((eos_last and v in (EOS, EOT), -sure, c, v))
                base, more = divmod(begin[r], per_block)
                for _, _, c, v in sorted(rank)[: base + (step < more)]:
                    x[r][c] = v
    return x


@pytest.mark.parametrize("case", range(60))
def test_every_row_is_the_definition(model, case):
    rng = random.Random(case)
    block_length, blocks = rng.choice([(2, 2), (4, 1), (4, 2), (3, 2), (6, 1)])
    options = {
        "steps": blocks * rng.choice([1, 2, 3]),
        "gen_length": block_length * blocks,
        "block_length": block_length,
        "temperature": rng.choice([0.0, 0.0, 0.5, 1.0]),
        "cfg_scale": rng.choice([0.0, 0.0, 1.5]),
        "remasking": rng.choice(["low_confidence", "low_confidence", "random"]),
    }
    eos_out, eos_last = rng.random() < 0.3, rng.random() < 0.3
    prompts = [[rng.randrange(WORDS) for _ in range(rng.randint(1, 5))] for _ in range(2)]
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    torch.manual_seed(case)
    want = definition(model, prompts, eos_out=eos_out, eos_last=eos_last, **options)
    torch.manual_seed(case)
    out = llada.generate(
        model, ids, mask, logits_eos_inf=eos_out, confidence_eos_eot_inf=eos_last, **IDS, **options
    )
    assert [row[width - len(p) :] for row, p in zip(out.tolist(), prompts, strict=True)] == want


@pytest.mark.parametrize("last", [False, True])
def test_ends_that_are_held_back_are_revealed_last(last):
    """Published, this changes the confidence of tokens that are chosen already: no effect."""
    seen = []

    def surest_of_ends(ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        seen.append(ids[0, 1:].tolist())
        logits = torch.zeros(*ids.shape, 80)
        logits[:, 1, EOS], logits[:, 2, EOT], logits[:, 3, 5] = 9.0, 8.0, 3.0
        return type("Out", (), {"logits": logits})

    options = dict(steps=3, gen_length=3, block_length=3, **IDS)
    out = llada.generate(
        surest_of_ends, torch.tensor([[1]]), confidence_eos_eot_inf=last, **options
    )
    assert out.tolist() == [[1, EOS, EOT, 5]]
    first = [MASK, MASK, 5] if last else [EOS, MASK, MASK]
    second = [EOS, MASK, 5] if last else [EOS, EOT, MASK]
    assert seen == [[MASK] * 3, first, second]


def test_an_end_token_that_is_out_is_never_drawn(model):
    ids = torch.tensor([[1, 2, 3]])
    options = dict(steps=8, gen_length=8, block_length=8, mask_id=MASK)
    plain = llada.generate(model, ids, **options).tolist()[0]
    banned = plain[5]
    out = llada.generate(model, ids, logits_eos_inf=True, eos_ids=(banned, EOT), **options)
    assert banned not in out[0, 3:].tolist()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gen_length": 10, "block_length": 4}, "gen_length=10 is no multiple of block_length=4"),
        (
            {"steps": 3, "gen_length": 8, "block_length": 4},
            "steps=3 is no multiple of the 2 blocks",
        ),
        ({"remasking": "best"}, "remasking='best'"),
    ],
)
def test_what_does_not_divide_is_an_error(model, options, message):
    with pytest.raises(ValueError, match=message):
        llada.generate(model, torch.tensor([[1]]), **options)
