"""All that needs a GPU, in a few minutes on one card: the marked tests, kernels, decoding.

    python -m benchmarks.gpu_check OUT

Runs in the environment that it finds and writes under OUT: `gpu-tests.xml` (JUnit), `kernels.json`
(`benchmarks.kernels`) and `decode.json` (`benchmarks.decode` at the sizes of Dream-7B, random
weights). Each runs even where one before it failed; the exit code is 0 only if all succeeded and 1
otherwise, also on a machine without a GPU. A short table comes last.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

# under six minutes, with three imports of torch
TESTS_SECONDS, BUDGET, GRACE, DECODE_SECONDS = 110, 140, 15, 85
NEEDED = ("pytest", "triton", "transformers", "typer", "rich")


def obstacle() -> str | None:
    """Why nothing can be checked here, or None."""
    if not torch.cuda.is_available():
        return "gpu-check needs a GPU, and torch finds none here; nothing was run"
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return f"gpu-check installs nothing, and {sys.executable} lacks {', '.join(missing)}"
    return None


def run(command: list[str], seconds: float) -> str | None:
    """Run a command with this Python; what went wrong, or None."""
    print("$", *command, flush=True)
    try:
        code = subprocess.run([sys.executable, *command], timeout=seconds).returncode
    except subprocess.TimeoutExpired:
        return f"ended after {seconds:g} s"
    return None if code == 0 else f"exit code {code}"


def summary(outcomes: dict[str, str | None], results: Path, speed: Path) -> str:
    """How each step ended, and one line per case of ours and per way to decode."""
    lines = [f"{step}: {wrong or 'passed'}" for step, wrong in outcomes.items()]
    if results.exists():
        saved: dict[str, Any] = json.loads(results.read_text())
        about = saved["environment"]
        lines.append(
            f"{about['card']}, driver {about['driver']}, torch {about['torch']}, triton "
            f"{about['triton']}, copy {about['copy_gb_per_s']:.0f} GB/s"
        )
        for point in saved["points"]:
            if point["provider"] == "ours":
                name = f"{point['op']:24} {point['shape']:38}"
                if "fault" in point:
                    lines.append(f"{name} {point['fault']}")
                else:
                    ratio = point.get("ratio_to_eager")
                    lines.append(
                        f"{name} {point['p50_us']:8.1f} µs, {point['copy_share']:.2f} of "
                        f"copy, {'?' if ratio is None else f'{ratio:.2f}'} of eager"
                    )
    if speed.exists():
        for point in json.loads(speed.read_text())["points"]:
            lines.append(
                f"B = {point['block_size']}, {point['provider']:8} {point['step_ms']:8.1f} ms a "
                f"step, {point['tokens_per_s']:.0f} tokens/s, {point['over_floor']:.2f} of floor"
            )
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Run the steps and print the table; the exit code."""
    if len(arguments) != 1:
        print("usage: python -m benchmarks.gpu_check OUT", file=sys.stderr)
        return 2
    wrong = obstacle()
    if wrong is not None:
        print(wrong, file=sys.stderr)
        return 1
    out = Path(arguments[0])
    out.mkdir(parents=True, exist_ok=True)
    results, speed = out / "kernels.json", out / "decode.json"
    for earlier in (results, speed):
        earlier.unlink(missing_ok=True)
    tests = [
        "-m",
        "pytest",
        "-m",
        "gpu",
        "-p",
        "no:cacheprovider",
        "--continue-on-collection-errors",
        f"--junitxml={out / 'gpu-tests.xml'}",
    ]
    timing = [
        "-m",
        "benchmarks.kernels",
        "--device",
        "cuda",
        "--budget",
        str(BUDGET),
        "--json",
        str(results),
    ]
    decoding = ["-m", "benchmarks.decode", "--preset", "dream-7b", "--rounds", "2"]
    outcomes = {
        "tests": run(tests, TESTS_SECONDS),
        "kernels": run(timing, BUDGET + GRACE),
        "decoding": run([*decoding, "--json", str(speed)], DECODE_SECONDS),
    }
    print(summary(outcomes, results, speed))
    return 1 if any(outcomes.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
