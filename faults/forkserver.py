"""Commands run in children forked from one process that has everything imported.

Starting Python and importing torch takes seconds, a fork takes milliseconds, and there are more than a thousand files.
A child has arguments, folder, standard streams and limits of its own and calls the same entry point as
`python -m anofpdm`. `run_fresh` starts a fresh process instead, to show that the outcome is the same.
"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
ADDRESS_SPACE = 3 << 30  # on top of what the imports take; protects the machine, the tests have a stricter limit
CAPABILITY_VERSION = 0x20080522
IGNORE_PERMISSIONS = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


@dataclass(frozen=True)
class Run:
    code: int  # negative: the signal that ended it
    out: str
    err: str
    seconds: float
    peak: int  # bytes resident
    timed_out: bool


class ForkServer:
    """The process to fork from."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "faults.forkserver"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=_environment(),
        )
        self._receive()  # ready

    def run(self, arguments: list[str], folder: Path, *, timeout: float = 60, unprivileged: bool = False) -> Run:
        """`unprivileged`: file permissions apply, even to root."""
        request = {"arguments": arguments, "folder": str(folder), "timeout": timeout, "unprivileged": unprivileged}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        return Run(**json.loads(self._receive()))

    def _receive(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the fork server has ended (code {self._process.wait()})")
        return line

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def run_fresh(arguments: list[str], folder: Path, *, timeout: float = 60) -> Run:
    with _streams() as (out, err):
        process = subprocess.Popen(
            [sys.executable, "-m", "anofpdm", *arguments], cwd=folder, stdout=out, stderr=err, env=_environment()
        )
        return _wait(process.pid, out, err, timeout)


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONIOENCODING": "utf-8"}


@contextlib.contextmanager
def _streams() -> Iterator[tuple[int, int]]:
    out, err = os.memfd_create("out"), os.memfd_create("err")
    try:
        yield out, err
    finally:
        os.close(out)
        os.close(err)


def _wait(pid: int, out: int, err: int, timeout: float) -> Run:
    start, timed_out = time.monotonic(), False
    while not (status := os.wait4(pid, os.WNOHANG))[0]:
        if time.monotonic() - start > timeout and not timed_out:
            os.kill(pid, signal.SIGKILL)
            timed_out = True
        time.sleep(0.005)
    code, seconds = os.waitstatus_to_exitcode(status[1]), time.monotonic() - start
    texts = [os.pread(stream, 1 << 20, 0).decode(errors="backslashreplace") for stream in (out, err)]
    return Run(code, *texts, round(seconds, 3), status[2].ru_maxrss * 1024, timed_out)


# ---- in the process to fork from -------------------------------------------------------------------------------------


def _serve() -> None:
    import highdicom  # noqa: F401
    import pydicom  # noqa: F401

    from anofpdm.cli.main import main

    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        with _streams() as (out, err):
            pid = os.fork()
            if pid == 0:
                os.dup2(out, 1)
                os.dup2(err, 2)
                _run_child(main, request["arguments"], request["folder"], request["unprivileged"])
            run = _wait(pid, out, err, request["timeout"])
        print(json.dumps(asdict(run)), flush=True)


def _run_child(main: Callable[[], object], arguments: list[str], folder: str, unprivileged: bool) -> None:
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(folder)
        addresses = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (addresses + ADDRESS_SPACE, addresses + ADDRESS_SPACE))
        if unprivileged:
            _respect_permissions()
        sys.argv = ["anofpdm", *arguments]
        main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _respect_permissions() -> None:
    libc = ctypes.CDLL(None)
    header, sets = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    libc.capget(header, sets)
    sets[0] &= ~IGNORE_PERMISSIONS
    if libc.capset(header, sets):
        raise OSError("capabilities could not be dropped")


if __name__ == "__main__":
    _serve()
