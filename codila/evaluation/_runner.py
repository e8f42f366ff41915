"""The process that executes programs for `execution.run_programs`: standard library only.

It is started as a script by an interpreter without site packages, reads one JSON string per line
from stdin (a program) and answers one JSON line per program: ``{"status": ..., "detail": ...}``.
Each program runs in a forked child with its own session, limits and working directory, so that
a program costs a fork (about a millisecond) instead of an interpreter start.

The child reports through a pipe of its own, and only after the last line of the program has run:
the report begins with a token drawn for this one run, which the program is never given. Leaving
early (`sys.exit`, `os._exit`), printing "passed" or closing stdout therefore cannot pass.
"""

import json
import math
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import types

try:
    import resource
except ImportError:  # no POSIX limits on this platform: the wall clock still holds
    resource = None  # type: ignore[assignment]

# Imported once, so that the programs, nearly all of which need some of these, get them by fork.
for _name in ("collections", "functools", "heapq", "itertools", "re", "string", "typing"):
    __import__(_name)

PROGRAM = "<program>"
DETAIL_CHARS = 500
MAX_PROCESSES = 4096  # soft cap on the user's processes: threads count too, so it cannot be small
REPORT_BYTES = 8192  # a report: one token, one word and DETAIL_CHARS characters of UTF-8
POLL_SECONDS = 0.05  # how often an ended child whose pipe is still held open is noticed
WRITE_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND

# Audit event -> arguments that name what would be changed: (position of the path, of its dir_fd).
PATH_EVENTS = {
    "os.remove": ((0, 1),),
    "os.rmdir": ((0, 1),),
    "os.mkdir": ((0, 2),),
    "os.rename": ((0, 2), (1, 3)),
    "os.link": ((0, 2), (1, 3)),
    "os.symlink": ((1, 2),),
    "os.truncate": ((0, None),),
    "os.chmod": ((0, 2),),
    "os.chown": ((0, 3),),
    "os.utime": ((0, 3),),
    "os.setxattr": ((0, None),),
    "os.removexattr": ((0, None),),
    "shutil.rmtree": ((0, 1),),
    "shutil.move": ((0, None), (1, None)),
    "sqlite3.connect": ((0, None),),
}
PROCESS_EVENTS = {
    "os.fork": "starting a process",
    "os.forkpty": "starting a process",
    "os.posix_spawn": "starting a process",
    "os.spawn": "starting a process",
    "os.exec": "replacing the process",
    "os.system": "starting a process",
    "pty.spawn": "starting a process",
    "subprocess.Popen": "starting a process",
}
# A socket that is never bound or connected is harmless (asyncio makes a pair), so creation is not.
SOCKET_EVENTS = {"socket.__new__", "socket.gethostname"}


def refuse(*_: object, **__: object) -> None:
    raise PermissionError("special files are disabled")


def install_guard(workdir: str) -> None:
    """Refuse processes, sockets, signals to others and writes outside `workdir`, for good."""
    realpath, own = os.path.realpath, os.getpid()
    allowed_root = realpath(workdir)
    prefix = allowed_root + os.sep

    def outside(path: object, dir_fd: object = None) -> bool:
        if isinstance(path, int) or path is None:  # a descriptor: judged when it was opened
            return False
        name = os.fsdecode(path)  # type: ignore[arg-type]
        if isinstance(dir_fd, int) and dir_fd >= 0:  # relative to an open folder (Linux knows it)
            name = os.path.join(realpath(f"/proc/self/fd/{dir_fd}"), name)
        target = realpath(name)
        return not (target == allowed_root or target.startswith(prefix) or target == os.devnull)

    def hook(event: str, args: tuple) -> None:
        if event == "open":
            if isinstance(args[2], int) and args[2] & WRITE_FLAGS and outside(args[0]):
                raise PermissionError(f"writing outside the working directory: {args[0]!r}")
        elif event in PATH_EVENTS:
            if event == "sqlite3.connect" and args[0] in (":memory:", b":memory:", ""):
                return
            for i, fd in PATH_EVENTS[event]:
                dir_fd = args[fd] if fd is not None and fd < len(args) else None
                if outside(args[i], dir_fd):
                    raise PermissionError(f"{event} outside the working directory: {args[i]!r}")
        elif event in PROCESS_EVENTS:
            raise PermissionError(f"{PROCESS_EVENTS[event]} is disabled")
        elif event.startswith("socket.") and event not in SOCKET_EVENTS:
            raise PermissionError(f"the network is disabled ({event})")
        elif event == "os.killpg" or (event == "os.kill" and args[0] != own):
            raise PermissionError("signals to other processes are disabled")

    sys.addaudithook(hook)
    for name in ("mkfifo", "mknod"):  # no audit event speaks for these
        if hasattr(os, name):
            setattr(os, name, refuse)


def set_limit(name: str, soft: int, hard: int | None = None) -> None:
    """Lower one resource limit, as far as this platform knows it and permits it."""
    kind = getattr(resource, name, None)
    if kind is None:
        return
    ceiling = resource.getrlimit(kind)[1]
    if ceiling != resource.RLIM_INFINITY:
        soft = min(soft, ceiling)
    top = soft if hard is None else hard
    if ceiling != resource.RLIM_INFINITY:
        top = min(top, ceiling)
    try:
        resource.setrlimit(kind, (soft, top))
    except (ValueError, OSError):  # e.g. RLIMIT_AS on macOS
        pass


