"""Commands run in children forked from one process that has everything imported, through the real entry point.

Starting Python and torch takes seconds, forking takes milliseconds, and hundreds of inputs are to be tried. A child
gets its own arguments, folder, standard streams and limits, and calls what `python -m anofpdm` calls. Some commands are
also started the usual way (`fresh`), to show that it comes to the same.
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
from dataclasses import asdict, dataclass
from pathlib import Path

ROOM = 3 << 30  # of addresses, beyond what the imports take: a guard for the machine, not the measure
CAPABILITIES = 0x20080522  # version of the call that takes them away
READ_ALL = 1 << 1 | 1 << 2  # to read and write what permissions forbid


@dataclass(frozen=True)
class Ran:
    code: int  # negative: the signal that ended it
    out: str
    err: str
    seconds: float
    peak: int  # bytes resident
    timed_out: bool


class Warm:
    """The process to fork from."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=_environment()
        )
        self.baseline = int(self._answer())  # bytes resident before anything is run

    def run(self, argv: list[str], folder: Path, *, timeout: float = 60, obeying: bool = False) -> Ran:
        """`obeying`: as if root had to obey permissions."""
        asked = {"argv": argv, "folder": str(folder), "timeout": timeout, "obeying": obeying}
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        return Ran(**json.loads(self._answer()))

    def _answer(self) -> str:
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the warm process is gone (code {self._process.wait()})")
        return line

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def fresh(argv: list[str], folder: Path, *, timeout: float = 60) -> Ran:
    """The same as a process of its own."""
    with _streams() as (out, err):
        process = subprocess.Popen(
            [sys.executable, "-m", "anofpdm", *argv], cwd=folder, stdout=out, stderr=err, env=_environment()
        )
        return _awaited(process.pid, out, err, timeout)


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200", "PYTHONIOENCODING": "utf-8"}


@contextlib.contextmanager
def _streams():
    out, err = (os.memfd_create(name) for name in ("out", "err"))
    try:
        yield out, err
    finally:
        os.close(out)
        os.close(err)


def _awaited(pid: int, out: int, err: int, timeout: float) -> Ran:
    start, timed_out = time.monotonic(), False
    while not (ended := os.wait4(pid, os.WNOHANG))[0]:
        if time.monotonic() - start > timeout and not timed_out:
            os.kill(pid, signal.SIGKILL)
            timed_out = True
        time.sleep(0.005)
    code, seconds = os.waitstatus_to_exitcode(ended[1]), time.monotonic() - start
    said = [os.pread(stream, 1 << 20, 0).decode(errors="backslashreplace") for stream in (out, err)]
    return Ran(code, *said, round(seconds, 3), ended[2].ru_maxrss * 1024, timed_out)


# ---- in the warm process ---------------------------------------------------------------------------------------------


def _serve() -> None:
    import highdicom  # noqa: F401
    import pydicom  # noqa: F401

    import anofpdm.cohorts.prepare
    import anofpdm.evaluation.comparison.page
    import anofpdm.evaluation.comparison.protocol
    import anofpdm.scans.dicom.seg
    import anofpdm.segment.many  # noqa: F401
    from anofpdm.cli.main import main

    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        with _streams() as (out, err):
            pid = os.fork()
            if pid == 0:
                os.dup2(out, 1)
                os.dup2(err, 2)
                _child(main, asked["argv"], asked["folder"], asked["obeying"])
            ran = _awaited(pid, out, err, asked["timeout"])
        print(json.dumps(asdict(ran)), flush=True)


def _child(main, argv: list[str], folder: str, obeying: bool) -> None:
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(folder)
        addresses = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (addresses + ROOM, addresses + ROOM))
        if obeying:
            _obey()
        sys.argv = ["anofpdm", *argv]
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


def _obey() -> None:
    libc = ctypes.CDLL(None)
    header, sets = (ctypes.c_uint32 * 2)(CAPABILITIES, 0), (ctypes.c_uint32 * 6)()
    libc.capget(header, sets)
    sets[0] &= ~READ_ALL
    if libc.capset(header, sets):
        raise OSError("capabilities could not be given up")


if __name__ == "__main__":
    _serve()
