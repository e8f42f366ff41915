"""Which curves are drawn from a run's log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.curves import Curve, main, panels


def write(path: Path, *validations: dict[str, float]) -> Path:
    records = [{"step": 10 * i, "validation": v} for i, v in enumerate(validations, 1)]
    lines = map(json.dumps, [{"step": 1, "loss": {"nll": 9.0}}, *records])
    path.write_text("\n".join(lines) + "\n")
    return path


def test_panels_of_an_ar_log(tmp_path):
    figures = {"dlm/B2": 0.4, "ar/B2": 0.2, "ar/B2@0.9": 0.9, "ar/B2/place1": 0.3}
    figures |= {"ar/B2/top-1": 0.5, "ar/B16": 0.7, "ar/B16/perplexity": 2.0}
    log = write(tmp_path / "log.jsonl", figures, figures | {"ar/B2": 0.1})
    assert panels(log) == {
        "AR, B = 2": [
            Curve("dlm", "k--", [(10, 0.4), (20, 0.4)]),
            Curve("ar", "-", [(10, 0.2), (20, 0.1)]),
            Curve("ar, fed top-1", ":", [(10, 0.5), (20, 0.5)]),
        ],
        "AR, B = 16": [Curve("ar", "-", [(10, 0.7), (20, 0.7)])],
    }


def test_plot_of_both_kinds(tmp_path):
    pytest.importorskip("matplotlib")
    dlm = write(tmp_path / "dlm.jsonl", {"nll@0.5": 1.0})
    ar = write(tmp_path / "ar.jsonl", {"ar/B4": 0.2})
    main([dlm, ar], tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_a_log_without_validations_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="no validation was logged"):
        main([write(tmp_path / "log.jsonl")], tmp_path / "curves.png")
