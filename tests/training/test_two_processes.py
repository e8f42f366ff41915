"""Two gloo processes train what one process trains: replicated, sharded, the DLM sharded too."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from codila.training.ar import train_ar
from codila.training.ar_recipe import ARRecipe
from codila.training.export import export_ars


def losses(folder: Path) -> list[float]:
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [r["loss"]["loss"] for r in records if "loss" in r]


def torchrun(recipe: ARRecipe, folder: Path, *options: str) -> subprocess.CompletedProcess:
    file = folder.with_suffix(".json")
    file.write_text(json.dumps(dataclasses.asdict(recipe)))
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone",
         "-m", "codila.cli", "train", "ar", "--config", str(file), "--output", str(folder),
         *options],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("shard", ["none", "all"])
def test_losses_and_weights_are_those_of_one_process(
    ar_recipe: ARRecipe, tmp_path: Path, shard: str
) -> None:
    recipe = dataclasses.replace(
        ar_recipe,
        variants={"ar": {}, "ar-window": {"window": (3, 2)}},
        optimizer="adamw",
        lr=0.003,
        rows=4,
        ema=0.5,
        chunk_blocks=5,  # the processes have different numbers of chunks
        log_every=1,
        eval_every=100,
    )
    one = dataclasses.replace(recipe, accumulate=2)
    export_ars(train_ar(one, tmp_path / "one"), tmp_path / "one")
    two = dataclasses.replace(recipe, shard=shard)
    if shard == "all":  # stopped after two steps, and resumed for the rest
        done = torchrun(two, tmp_path / "two", "--steps", "2")
        assert done.returncode == 0, done.stdout + done.stderr
    done = torchrun(two, tmp_path / "two")
    assert done.returncode == 0, done.stdout + done.stderr
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=2e-4)
    for name in recipe.variants:
        a, b = (load_file(tmp_path / f / name / "model.safetensors") for f in ("one", "two"))
        assert a.keys() == b.keys()
        for key, value in a.items():
            torch.testing.assert_close(b[key].float(), value.float(), rtol=0.02, atol=2e-3)
