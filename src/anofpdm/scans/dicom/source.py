"""Sources of DICOM files: a folder, a zip or one file. A zip is never extracted to disk, and its names are never used
as paths; members are read into memory one at a time, with limits far above any real study."""

import contextlib
import io
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO

from anofpdm.errors import ScanError
from anofpdm.util.files import walk_files
from anofpdm.util.text import printable

MAGIC_AT, MAGIC = 128, b"DICM"
MAX_FILES = 100_000
MAX_FILE_BYTES = 1 << 30  # of one file; an enhanced scan of 512 x 512 x 512 has half of that
MAX_ZIP_BYTES = 8 << 30  # of a zip, decompressed
MAX_ZIP_RATIO = 100  # decompressed to compressed size; scans have 2 to 20
SMALL_ZIP_BYTES = 32 << 20  # up to this decompressed size, the ratio does not matter
DICOM_ENDINGS = (".dcm", ".ima", ".dicom")
IGNORED_NAMES = ("DICOMDIR", "__MACOSX")
ENCRYPTED = 0x1  # flag of a zip member
Open = Callable[[str], BinaryIO]


@dataclass(frozen=True)
class Source:
    """DICOM files by name."""

    path: Path  # as given by the user
    names: tuple[str, ...]
    skipped: tuple[str, ...]  # files that are not DICOM
    _open: Open

    def open(self, name: str) -> BinaryIO:
        with _translate_read_errors(self.path, name):
            return self._open(name)


def is_dicom(path: Path) -> bool:
    """By the file's contents, not its name."""
    try:
        with path.open("rb") as file:
            return _has_magic(file)
    except OSError:
        return False


def holds_dicom(path: Path) -> bool:
    """Whether `path` is a zip, a DICOM file, or a folder with a DICOM file at any depth."""
    if path.is_file():
        return is_zip(path) or is_dicom(path)
    return any(is_dicom(path / name) for name in _names_below(path))


def is_zip(path: Path) -> bool:
    return path.suffix.lower() == ".zip"


@contextlib.contextmanager
def open_source(path: Path) -> Iterator[Source]:
    if is_zip(path) and path.is_file():
        with _open_zip(path) as archive:
            yield _source(path, _members(archive, path), archive.open, lambda name: io.BytesIO(archive.read(name)))
    elif path.is_dir():
        yield _source(
            path, list(_names_below(path)), lambda name: (path / name).open("rb"), lambda name: _open_file(path / name)
        )
    elif path.is_file():
        yield _source(path, [path.name], lambda _name: path.open("rb"), lambda _name: _open_file(path))
    else:
        raise ScanError(f"{path}: no such file or folder; check the path")


def listed(names: list[str], limit: int = 3) -> str:
    """The first names, and the number of others."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(printable(name) for name in names[:limit]) + more


def _source(path: Path, names: list[str], peek: Callable[[str], IO[bytes]], open_: Open) -> Source:
    """`peek` opens a file to read its first bytes, `open_` to read all of it."""
    if len(names) > MAX_FILES:
        raise ScanError(f"{path}: contains {len(names):,} files, more than a study has ({MAX_FILES:,}); give one study")
    dicom: list[str] = []
    skipped: list[str] = []
    for name in names:
        with _translate_read_errors(path, name), peek(name) as file:
            is_image = _has_magic(file)
        if not is_image and name.lower().endswith(DICOM_ENDINGS):
            raise ScanError(
                f"{path}: {printable(name)} has a DICOM file name but is not DICOM (no DICM after 128 bytes); "
                "copy or export it again, or remove it"
            )
        (dicom if is_image else skipped).append(name)
    return Source(path, tuple(dicom), tuple(skipped), open_)


def _has_magic(file: IO[bytes]) -> bool:
    return file.read(MAGIC_AT + len(MAGIC))[MAGIC_AT:] == MAGIC


@contextlib.contextmanager
def _translate_read_errors(path: Path, name: str) -> Iterator[None]:
    where = f"{path}: {printable(name)}"
    try:
        yield
    except (zipfile.BadZipFile, zlib.error, EOFError) as problem:
        raise ScanError(f"{where} is damaged inside the zip ({type(problem).__name__}); zip or copy it again") from None
    except NotImplementedError:
        raise ScanError(f"{where} has an unsupported compression; zip it again with deflate") from None
    except OSError as problem:
        raise ScanError(
            f"{where} cannot be read ({problem.strerror or problem}); check the disk and permissions"
        ) from None


def _names_below(folder: Path) -> Iterator[str]:
    """Paths of all files below a folder, sorted, relative to it."""
    for path in walk_files(folder, _is_ignored):
        if path.is_file():  # opening a pipe could block forever
            yield path.relative_to(folder).as_posix()


def _is_ignored(name: str) -> bool:
    return (name.startswith(".") and name not in (".", "..")) or name.upper() in IGNORED_NAMES


def _open_file(path: Path) -> BinaryIO:
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise ScanError(f"{path}: {size >> 20:,} MiB, more than a scan has; remove it if it is not a scan")
    return path.open("rb")


def _open_zip(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError):
        raise ScanError(f"{path}: not a zip, or truncated; copy it again") from None
    except OSError as problem:
        raise ScanError(
            f"{path}: cannot be read ({problem.strerror or problem}); check the disk and permissions"
        ) from None


def _members(archive: zipfile.ZipFile, path: Path) -> list[str]:
    """Names of the files in a zip, after a check of the declared sizes; reading stops at the declared size."""
    members = [one for one in archive.infolist() if not one.is_dir()]
    total, packed = sum(one.file_size for one in members), max(path.stat().st_size, 1)
    if total > MAX_ZIP_BYTES:
        raise ScanError(f"{path}: decompresses to {total >> 30:,} GiB, more than a study has; zip one study")
    if total > SMALL_ZIP_BYTES and total > MAX_ZIP_RATIO * packed:
        raise ScanError(
            f"{path}: decompresses to {total // packed:,} times its size, implausible for scans; zip it again"
        )
    names = []
    for one in members:
        if any(map(_is_ignored, one.filename.replace("\\", "/").split("/"))):
            continue
        if one.flag_bits & ENCRYPTED:
            raise ScanError(f"{path}: {printable(one.filename)} is encrypted; zip it without a password")
        if one.file_size > MAX_FILE_BYTES:
            size = one.file_size >> 20
            raise ScanError(
                f"{path}: {printable(one.filename)} decompresses to {size:,} MiB, more than a scan has; remove it"
            )
        names.append(one.filename)
    for name, count in Counter(names).items():
        if count > 1:
            raise ScanError(f"{path}: {printable(name)} appears {count} times; zip it again")
    return sorted(names)
