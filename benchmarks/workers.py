"""Evaluate many settings of a bundled pair side by side, one thread each."""

from __future__ import annotations

import functools
import hashlib
import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from benchmarks.report import Point

AR_FOLDERS = {"soft": "ar", "top-3": "ar-top3", "top-1": "ar-top1"}


class Task(NamedTuple):
    """One setting: what identifies its point, and how to decode (``conditioning`` None: base)."""

    identity: Point
    conditioning: str | None
    options: dict[str, Any]


@functools.cache
def load_pair(name: str, conditioning: str | None) -> Any:
    """A bundled pair with the AR model of a conditioning, or the DLM alone."""
    import codila

    if conditioning is None:
        return codila.load(dlm=Path(codila.__file__).parent / "pretrained" / name / "dlm")
    return codila.load(name, ar=AR_FOLDERS[conditioning])


def settings(pair: str, n: int, split: str) -> dict[str, Any]:
    """What every point of a run depends on: problems, and a digest of weights and task."""
    import codila

    root = Path(codila.__file__).parent
    digest = hashlib.sha256()
    for path in sorted((*(root / "pretrained" / pair).rglob("*.*"), *(root / "toy").glob("*.py"))):
        digest.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return {"pair": pair, "n": n, "split": split, "digest": digest.hexdigest()[:16]}


def evaluate_all(
    pair: str, tasks: Sequence[Task], *, n: int, split: str, jobs: int
) -> Iterator[tuple[Task, Any]]:
    """``(task, ToyResult)`` of every task as it is done, in ``jobs`` processes of one thread."""
    if not tasks:
        return
    with ProcessPoolExecutor(
        max_workers=min(jobs, len(tasks)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_single_thread,
    ) as pool:
        futures = {pool.submit(_evaluate, pair, task, n, split): task for task in tasks}
        for future in tqdm(as_completed(futures), total=len(tasks), unit="point"):
            yield futures[future], future.result()


def cores() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _single_thread() -> None:
    import torch

    torch.set_num_threads(1)


def _evaluate(pair: str, task: Task, n: int, split: str) -> Any:
    from codila.evaluation.toy import evaluate_toy

    return evaluate_toy(load_pair(pair, task.conditioning), n=n, split=split, **task.options)
