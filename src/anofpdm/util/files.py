"""Writing so that a file is either the old one, whole, or the new one, whole; and reading none that has no end."""

import contextlib
import csv
import errno
import io
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from anofpdm.errors import AnoFPDMError, OutputError

MOST = 256 << 20  # bytes of a table; a million rows are 40 MB
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_atomically(path: Path, data: bytes) -> None:
    """Temporary name, flush to disk, rename: a crash at any moment leaves no half-written `path`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with translate_write_errors(path):
        try:
            with temporary.open("wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def translate_write_errors(path: Path) -> Iterator[None]:
    """What the system says when a write fails, in words: it does not name the file itself."""
    try:
        yield
    except OSError as problem:
        reason = problem.strerror or problem
        raise OutputError(f"{path}: could not be written ({reason}); {remedy(problem)}") from problem


def remedy(problem: OSError) -> str:
    first = "make room" if problem.errno in FULL else "mend that, or choose another folder"
    return f"{first}; then the same command goes on from what is done (train: with --resume)"


def remove_temporary_files(folder: Path, pattern: str = "*") -> None:
    """Remove what killed writes of files of these names left in `folder`; only for its sole writer."""
    for path in folder.glob(f".{pattern}.tmp"):
        path.unlink(missing_ok=True)


def read_regular_file(path: Path) -> bytes:
    """A file that people or we wrote: tables, settings. A pipe would wait for ever, and a device never end."""
    size = path.stat().st_size
    if not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "a pipe or a device, not a file", str(path))
    if size > MOST and path.is_file():
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return path.read_bytes()


def encode_csv(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(list(columns))
    writer.writerows(map(list, rows))  # one by one: there may be a million
    return text.getvalue().encode()


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process alone; a second one is refused at once. The lock dies with the process."""
    try:
        import fcntl
    except ImportError:  # no such lock on Windows
        yield
        return
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise AnoFPDMError(f"{folder}: another run is writing here; wait for it or choose another folder") from None
        yield
