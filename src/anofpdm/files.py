"""Writing so that a file is either the old one, whole, or the new one, whole."""

import contextlib
import csv
import io
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from anofpdm.errors import AnoFPDMError


def write_atomically(path: Path, data: bytes) -> None:
    """Temporary name, flush to disk, rename: a crash at any moment leaves no half-written `path`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def csv_table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(list(columns))
    writer.writerows(map(list, rows))  # one by one: there may be a million
    return text.getvalue().encode()


@contextlib.contextmanager
def sole_writer(folder: Path) -> Iterator[None]:
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
