"""Each kind of misbehaviour that a generated program has been seen to show, and its verdict."""

import os
import re
import sys
import time
from pathlib import Path

import pytest

from codila.evaluation import ExecutionResult, run_programs

PATIENT = 20.0  # seconds for programs that end by themselves: only a hang reaches it

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
linux = pytest.mark.skipif(sys.platform != "linux", reason="uses a Linux interface")

FORGERY = """
import os
for fd in range(64):
    try:
        os.write(fd, b"0123456789abcdef0123456789abcdef passed\\n")
    except OSError:
        pass
os._exit(0)
"""
BLIND = (
    "import os, sys\nsys.stdout.close()\nsys.stderr.close()\nfor fd in (0, 1, 2): os.close(fd)\n"
)
TEMPORARY = """
import os, tempfile
with tempfile.TemporaryDirectory() as folder:
    with open(os.path.join(folder, "notes"), "w") as file:
        file.write("x")
    assert folder.startswith(os.getcwd())
"""
DATACLASS = """
from __future__ import annotations
import dataclasses
@dataclasses.dataclass
class Point:
    x: int = 1
assert Point().x == 1
"""
ASYNC = "import asyncio\nasync def f(): return 1\nassert asyncio.run(f()) == 1"
BAD_MESSAGE = "class E(Exception):\n    def __str__(self): raise SystemExit(0)\nraise E"
SUBPROCESS = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', ''])"
MULTIPROCESSING = "import multiprocessing as m\nm.get_context('fork').Process(target=print).start()"
THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(99,)).start()"
CORE = "import resource\nassert resource.getrlimit(resource.RLIMIT_CORE) == (0, 0)"
CONNECT = "import socket\nsocket.create_connection(('192.0.2.1', 80), timeout=9)"
UDP = "import socket\nsocket.socket(type=socket.SOCK_DGRAM).sendto(b'', ('192.0.2.1', 9))"

# name: (program, status, what the detail must contain)
ENDING = {
    "correct": ("assert 1 + 1 == 2", "passed", ""),
    "empty": ("", "passed", ""),
    "wrong": ("x = 1\nassert x == 2, 'off by one'", "failed", "off by one (line 2: assert x"),
    "raises": ("{}['k']", "failed", "KeyError: 'k'"),
    "sys.exit(0) before the tests": ("import sys\nsys.exit(0)\nassert 0", "failed", "SystemExit"),
    "raise SystemExit": ("raise SystemExit", "failed", "SystemExit"),
    "quit()": ("quit()", "failed", "quit"),
    "KeyboardInterrupt": ("raise KeyboardInterrupt", "failed", "KeyboardInterrupt"),
    "os._exit(0)": ("import os\nos._exit(0)", "crashed", "exit status 0"),
    "kills itself": ("import os\nos.kill(os.getpid(), 9)", "crashed", "signal 9"),
    "aborts": ("import os\nos.abort()", "crashed", "signal 6"),
    "forges a verdict": (FORGERY, "crashed", ""),
    "closes every descriptor": ("import os\nos.closerange(3, 256)", "crashed", ""),
    "prints 10 MB": ("print('x' * 10**7)", "passed", ""),
    "closes stdout": (BLIND, "passed", ""),
    "closes stdout, wrong": (BLIND + "assert False", "failed", "AssertionError"),
    "reads stdin": ("input()", "failed", "EOFError"),
    "recursion": ("def f(): f()\nf()", "failed", "RecursionError"),
    "writes 1 MB": ("open('big', 'wb').write(bytes(10**6))", "failed", "File too large"),
    "writes a little": ("open('small', 'w').write('x' * 100)", "passed", ""),
    "temporary directory": (TEMPORARY, "passed", ""),
    "deletes its directory": ("import os, shutil\nshutil.rmtree(os.getcwd())", "passed", ""),
    "fork bomb": ("import os\nwhile True: os.fork()", "failed", "starting a process"),
    "subprocess": (SUBPROCESS, "failed", "starting a process"),
    "os.system": ("import os\nos.system('true')", "failed", "starting a process"),
    "multiprocessing": (MULTIPROCESSING, "failed", "starting a process"),
    "exec": ("import os\nos.execv('/bin/true', ['true'])", "failed", "replacing the process"),
    "kills its parent": ("import os\nos.kill(os.getppid(), 9)", "failed", "signals to other"),
    "kills its group": ("import os\nos.killpg(os.getpgid(0), 9)", "failed", "signals to other"),
    "connects": (CONNECT, "failed", "network is disabled"),
    "sends a datagram": (UDP, "failed", "network is disabled"),
    "asyncio": (ASYNC, "passed", ""),
    "leaves a thread running": (THREAD, "passed", ""),
    "unclosed bracket": ("x = (", "syntax", "SyntaxError"),
    "return at the top": ("return 3", "syntax", "outside function"),
    "null byte": ("\0", "syntax", "null bytes"),
    "lone surrogate": ("x = '\ud800'", "syntax", "surrogates"),
    "brackets too deep": ("(" * 500 + ")" * 500, "syntax", ""),
    "operators too deep": ("-" * 100_000 + "1", "syntax", ""),
    "syntax error of an eval": ("eval('1 +')", "failed", "SyntaxError"),
    "message that raises": (BAD_MESSAGE, "failed", "E: (no message)"),
    "message of a surrogate": ("assert False, '\\ud800'", "failed", "AssertionError"),
    "endless message": ("assert False, 'x' * 10**6", "failed", "AssertionError: xxx"),
    "main guard stays closed": ("if __name__ == '__main__': assert False", "passed", ""),
    "dataclass with string annotations": (DATACLASS, "passed", ""),
    "no site packages": ("import numpy", "failed", "ModuleNotFoundError"),
    "no core dump": (CORE, "passed", ""),
}  # fmt: skip
ENDLESS = {
    "loops": "while True: pass",
    "loops through every exception": "while True:\n    try:\n        while True: pass\n"
    "    except BaseException: pass",
    "sleeps": "import time\ntime.sleep(999)",
    "closes its report, then sleeps": "import os, time\nos.closerange(3, 256)\ntime.sleep(999)",
    "ignores signals": "import signal\nfor s in (14, 15, 24): signal.signal(s, signal.SIG_IGN)\n"
    "while True: pass",
}
HOGS = {
    "one block": "x = bytearray(10**10)",
    "many blocks": "x = []\nwhile True: x.append(bytearray(10**7))",
    "doubling string": "x = 'a'\nwhile True: x += x",
}


