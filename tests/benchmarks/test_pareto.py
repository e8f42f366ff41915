"""The benchmark around the measurement: tasks, resume, output form, claims. Nothing is decoded."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

import benchmarks.pareto as pareto
import benchmarks.scopes as scopes
from benchmarks.report import PointFile
from benchmarks.scopes import choose, scope_tasks
from benchmarks.targets import claims
from benchmarks.workers import settings
from codila.config import GenerationConfig

SCOPES = {
    "base-matched/1": 20,
    "base-matched/2": 10,
    "base-matched/4": 10,
    "base-matched/8": 3,
    "codila/2": 3,
    "codila/4": 2,
    "codila/8": 2,
    "codila-dynamic/4": 3,
    "threshold/4": 4,
}


def result(passed: str) -> SimpleNamespace:
    share = passed.count("1") / len(passed)
    return SimpleNamespace(
        n=len(passed),
        pass_at_1=share,
        interval=(share - 0.1, share + 0.1),
        syntax_error=0.25,
        nfe=12.0,
        tokens_per_forward=2.5,
        tokens_per_forward_canvas=5.0,
        passed=[c == "1" for c in passed],
    )


def test_every_task_is_a_valid_configuration_and_counts_are_as_promised() -> None:
    tasks = pareto.method_tasks(SCOPES)
    for task in tasks:
        GenerationConfig().updated(**task.options)
    by = {
        m: [t for t in tasks if t.identity["method"] == m]
        for m in {t.identity["method"] for t in tasks}
    }
    assert set(by) == {"base-published", "base-matched", "codila", "codila-dynamic", "threshold"}
    assert {t.identity["tokens_per_step"] for t in by["base-published"]} == {1, 2, 4, 8}
    assert {t.identity["tokens_per_step"] for t in by["base-matched"]} == {1, 2, 4, 8}
    assert len({t.identity["threshold"] for t in by["threshold"]}) == 5
    assert len({t.identity["threshold"] for t in by["codila-dynamic"]}) == 5
    combinations = {(t.identity["conditioning"], t.identity["block_size"]) for t in by["codila"]}
    assert len(combinations) == 9
    for method, conditioning in (("base-matched", None), ("codila", "soft")):
        rows = [t.identity for t in by[method] if t.identity["conditioning"] == conditioning]
        assert all(
            10 in {r["scope_blocks"] for r in rows if r["tokens_per_step"] == k} for k in (2, 4, 8)
        )
    for task in by["base-matched"]:
        assert task.options["block_size"] == task.options["tokens_per_step"]


def test_a_run_saves_each_point_resumes_and_ends_with_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = tmp_path / "scopes.json"
    chosen.write_text(json.dumps({"chosen": SCOPES}))
    monkeypatch.setattr(pareto, "SCOPES_FILE", chosen)
    asked: list[int] = []

    def broken_off(pair, tasks, *, n, split, jobs):
        asked.append(len(tasks))
        for i, task in enumerate(tasks):
            if len(asked) == 1 and i == 3:
                raise KeyboardInterrupt
            yield task, result("1101")

    def speed(pair, tasks, saved, n=20):
        for task in tasks:
            saved.put(saved.find(task.identity) | {"tokens_per_second": 100.0})

    monkeypatch.setattr(pareto, "evaluate_all", broken_off)
    monkeypatch.setattr(pareto, "measure_speed", speed)
    app = typer.Typer()
    app.command()(pareto.main)
    arguments = ["--json", str(tmp_path / "points.json"), "--plot", str(tmp_path / "p.png")]
    CliRunner().invoke(app, arguments)
    assert len(json.loads((tmp_path / "points.json").read_text())["points"]) == 3
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert asked[1] == asked[0] - 3
    points = json.loads(done.output.strip().splitlines()[-1])
    assert len(points) == asked[0]
    assert {
        "method",
        "tokens_per_step",
        "conditioning",
        "pass_at_1",
        "syntax_error",
        "nfe",
        "tokens_per_second",
        "tokens_per_forward",
        "tokens_per_forward_canvas",
        "scope_blocks",
        "n",
    } <= set(points[0])
    assert (tmp_path / "p.png").stat().st_size > 10_000
    other = CliRunner().invoke(app, [*arguments, "--n", "7"])
    assert isinstance(other.exception, ValueError) and "other settings" in str(other.exception)


def test_a_point_put_again_replaces_itself(tmp_path: Path) -> None:
    saved = PointFile(tmp_path / "p.json", {}, ("a",))
    saved.put({"a": 1, "b": 2})
    saved.put({"a": 2})
    saved.put({"a": 1, "b": 3})
    assert PointFile(tmp_path / "p.json", {}, ("a",)).points == [{"a": 1, "b": 3}, {"a": 2}]


def test_the_scope_of_highest_dev_score_is_chosen_ties_to_the_wider() -> None:
    def point(method: str, scope: int, score: float) -> dict:
        return {"method": method, "scope_blocks": scope, "pass_at_1": score}

    points = [point("a", 2, 0.5), point("a", 10, 0.5), point("a", 3, 0.4), point("b", 2, 0.1)]
    assert choose(points) == {"a": 10, "b": 2}
    assert {t.identity["method"] for t in scope_tasks()} == set(SCOPES)


def test_claims_compare_with_the_better_base_at_the_chosen_scope() -> None:
    def point(method: str, k: int | None, passed: str, **more) -> dict:
        base = {"conditioning": None, "scope_blocks": 0, "threshold": None, "nfe": 30.0}
        base["block_size"] = k or 4
        r = pareto.accuracy(result(passed))
        return r | base | {"method": method, "tokens_per_step": k} | more

    points = [
        point("base-published", 1, "1111101111"),
        point("base-matched", 1, "1111111111", scope_blocks=20),
    ]
    for k in (2, 4, 8):
        points.append(point("base-published", k, "1110000000"))
        points.append(point("base-matched", k, "1100000000", scope_blocks=3, syntax_error=0.6))
        points.append(
            point(
                "codila", k, "1111110000", conditioning="soft", scope_blocks=SCOPES[f"codila/{k}"]
            )
        )
        points.append(point("codila", k, "1111111111", conditioning="soft", scope_blocks=10))
    points.append(point("codila", 4, "1111100000", conditioning="top-1", scope_blocks=2))
    dynamic = dict(conditioning="soft", threshold=0.1)
    chosen = SCOPES["codila-dynamic/4"]
    points.append(
        point("codila-dynamic", None, "1111111111", **dynamic, nfe=15.0, scope_blocks=chosen)
    )
    points.append(point("codila-dynamic", None, "1111111111", **dynamic, nfe=9.0, scope_blocks=10))
    rows = {r["claim"]: r for r in claims(points, SCOPES)}
    assert rows["base, K = 1: Pass@1"]["met"] == "yes"
    assert rows["CoDiLA over base, B = K = 4"]["value"] == "60.0 - 30.0 = +30.0"
    assert rows["CoDiLA over base, B = K = 4"]["met"] == "yes"
    # 25 % against the better base's 25 %: not half
    assert rows["syntax errors at 8, CoDiLA / base"]["met"] == "no"
    assert rows["soft over top-1, B = 4"]["met"] == "yes"
    row = next(r for c, r in rows.items() if c.startswith("dynamic"))
    assert row["value"].startswith("15.0 / 30.0 = 50 %") and row["met"] == "yes"


def test_the_choice_of_scopes_is_written_when_nothing_is_left_to_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(pair, tasks, *, n, split, jobs):
        for task in tasks:
            yield task, result("1101")

    monkeypatch.setattr(scopes, "evaluate_all", measured)
    app = typer.Typer()
    app.command()(scopes.main)
    target = tmp_path / "scopes.json"
    arguments = ["--json", str(target), "--n", "4"]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    chosen = target.read_text()
    target.unlink()
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert target.read_text() == chosen and set(json.loads(chosen)["chosen"]) == set(SCOPES)


def test_points_of_other_weights_or_another_machine_are_not_mixed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = settings("tiny", 100, "test")
    assert here == settings("tiny", 100, "test") and len(here["digest"]) == 16
    PointFile(tmp_path / "p.json", here, ("a",)).put({"a": 1})
    with pytest.raises(ValueError, match="other settings"):
        PointFile(tmp_path / "p.json", here | {"digest": "0" * 16}, ("a",))
    monkeypatch.setattr("benchmarks.report.environment", lambda: {"device": "another"})
    with pytest.raises(ValueError, match="another environment"):
        PointFile(tmp_path / "p.json", here, ("a",))
