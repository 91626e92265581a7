"""Sources of DICOM files: a folder, a zip or one file. A zip is never extracted to disk, and its names are never used
as paths; members are read into memory one at a time, with limits far above any real study."""

import contextlib
import io
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

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


@dataclass(frozen=True)
class Source:
    """DICOM files by name."""

    path: Path  # as given by the user
    archive: zipfile.ZipFile | None = None  # where the path is a zip
    names: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()  # files that are not DICOM

    def open(self, name: str, *, start_only: bool = False) -> IO[bytes]:
        with _translate_read_errors(self.path, name):
            if self.archive is not None:
                return self.archive.open(name) if start_only else io.BytesIO(self.archive.read(name))
            file = self.path / name if self.path.is_dir() else self.path
            size = file.stat().st_size
            if size > MAX_FILE_BYTES and not start_only:
                raise ScanError(f"{file}: {size >> 20:,} MiB, more than a scan has; remove it if it is not a scan")
            return file.open("rb")


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
            yield _sort_files(Source(path, archive), _members(archive, path))
    elif path.is_dir():
        yield _sort_files(Source(path), list(_names_below(path)))
    elif path.is_file():
        yield _sort_files(Source(path), [path.name])
    else:
        raise ScanError(f"{path}: no such file or folder; check the path")


def listed(names: list[str], limit: int = 3) -> str:
    """The first names, and the number of others."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(printable(name) for name in names[:limit]) + more


def _sort_files(source: Source, names: list[str]) -> Source:
    """The source with names of DICOM files, and of others."""
    path = source.path
    if len(names) > MAX_FILES:
        raise ScanError(f"{path}: contains {len(names):,} files, more than a study has ({MAX_FILES:,}); give one study")
    dicom: list[str] = []
    skipped: list[str] = []
    for name in names:
        with _translate_read_errors(path, name), source.open(name, start_only=True) as file:
            is_image = _has_magic(file)
        if not is_image and name.lower().endswith(DICOM_ENDINGS):
            raise ScanError(
                f"{path}: {printable(name)} has a DICOM file name but is not DICOM (no DICM after 128 bytes); "
                "copy or export it again, or remove it"
            )
        (dicom if is_image else skipped).append(name)
    return replace(source, names=tuple(dicom), skipped=tuple(skipped))


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
    members = [member for member in archive.infolist() if not member.is_dir()]
    total, packed = sum(member.file_size for member in members), max(path.stat().st_size, 1)
    if total > MAX_ZIP_BYTES:
        raise ScanError(f"{path}: decompresses to {total >> 30:,} GiB, more than a study has; zip one study")
    if total > SMALL_ZIP_BYTES and total > MAX_ZIP_RATIO * packed:
        raise ScanError(
            f"{path}: decompresses to {total // packed:,} times its size, implausible for scans; zip it again"
        )
    names: set[str] = set()
    for member in members:
        where = f"{path}: {printable(member.filename)}"
        if any(map(_is_ignored, member.filename.replace("\\", "/").split("/"))):
            continue
        if member.flag_bits & ENCRYPTED:
            raise ScanError(f"{where} is encrypted; zip it without a password")
        if member.file_size > MAX_FILE_BYTES:
            size = member.file_size >> 20
            raise ScanError(f"{where} decompresses to {size:,} MiB, more than a scan has; remove it")
        if member.filename in names:
            raise ScanError(f"{where} appears several times; zip it again")
        names.add(member.filename)
    return sorted(names)