@pytest.fixture(scope="module")
def verdicts() -> dict[str, ExecutionResult]:
    programs = [program for program, _, _ in ENDING.values()]
    return dict(zip(ENDING, run_programs(programs, timeout=PATIENT), strict=True))


@pytest.mark.parametrize("name", ENDING)
def test_verdict(verdicts, name):
    _, status, fragment = ENDING[name]
    result = verdicts[name]
    assert (result.status, result.passed) == (status, status == "passed"), result
    assert fragment in result.detail
    assert len(result.detail) <= 500


def test_endless_programs_time_out():
    started = time.monotonic()
    results = run_programs(list(ENDLESS.values()), timeout=0.5)
    assert [r.status for r in results] == ["timeout"] * len(ENDLESS)
    assert all("0.5 s" in r.detail and not r.passed for r in results)
    assert time.monotonic() - started < 30


@linux  # the address space is not limited elsewhere
def test_memory_hogs():
    results = run_programs(list(HOGS.values()), timeout=PATIENT, memory_mb=64)
    assert [r.status for r in results] == ["memory"] * len(HOGS)
    assert run_programs(["x = bytearray(10**8)"], timeout=PATIENT, memory_mb=256)[0].passed


@linux  # elsewhere the recursion may end otherwise, but never pass
def test_unlimited_recursion_never_passes():
    program = "import sys\nsys.setrecursionlimit(10**9)\nf = lambda x: [f(x)]\nf(1)"
    assert not run_programs([program], timeout=5.0, memory_mb=64)[0].passed


def test_files_elsewhere_survive(tmp_path):
    victim = tmp_path / "precious"
    victim.write_text("content")
    path, folder = repr(str(victim)), repr(str(tmp_path))
    programs = [
        f"import os; os.remove({path})",
        f"import pathlib; pathlib.Path({path}).unlink()",
        f"import shutil; shutil.rmtree({folder})",
        f"import os; os.rename({path}, 'mine')",
        f"import os; os.replace(__import__('tempfile').mkstemp()[1], {path})",
        f"import os; os.truncate({path}, 0)",
        f"import os; os.chmod({folder}, 0)",
        f"open({path}, 'w')",
        f"open({path}, 'a').write('x')",
        f"import os; os.open({path}, os.O_RDWR | os.O_TRUNC)",
        f"open({folder} + '/new', 'x')",
        f"import os; os.mkdir({folder} + '/new')",
        f"import os; os.chdir({folder}); os.remove('precious')",
        f"import os; os.symlink({folder}, 'link'); os.remove('link/precious')",
    ]
    results = run_programs(programs, timeout=PATIENT)
    assert [r.status for r in results] == ["failed"] * len(programs), results
    assert all("PermissionError" in r.detail for r in results)
    assert [p.name for p in tmp_path.iterdir()] == ["precious"]
    assert victim.read_text() == "content"
    assert run_programs([f"assert open({path}).read() == 'content'"], timeout=PATIENT)[0].passed


def test_working_directory_is_fresh_and_deleted():
    program = "import os\nopen('a', 'w').close()\nassert False, [os.getcwd(), os.listdir()]"
    details = [r.detail for r in run_programs([program] * 4, timeout=PATIENT, workers=2)]
    folders = [re.search(r"\['([^']+)', \['a'\]\]", detail) for detail in details]
    paths = [Path(match[1]) for match in folders if match]
    assert len(set(paths)) == 4
    assert not any(path.exists() or path.parent.exists() for path in paths)


