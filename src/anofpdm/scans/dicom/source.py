"""Where DICOM files come from: a folder, a zip or one file. Nothing of a zip is ever written to disk, and nothing of
its names is used as a path; members are read into memory one at a time, below limits that a real study never meets."""

import contextlib
import io
import os
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from anofpdm.errors import ScanError
from anofpdm.util.text import printable

MAGIC_AT, MAGIC = 128, b"DICM"
MAX_FILES = 100_000
MAX_FILE_BYTES = 1 << 30  # one file; an enhanced scan of 512 x 512 x 512 has half of that
MAX_ZIP_BYTES = 8 << 30  # a zip in all, unpacked
MAX_ZIP_RATIO = 100  # unpacked to packed; scans come to 2 to 20
SMALL_ZIP_BYTES = 32 << 20  # below this, unpacked, the ratio is no danger
DICOM_ENDINGS = (".dcm", ".ima", ".dicom")
NO_SCANS = ("DICOMDIR", "__MACOSX")  # parts of names: a table of contents, and what macOS adds
ENCRYPTED = 0x1  # a flag of a zip's member
Open = Callable[[str], BinaryIO]


@dataclass(frozen=True)
class Source:
    """DICOM files by name, and how to open one."""

    path: Path  # what the user named
    names: tuple[str, ...]
    skipped: tuple[str, ...]  # files that are no DICOM
    _open: Open

    def open(self, name: str) -> BinaryIO:
        with _in_words(self.path, name):
            return self._open(name)


def is_dicom(path: Path) -> bool:
    """By what the file holds, not by what it is called."""
    try:
        with path.open("rb") as file:
            return _has_magic(file)
    except OSError:
        return False


def holds_dicom(path: Path) -> bool:
    """Whether `path` is a zip, a DICOM file, or a folder with one somewhere below."""
    if path.is_file():
        return is_zip(path) or is_dicom(path)
    return any(is_dicom(path / name) for name in _names_below(path))


def is_zip(path: Path) -> bool:
    return path.suffix.lower() == ".zip"


@contextlib.contextmanager
def open_source(path: Path) -> Iterator[Source]:
    if is_zip(path) and path.is_file():
        with _opened_zip(path) as archive:
            yield _source(path, _members(archive, path), archive.open, lambda name: io.BytesIO(archive.read(name)))
    elif path.is_dir():
        yield _source(
            path, list(_names_below(path)), lambda name: (path / name).open("rb"), lambda name: _file(path / name)
        )
    elif path.is_file():
        yield _source(path, [path.name], lambda _name: path.open("rb"), lambda _name: _file(path))
    else:
        raise ScanError(f"{path}: no such file or folder; check the path")


def listed(names: list[str], most: int = 3) -> str:
    """A few names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(printable(name) for name in names[:most]) + more


def _source(path: Path, names: list[str], peek: Callable[[str], IO[bytes]], open_: Open) -> Source:
    """`peek` opens a file to see how it begins, `open_` to read it."""
    if len(names) > MAX_FILES:
        raise ScanError(f"{path}: holds {len(names):,} files, more than a study has ({MAX_FILES:,}); give one study")
    found: list[str] = []
    skipped: list[str] = []
    for name in names:
        with _in_words(path, name), peek(name) as file:
            dicom = _has_magic(file)
        if not dicom and name.lower().endswith(DICOM_ENDINGS):
            raise ScanError(
                f"{path}: {printable(name)} is called DICOM and does not begin so (DICM after 128 bytes); "
                "copy or export it again, or take it out if it is no slice"
            )
        (found if dicom else skipped).append(name)
    return Source(path, tuple(found), tuple(skipped), open_)


def _has_magic(file: IO[bytes]) -> bool:
    return file.read(MAGIC_AT + len(MAGIC))[MAGIC_AT:] == MAGIC


@contextlib.contextmanager
def _in_words(path: Path, name: str) -> Iterator[None]:
    where = f"{path}: {printable(name)}"
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError) as problem:
        raise ScanError(f"{where} is damaged inside the zip ({type(problem).__name__}); zip or copy it again") from None
    except NotImplementedError:
        raise ScanError(f"{where} is packed in a way that cannot be read; zip it anew in the usual way") from None
    except OSError as problem:
        raise ScanError(
            f"{where} cannot be read ({problem.strerror or problem}); check the disk and permissions"
        ) from None


# ---- folders ---------------------------------------------------------------------------------------------------------


def _names_below(folder: Path) -> Iterator[str]:
    """Files below a folder in order of name, relative to it; hidden ones and loops of links are passed over."""
    visited: set[str] = set()
    for place, folders, files in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in visited:
            folders.clear()
            continue
        visited.add(real)
        folders[:] = sorted(name for name in folders if not _is_passed_over(name))
        for name in sorted(files):
            if not _is_passed_over(name) and Path(place, name).is_file():  # a pipe would wait for ever
                yield Path(place, name).relative_to(folder).as_posix()


def _is_passed_over(name: str) -> bool:
    return (name.startswith(".") and name not in (".", "..")) or name.upper() in NO_SCANS


def _file(path: Path) -> BinaryIO:
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise ScanError(f"{path}: {size >> 20:,} MiB is more than a scan has; is it one?")
    return path.open("rb")


# ---- zips ------------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _opened_zip(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError):
        raise ScanError(f"{path}: not a zip, or cut short; copy it again") from None
    except OSError as problem:
        raise ScanError(
            f"{path}: cannot be read ({problem.strerror or problem}); check the disk and permissions"
        ) from None
    with archive:
        yield archive


def _members(archive: zipfile.ZipFile, path: Path) -> list[str]:
    """Names of the files in a zip, once its declared sizes are found harmless; reading stops at the declared size."""
    members = [one for one in archive.infolist() if not one.is_dir()]
    total, packed = sum(one.file_size for one in members), max(path.stat().st_size, 1)
    if total > MAX_ZIP_BYTES:
        raise ScanError(f"{path}: unpacks to {total >> 30:,} GiB, more than a study has; zip one study")
    if total > SMALL_ZIP_BYTES and total > MAX_ZIP_RATIO * packed:
        raise ScanError(f"{path}: unpacks to {total // packed:,} times its size, as no scan does; zip it anew")
    names = []
    for one in members:
        if any(map(_is_passed_over, one.filename.replace("\\", "/").split("/"))):
            continue
        if one.flag_bits & ENCRYPTED:
            raise ScanError(f"{path}: {printable(one.filename)} is encrypted; zip it without a password")
        if one.file_size > MAX_FILE_BYTES:
            size = one.file_size >> 20
            raise ScanError(f"{path}: {printable(one.filename)} unpacks to {size:,} MiB, more than a scan has")
        names.append(one.filename)
    for name, count in Counter(names).items():
        if count > 1:
            raise ScanError(f"{path}: {printable(name)} is in it {count} times; zip it anew")
    return sorted(names)
