"""Commands run in children forked from one process that has everything imported.

Starting Python and importing torch takes seconds, a fork takes milliseconds, and there are hundreds of files. A child
has arguments, folder, standard streams and limits of its own, and calls the same entry point as `python -m anofpdm`.
"""

import ctypes
import multiprocessing
import os
import resource
import sys
import tempfile
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

from faults.processes import Outcome

PRELOADED = [
    "pytest", "highdicom", "pydantic", "rich", "anofpdm.cli.main", "anofpdm.cohorts.prepare", "anofpdm.segment.model",
    "anofpdm.segment.many", "anofpdm.scoring.score_pairs",
]  # fmt: skip
ADDRESS_SPACE = 3 << 30  # on top of what the imports take; protects the machine, the tests have a stricter limit
CAPABILITY_VERSION = 0x20080522
IGNORE_PERMISSIONS = 1 << 1 | 1 << 2  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH


def run_forked(
    arguments: tuple[str, ...], folder: Path, timeout: float, *, unprivileged: bool = False
) -> tuple[Outcome, int]:
    """With the peak of its memory in bytes, on top of what the imports take. `unprivileged`: file permissions apply,
    even to root."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    peak = context.Value("q", 0)
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
        streams = (out.name, err.name)
        child = context.Process(target=_run_child, args=(arguments, folder, streams, unprivileged, peak))
        child.start()
        child.join(timeout)
        hangs = child.is_alive()
        child.kill()
        child.join()
        texts = (Path(name).read_bytes().decode(errors="backslashreplace") for name in streams)
        outcome = Outcome(("anofpdm", *arguments), child.exitcode or 0, *texts)
    assert not hangs, f"hangs, after {timeout} seconds: {outcome}"
    return outcome, peak.value


def _run_child(
    arguments: tuple[str, ...], folder: Path, streams: tuple[str, str], unprivileged: bool, peak: "Synchronized[int]"
) -> None:
    from anofpdm.cli.main import main

    for number, name in enumerate(streams, start=1):
        os.dup2(os.open(name, os.O_WRONLY), number)
    os.chdir(folder)
    pages = map(int, Path("/proc/self/statm").read_text().split()[:2])
    addresses, imported = (count * resource.getpagesize() for count in pages)
    resource.setrlimit(resource.RLIMIT_AS, (addresses + ADDRESS_SPACE, addresses + ADDRESS_SPACE))
    if unprivileged:
        _respect_permissions()
    sys.argv = ["anofpdm", *arguments]
    try:
        main()
    finally:
        peak.value = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - imported


def _respect_permissions() -> None:
    libc = ctypes.CDLL(None)
    header, sets = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    libc.capget(header, sets)
    sets[0] &= ~IGNORE_PERMISSIONS
    if libc.capset(header, sets):
        raise OSError("capabilities could not be dropped")