def test_environment_is_empty_and_repeats(monkeypatch):
    monkeypatch.setenv("CODILA_TEST_SECRET", "secret")
    program = "import os\nassert set(os.environ) == {'HOME', 'TMPDIR', 'PATH', 'LANG'}, os.environ"
    assert run_programs([program], timeout=PATIENT)[0].passed
    draw = "import random\nassert False, (hash('text'), random.random())"
    first, second, third = run_programs([draw] * 3, timeout=PATIENT, workers=2)
    assert first == second == third
    assert run_programs([draw], timeout=PATIENT) == [first]


def test_site_packages_on_request():
    program = "import numpy\nassert numpy.arange(3).sum() == 3"
    (result,) = run_programs([program], timeout=60, memory_mb=4096, site_packages=True)
    assert result.passed, result


def test_order_progress_and_state():
    calls: list[tuple[int, int]] = []
    fresh = "import math\nassert not hasattr(math, 'x')\nmath.x = 1\n"
    results = run_programs(
        [f"{fresh}assert {i} % 3" for i in range(30)],
        timeout=PATIENT,
        workers=3,
        progress=lambda done, total: calls.append((done, total)),
    )
    assert [r.passed for r in results] == [bool(i % 3) for i in range(30)]
    assert calls == [(i, 30) for i in range(1, 31)]


def test_no_programs():
    assert run_programs([]) == []


@linux
def test_a_lost_runner_is_replaced():
    # Signalled through a descriptor, which the guard does not see.
    killer = "import os, signal\nsignal.pidfd_send_signal(os.pidfd_open(os.getppid()), 9)\n"
    killer += "import time\ntime.sleep(60)"
    results = run_programs(["pass", killer, "pass", "pass"], timeout=PATIENT, workers=1)
    assert [r.status for r in results] == ["passed", "crashed", "passed", "passed"]


@linux
def test_what_a_program_leaves_behind_is_killed():
    # A fork from C, which the guard does not see; the group is killed all the same.
    program = "import ctypes, time\npid = ctypes.CDLL(None).fork()\n"
    program += "if pid == 0: time.sleep(600)\nassert False, f'pid={pid};'"
    (result,) = run_programs([program], timeout=PATIENT)
    match = re.search(r"pid=(\d+);", result.detail)
    assert match, result
    deadline = time.monotonic() + 10
    while _is_alive(int(match[1])) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _is_alive(int(match[1]))


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_an_exception_in_progress_stops_the_run():
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_programs(["pass"] + ["import time\ntime.sleep(1)"] * 50, workers=2, progress=interrupt)
    assert time.monotonic() - started < 20


def test_runner_that_does_not_start(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="did not start"):
        run_programs(["pass"])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"programs": "pass"}, TypeError, "sequence of strings"),
        ({"programs": [b"pass"]}, TypeError, "sequence of strings"),
        ({"timeout": 0}, ValueError, "timeout"),
        ({"timeout": float("inf")}, ValueError, "timeout"),
        ({"memory_mb": 1}, ValueError, "memory_mb"),
        ({"max_output": -1}, ValueError, "max_output"),
        ({"workers": 0}, ValueError, "workers"),
    ],
)
def test_arguments_are_checked(arguments, error, message):
    with pytest.raises(error, match=message):
        run_programs(**{"programs": ["pass"], **arguments})


@pytest.mark.parametrize(
    "program",
    [
        "import sqlite3; sqlite3.connect({out!r} + '/new').execute('create table t (a)')",
        "import os; os.link({out!r} + '/kept', 'here'); open('here', 'w').close()",
        "import os; os.remove('kept', dir_fd=os.open({out!r}, os.O_RDONLY))",
        "import os; os.mkdir('new', dir_fd=os.open({out!r}, os.O_RDONLY))",
        "import os; os.mkfifo({out!r} + '/new')",
        "import os; os.setxattr({out!r} + '/kept', 'user.a', b'1')",
    ],
)
def test_the_standard_library_changes_nothing_elsewhere(program, tmp_path):
    (tmp_path / "kept").write_text("whole")
    result = run_programs([program.format(out=str(tmp_path))])[0]
    assert result.status == "failed" and "PermissionError" in result.detail, result
    assert sorted(p.name for p in tmp_path.iterdir()) == ["kept"]
    assert (tmp_path / "kept").read_text() == "whole"


def test_the_working_directory_may_be_used_in_every_way():
    program = (
        "import os, shutil, sqlite3, tempfile\n"
        "os.makedirs('a/b'); open('a/b/c', 'w').close(); os.link('a/b/c', 'd')\n"
        "shutil.rmtree('a'); sqlite3.connect('x.db').execute('create table t (a)')\n"
        "sqlite3.connect(':memory:').execute('create table t (a)')\n"
        "with tempfile.TemporaryDirectory() as t: open(t + '/e', 'w').close()\n"
    )
    assert run_programs([program])[0].passed
