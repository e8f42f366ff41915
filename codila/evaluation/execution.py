"""Run generated programs against their tests.

This is a guard against accidents, not against attackers. A program from a language model may
loop forever, eat memory, print megabytes, delete files, fork, or leave before its tests; each of
these is contained and counted as what it is. A program *written to* break out can do so, for it
runs with all the rights of the user who started it: run models that you do not trust in a
container or a virtual machine.

What contains a program: a process and session of its own, killed as a group at its end; a wall
clock, and CPU time as a second bound; limits on address space, on the size of any file that it
writes, and on core dumps; a fresh working directory that is deleted afterwards; an empty
environment, stdin at its end, stdout and stderr discarded; no site packages unless asked for;
and an audit hook that refuses new processes, network addresses, signals to other processes, and
changes to files outside the working directory (but for `os.open` relative to a `dir_fd` and what
`ctypes` calls, which no audit event tells apart). Limits that a platform lacks are left out (macOS
does not enforce the address space; RLIMIT_NPROC does not bind root). The number of files in the
working directory is not limited.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

Status = Literal["passed", "failed", "timeout", "memory", "syntax", "crashed"]

_RUNNER = Path(__file__).with_name("_runner.py")
_START_SECONDS = 60.0  # an interpreter start takes 30 ms; a busy machine may take far longer
_GRACE_SECONDS = 10.0  # how much longer than a program's own limit its runner may take to answer
_MIN_MEMORY_MB = 32  # below this the interpreter itself does not fit
_LIBRARY_PATHS = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "DYLD_FALLBACK_LIBRARY_PATH")


@dataclass(frozen=True)
class ExecutionResult:
    """What became of one program.

    Attributes:
        passed: true exactly if `status` is ``"passed"``.
        status: ``passed``: the program ran to its last line, tests included. ``failed``: it
            raised something (an assertion, ``SystemExit``, ``KeyboardInterrupt``, ...).
            ``timeout``: its time was up. ``memory``: ``MemoryError``. ``syntax``: it does not
            compile. ``crashed``: its process ended without a verdict (``os._exit``, a signal).
        detail: the exception, its message and its line, or how the process ended; empty if passed.
    """

    passed: bool
    status: Status
    detail: str


def problem_program(prompt: str, completion: str, tests: str, entry_point: str) -> str:
    """The program that decides one problem: solution, tests, and the call that runs them.

    Args:
        prompt: the code that the model was given to continue; empty if `completion` is complete.
        completion: the model's text.
        tests: code that defines ``check(candidate)``, as in HumanEval.
        entry_point: the name of the function under test.

    Raises:
        ValueError: `entry_point` is no identifier, or `tests` defines no ``check``.
    """
    if not entry_point.isidentifier():
        raise ValueError(f"entry_point must be a function name, got {entry_point!r}")
    if "def check(" not in tests:
        raise ValueError(
            "tests must define check(candidate); wrap bare assertions in such a function"
        )
    return f"{prompt}{completion}\n\n{tests}\n\ncheck({entry_point})\n"


def run_programs(
    programs: Sequence[str],
    *,
    timeout: float = 3.0,
    memory_mb: int = 512,
    max_output: int = 65536,
    workers: int | None = None,
    progress: Callable[[int, int], object] | None = None,
    site_packages: bool = False,
) -> list[ExecutionResult]:
    """Execute programs in contained child processes; see the module docstring for the limits.

    A program is judged by its exceptions only: what it prints neither passes nor fails it. Hash
    seed and `random`'s seed are fixed, so that a verdict repeats. ``__name__`` is ``"program"``.

    Args:
        programs: complete programs, tests included (see `problem_program`).
        timeout: seconds of wall clock per program; also bounds its CPU time, rounded up, plus 1.
            Raise it on a busy machine.
        memory_mb: address space per program, in MiB.
        max_output: bytes that a program may write to any one file.
        workers: programs run at a time; by default one per CPU available to this process.
        progress: called as ``progress(done, total)`` in the calling thread after each program.
        site_packages: let programs import what is installed beside this interpreter (numpy needs
            more memory than the default, and start-up costs more).

    Returns:
        One result per program, in the order of `programs`.

    Raises:
        TypeError: `programs` is a string or holds something else than strings.
        ValueError: a limit is out of range.
        RuntimeError: the platform cannot fork, or the runner process does not start.
    """
    if isinstance(programs, str) or not all(isinstance(p, str) for p in programs):
        raise TypeError("programs must be a sequence of strings, one per program")
    if not (math.isfinite(timeout) and timeout > 0):
        raise ValueError(f"timeout must be a positive number of seconds, got {timeout}")
    if memory_mb < _MIN_MEMORY_MB:
        raise ValueError(f"memory_mb must be at least {_MIN_MEMORY_MB}, got {memory_mb}")
    if max_output < 0:
        raise ValueError(f"max_output must not be negative, got {max_output}")
    if workers is not None and workers < 1:
        raise ValueError(f"workers must be at least 1, got {workers}")
    if not hasattr(os, "fork"):
        raise RuntimeError("running programs needs os.fork, which this platform does not have")
    if not programs:
        return []

    count = min(_available_cpus() if workers is None else workers, len(programs))
    results: list[ExecutionResult | None] = [None] * len(programs)
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(
            tempfile.TemporaryDirectory(prefix="codila-run-", ignore_cleanup_errors=True)
        )
        idle: queue.SimpleQueue[_Runner] = queue.SimpleQueue()
        for _ in range(count):
            runner = _Runner(scratch, timeout, memory_mb << 20, max_output, site_packages)
            stack.callback(runner.close)
            idle.put(runner)

        def run(program: str) -> ExecutionResult:
            runner = idle.get()
            try:
                return runner.run(program)
            finally:
                idle.put(runner)

        pool = stack.enter_context(ThreadPoolExecutor(count, thread_name_prefix="codila-run"))
        futures = {pool.submit(run, program): i for i, program in enumerate(programs)}
        try:
            for done, future in enumerate(as_completed(futures), start=1):
                results[futures[future]] = future.result()
                if progress is not None:
                    progress(done, len(programs))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [result for result in results if result is not None]


def _available_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Runner:
    """One runner process (`_runner.py`), restarted if a program takes it down."""

    def __init__(
        self, scratch: str, timeout: float, memory: int, file_bytes: int, site_packages: bool
    ) -> None:
        self._scratch = scratch
        self._answer_seconds = timeout + _GRACE_SECONDS
        # -P and -s are what -I adds beyond ignoring the environment; the environment here is our
        # own, and -I would ignore the hash seed in it.
        flags = ["-P", "-s", "-B"] + ([] if site_packages else ["-S"])
        limits = [repr(timeout), str(memory), str(file_bytes)]
        self._command = [sys.executable, *flags, str(_RUNNER), *limits]
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, program: str) -> ExecutionResult:
        request = json.dumps(program).encode() + b"\n"
        for _ in range(2):  # the runner may have been taken down since its last answer
            process = self._process if self._process is not None else self._start()
            assert process.stdin is not None
            try:
                process.stdin.write(request)
                process.stdin.flush()
                break
            except OSError:
                self.close()
        else:
            raise RuntimeError("the runner process ends as soon as it has started")
        answer = self._read_line(self._answer_seconds)
        if answer is None:
            self.close()
            return ExecutionResult(False, "crashed", "the program took its runner process down")
        reply = json.loads(answer)
        assert reply["status"] in get_args(Status)
        return ExecutionResult(reply["status"] == "passed", reply["status"], reply["detail"])

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {name: os.environ[name] for name in _LIBRARY_PATHS if name in os.environ}
        environment |= {"PATH": os.defpath, "LANG": "C.UTF-8", "TMPDIR": self._scratch}
        environment |= {"PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        log = Path(self._scratch, "runner.log")
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=self._scratch,
                env=environment,
                start_new_session=True,
                bufsize=0,
            )
        if self._read_line(_START_SECONDS) != b"ready\n":
            self.close()
            raise RuntimeError(
                f"the runner process did not start: {' '.join(self._command)}\n"
                f"{log.read_text(errors='replace')[-2000:]}"
            )
        return self._process

    def _read_line(self, seconds: float) -> bytes | None:
        """One line from the runner; None if it ended or did not answer in time."""
        assert self._process is not None and self._process.stdout is not None
        deadline = time.monotonic() + seconds
        line = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return None
                chunk = os.read(self._process.stdout.fileno(), 1 << 16)
                if not chunk:
                    return None
                line += chunk
        return line

    def close(self) -> None:
        """End the runner and, through it, the program that it is running."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(2.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
