"""Atomic writes, folder locks, and reads of regular files of limited size."""

import contextlib
import csv
import errno
import hashlib
import io
import itertools
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from anofpdm.errors import AnoFPDMError, OutputError

MAX_BYTES = 256 << 20  # a table of a million rows has 40 MB
FORMULA = re.compile("'*[=+\\-@\\t\\r\\n\uff1d\uff0b\uff0d\uff20]")  # quotes: text that looks escaped is escaped again
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|-inf")
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

RESUME_HINT = "re-run the same command to resume"


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a temporary name, flush, rename: after a crash, `path` is the old file or the new one, complete."""
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
    """Turn an OSError, which does not name the file, into an OutputError that does."""
    try:
        yield
    except OSError as problem:
        reason = problem.strerror or problem
        raise OutputError(f"{path}: could not be written ({reason}); {write_error_hint(problem)}") from problem


def write_error_hint(problem: OSError) -> str:
    remedy = "free disk space" if problem.errno in DISK_FULL else "fix this, or choose another folder"
    return f"{remedy}, then {RESUME_HINT}"


def remove_temporary_files(folder: Path, pattern: str = "*") -> None:
    """Remove what interrupted writes of files of these names left in `folder`; requires its lock."""
    for path in folder.glob(f".{pattern}.tmp"):
        path.unlink(missing_ok=True)


def walk_files(
    folder: Path, is_ignored: Callable[[str], bool], is_file_name: Callable[[str], bool] = lambda _name: False
) -> Iterator[Path]:
    """All files below a folder, sorted, and folders with the name of a file; ignored names and symlink loops are
    skipped."""
    visited: set[str] = set()
    for current, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(current)
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if not is_ignored(name))
        named_like_files = [name for name in folders if is_file_name(name)]
        yield from (Path(current, name) for name in sorted([*files, *named_like_files]) if not is_ignored(name))


def read_regular_file(path: Path) -> bytes:
    """Contents of a table or settings file; refuses pipes and devices, which might never end, and huge files."""
    size = path.stat().st_size
    if not path.is_file() and not path.is_dir():
        raise OSError(errno.EINVAL, "a pipe or a device, not a file", str(path))
    if size > MAX_BYTES and path.is_file():
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    return path.read_bytes()


def describe_irregular(path: Path) -> str:
    """What is at a path instead of a file, for messages; empty for a file, and where there is nothing."""
    if path.is_dir():
        return "a folder"
    return "" if path.is_file() or not path.exists() else "a pipe or a device"


def encode_csv(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO(newline="")
    plain = csv.writer(text, lineterminator="\n")
    quoted = csv.writer(text, lineterminator="\n", quoting=csv.QUOTE_ALL)
    for row in itertools.chain([columns], rows):  # lazily: there may be a million
        cells = [escape_cell(value) for value in row]
        has_cr = any(isinstance(cell, str) and "\r" in cell for cell in cells)  # which `csv` does not quote
        (quoted if has_cr else plain).writerow(cells)
    return text.getvalue().encode()


def escape_cell(value: object) -> object:
    """Text that a spreadsheet would run as a formula (OWASP: CSV injection) gets a quote in front. Numbers stay."""
    text = str(value)
    return f"'{text}" if FORMULA.match(text) and not NUMBER.fullmatch(text) else value


def unescape_cell(text: str) -> str:
    return text[1:] if text.startswith("'") and FORMULA.match(text) else text


def without_nan(value: Any) -> Any:
    """For JSON: numbers that are undefined or infinite become null."""
    if isinstance(value, dict):
        return {name: without_nan(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextlib.contextmanager
def folder_lock(
    folder: Path, *, needed: bool = True, on_wait: Callable[[], None] | None = None, shared: bool = False
) -> Iterator[None]:
    """Exclusive lock for writing to `folder`; a second run is refused at once or, with `on_wait`, which is called
    first, waits. Released when the process ends. Of the processes of one run, only the main one needs it. Runs that
    write different files in the folder can share it."""
    try:
        import fcntl
    except ImportError:  # Windows
        needed = False
    if not needed:
        yield
        return
    with translate_write_errors(folder):
        lock = (folder / ".lock").open("w")
    with lock:
        kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except OSError:
            if on_wait is None:
                message = f"{folder}: another run is writing here; wait for it or choose another folder"
                raise AnoFPDMError(message) from None
            on_wait()
            fcntl.flock(lock, kind)
        yield


def file_sha256(path: str | Path) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
