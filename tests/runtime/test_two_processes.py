"""Two gloo processes write the single process's tokens: sharded layers, and rows shared out."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import two_processes
from test_llada_model import write_checkpoint
from tiny_pairs import make_ar, make_dlm, save_dlm

from codila import generate
from codila.models.loading import load_dlm

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("accelerate") is None, reason="needs accelerate"
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("dlms")
    save_dlm(root / "Dream", make_dlm(dtype=torch.float32))
    write_checkpoint(root / "llada")
    return {name: root / name for name in ("Dream", "llada")}


@pytest.mark.parametrize(
    ("kind", "family", "options"),
    [
        ("tensor", "Dream", {}),
        ("tensor", "llada", {"schedule": "dynamic", "entropy_threshold": 2.0}),
        ("tensor", "Dream", {"dlm_cache": "dual", "refresh_interval": 2}),
        ("data", "Dream", {"schedule": "dynamic", "entropy_threshold": 2.0}),
    ],
)
def test_the_tokens_are_those_of_one_process(folders, tmp_path, kind, family, options):
    dlm = load_dlm(folders[family], dtype=torch.float64)
    want = generate(
        dlm, two_processes.IDS, ar_model=make_ar(dlm), seed=[7, 8], **two_processes.OPTIONS,
        **options,
    ).sequences.tolist()  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone",
         two_processes.__file__, kind, str(folders[family]), json.dumps(options),
         str(tmp_path / "out")],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in range(2):
        assert json.loads((tmp_path / f"out-{rank}").read_text(encoding="utf-8")) == want
