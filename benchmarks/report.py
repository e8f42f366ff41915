"""The output form that all benchmarks share: points in a resumable file, a table, JSON last."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

Point = dict[str, Any]


def environment() -> dict[str, Any]:
    """Versions and hardware that a figure depends on."""
    import transformers

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    return {
        "device": device,
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


class PointFile:
    """Points of a run, saved atomically after each one and found again when the run goes on.

    Args:
        path: JSON file ``{"environment": ..., "settings": ..., "points": [...]}``, or None.
        settings: what the points depend on beyond their own keys; a file with other settings, or
            from another environment, is an error, never overwritten.
        keys: the keys that identify a point.
    """

    def __init__(self, path: Path | None, settings: dict[str, Any], keys: Sequence[str]) -> None:
        self.path, self.settings, self.keys = path, settings, tuple(keys)
        self.points: list[Point] = []
        self.environment = environment()
        if path is not None and path.exists():
            saved = json.loads(path.read_text())
            if saved.get("settings") != settings:
                raise ValueError(
                    f"{path} holds points of other settings {saved.get('settings')}, these are "
                    f"{settings}: give another --json, or remove the file"
                )
            if _but_threads(saved["environment"]) != _but_threads(self.environment):
                raise ValueError(
                    f"{path} holds points of another environment {saved['environment']}, this is "
                    f"{self.environment}: give another --json, or remove the file"
                )
            self.points = saved["points"]

    def find(self, wanted: Point) -> Point | None:
        """The saved point with the same identifying keys."""
        identity = [wanted.get(k) for k in self.keys]
        return next((p for p in self.points if [p.get(k) for k in self.keys] == identity), None)

    def put(self, point: Point) -> None:
        """Add a point, or replace the one with the same identifying keys; saved at once."""
        old = self.find(point)
        if old is None:
            self.points.append(point)
        else:
            self.points[self.points.index(old)] = point
        if self.path is not None:
            payload = {
                "environment": self.environment,
                "settings": self.settings,
                "points": self.points,
            }
            write_atomically(self.path, json.dumps(payload, indent=1) + "\n")


def _but_threads(environment: dict[str, Any]) -> dict[str, Any]:
    """A benchmark sets its own number of threads, whatever the process began with."""
    return {key: value for key, value in environment.items() if key != "threads"}


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` so that ``path`` holds the old file or the new one, never half of either."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(path.name + ".tmp")
    scratch.write_text(text)
    os.replace(scratch, path)


def print_table(title: str, points: Sequence[Point], columns: dict[str, str]) -> None:
    """A table of ``columns`` (key -> format spec, empty for plain text)."""
    table = Table(title=title)
    for key in columns:
        table.add_column(key, justify="right")
    for point in points:
        cells = []
        for key, spec in columns.items():
            value = point.get(key)
            cells.append("" if value is None else format(value, spec))
        table.add_row(*cells)
    Console(width=max(120, Console().width)).print(table)


def print_json_line(points: Sequence[Point]) -> None:
    """The points as one JSON list: always the last line of standard output."""
    print(json.dumps(list(points)), flush=True)
