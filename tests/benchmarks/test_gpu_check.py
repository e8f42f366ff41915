"""The GPU check without a GPU: its message, its exit code, and what a failing test prevents."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import benchmarks.gpu_check as gpu_check


def test_without_a_gpu_it_says_so_and_fails(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(gpu_check.torch.cuda, "is_available", lambda: False)
    out = tmp_path / "out"
    assert gpu_check.main([str(out)]) == 1
    assert "needs a GPU" in capsys.readouterr().err and not out.exists()


def test_a_missing_module_is_named(monkeypatch) -> None:
    monkeypatch.setattr(gpu_check.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu_check, "NEEDED", ("json", "no_such_module"))
    assert gpu_check.obstacle().endswith("lacks no_such_module")


@pytest.mark.parametrize("failing", [None, "pytest", "benchmarks.kernels", "benchmarks.decode"])
def test_every_step_runs_and_the_exit_code_tells(tmp_path, monkeypatch, capsys, failing) -> None:
    ran = []

    def run(command: list[str], seconds: float) -> str | None:
        ran.append(command[1])
        if "--json" in command:
            about = dict(card="C", driver="1", torch="2", triton="3", copy_gb_per_s=4000.0)
            point = dict(op="vocab_stats", shape="R=40", provider="ours", p50_us=7.0,
                         copy_share=0.5, ratio_to_eager=0.25)  # fmt: skip
            if command[1] == "benchmarks.decode":
                point = dict(block_size=4, provider="exact", step_ms=20.0, tokens_per_s=200.0,
                             over_floor=1.2)  # fmt: skip
            saved = {"environment": about, "points": [point]}
            Path(command[command.index("--json") + 1]).write_text(json.dumps(saved))
        return "exit code 1" if command[1] == failing else None

    monkeypatch.setattr(gpu_check, "obstacle", lambda: None)
    monkeypatch.setattr(gpu_check, "run", run)
    assert gpu_check.main([str(tmp_path / "out")]) == (0 if failing is None else 1)
    assert ran == ["pytest", "benchmarks.kernels", "benchmarks.decode"]
    printed = capsys.readouterr().out
    assert printed.count("exit code 1") == (failing is not None)
    assert "vocab_stats" in printed.splitlines()[-2] and "0.25 of eager" in printed
    assert "20.0 ms a step" in printed.splitlines()[-1]


def test_a_step_that_fails_or_takes_too_long_is_told_apart() -> None:
    assert gpu_check.run(["-c", "raise SystemExit(3)"], 60) == "exit code 3"
    assert gpu_check.run(["-c", "import time; time.sleep(60)"], 0.5) == "ended after 0.5 s"
    assert gpu_check.run(["-c", ""], 60) is None