def limit(timeout: float, memory: int, file_bytes: int) -> None:
    """Resource limits of a program. Root is exempt from RLIMIT_NPROC."""
    seconds = math.ceil(timeout) + 1
    set_limit("RLIMIT_CPU", seconds, seconds + 1)
    set_limit("RLIMIT_AS", memory)
    set_limit("RLIMIT_FSIZE", file_bytes)
    set_limit("RLIMIT_CORE", 0)
    set_limit("RLIMIT_NPROC", MAX_PROCESSES)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds + 1)  # the last resort should the runner itself be gone


def silence() -> None:
    """stdin at its end, stdout and stderr discarded, also for C code."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    sys.stdin = sys.__stdin__ = open(0, closefd=False)  # type: ignore[misc]
    sys.stdout = sys.__stdout__ = open(1, "w", closefd=False)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = open(2, "w", closefd=False)  # type: ignore[misc]


def describe(error: BaseException, source: str) -> str:
    """Exception type, message, and the line of the program that it came from."""
    try:
        message = str(error)
    except BaseException:
        message = "(no message)"
    text = type(error).__name__ + (f": {message}" if message else "")
    number = None
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == PROGRAM:
            number = trace.tb_lineno
        trace = trace.tb_next
    if number is not None:
        lines = source.splitlines()
        shown = lines[number - 1].strip() if number <= len(lines) else ""
        text = f"{text[: DETAIL_CHARS - 120]} (line {number}: {shown[:80]})"
    return text[:DETAIL_CHARS]


def execute(source: str, report: int, token: bytes) -> None:
    """Run `source` as a module and write ``token status [detail]`` to the descriptor `report`."""
    write, leave = os.write, os._exit  # the program may rebind anything that it can name
    passed, memory = token + b" passed", token + b" memory MemoryError"

    def send(status: str, error: BaseException) -> None:
        detail = describe(error, source)
        write(report, token + f" {status} {detail}".encode("utf-8", "backslashreplace"))
        leave(0)

    module = types.ModuleType("program")  # not __main__: a script's main guard stays closed
    sys.modules["program"] = module
    sys.argv = ["program"]
    try:
        code = compile(source, PROGRAM, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError) as error:
        send("syntax", error)
    try:
        exec(code, module.__dict__)
    except MemoryError:
        module.__dict__.clear()
        write(report, memory)
        leave(0)
    except BaseException as error:  # SystemExit and KeyboardInterrupt too
        send("failed", error)
    write(report, passed)
    leave(0)


class Runner:
    """Runs one program at a time, each in a forked child."""

    def __init__(self, timeout: float, memory: int, file_bytes: int) -> None:
        self.timeout, self.memory, self.file_bytes = timeout, memory, file_bytes
        self.child = 0
        signal.signal(signal.SIGTERM, self.stop)

    def stop(self, *_: object) -> None:
        if self.child:
            self.kill()
        os._exit(1)

    def kill(self) -> None:
        """Kill the child and whatever else is in its process group."""
        for end in (os.killpg, os.kill):  # the child alone, too, if it has no group yet
            try:
                end(self.child, signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass

    def run(self, source: str) -> tuple[str, str]:
        """Status and detail of one program."""
        token = os.urandom(16).hex().encode()
        workdir = tempfile.mkdtemp(prefix="program-")
        listen, report = os.pipe()
        deadline = time.monotonic() + self.timeout
        self.child = os.fork()
        if self.child == 0:
            try:
                os.close(listen)
                os.setsid()
                os.chdir(workdir)
                silence()
                os.environ.clear()
                os.environ.update(HOME=workdir, TMPDIR=workdir, PATH=os.defpath, LANG="C.UTF-8")
                tempfile.tempdir = None
                random.seed(0)
                limit(self.timeout, self.memory, self.file_bytes)
                install_guard(workdir)
                execute(source, report, token)
            finally:
                os._exit(1)
        os.close(report)
        try:
            message, code = self.wait(listen, deadline)
        finally:
            os.close(listen)
            self.child = 0
            shutil.rmtree(workdir, ignore_errors=True)
        return self.judge(message, code, token)

    def wait(self, listen: int, deadline: float) -> tuple[bytes, int | None]:
        """The child's report and its exit code, where None says that its time was up."""
        is_open = True
        while (left := deadline - time.monotonic()) > 0:
            pause = min(left, POLL_SECONDS)
            if not is_open:  # the program closed the pipe and runs on: only its end is awaited
                time.sleep(pause / 10)
            elif select.select([listen], [], [], pause)[0]:
                # The token and the status are the first bytes of one small write: never split.
                if message := os.read(listen, REPORT_BYTES):
                    self.kill()
                    os.waitpid(self.child, 0)
                    return message, 0
                is_open = False
            pid, status = os.waitpid(self.child, os.WNOHANG)
            if pid:
                message = b""
                if is_open and select.select([listen], [], [], 0)[0]:  # written since we looked
                    message = os.read(listen, REPORT_BYTES)
                self.kill()  # what it may have left behind
                return message, os.waitstatus_to_exitcode(status)
        self.kill()
        os.waitpid(self.child, 0)
        return b"", None

    def judge(self, message: bytes, code: int | None, token: bytes) -> tuple[str, str]:
        """Turn a report, or the lack of one, into a status and a detail."""
        if message.startswith(token + b" "):
            _, status, *detail = message.decode("utf-8", "replace").split(" ", 2)
            return status, detail[0] if detail else ""
        if code is None or code in (-signal.SIGXCPU, -signal.SIGALRM):
            return "timeout", f"no verdict within {self.timeout:g} s"
        if code < 0:
            return "crashed", f"killed by signal {-code} before its tests ended"
        return "crashed", f"ended with exit status {code} before its tests did"


def main() -> None:
    timeout, memory, file_bytes = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    runner = Runner(timeout, memory, file_bytes)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        status, detail = runner.run(json.loads(line))
        sys.stdout.write(json.dumps({"status": status, "detail": detail}) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
