"""Damaged and unusual zip files with a DICOM study."""

import zipfile
from collections.abc import Iterator
from pathlib import Path

from faults.bad_files.base import UNUSUAL, Case, Change, Make, ValidFiles, flip_byte, segment

KIND = "zip"
BAD_MEMBERS = {
    "empty": {},
    "of text": {"a.txt": b"x"},
    "bomb": {"a.dcm": bytes(128) + b"DICM" + bytes(300 << 20)},
    "of zips": {"a.zip": b"PK\3\4"},
}


def cases() -> Iterator[Case]:
    yield _valid("plain")
    yield _valid("with .. in its paths", prefix="../../../")
    yield _valid("with absolute paths", prefix="/etc/")
    for at in (0, 3, 20, 5000, -1, -10, -22, -100):
        yield _change(f"truncated at {at}", lambda data, at=at: data[:at])
    yield _change("flipped inside", lambda data: flip_byte(data, 300))
    yield _change("flipped at its end", lambda data: flip_byte(data, -8))
    yield _change("that is text", lambda _data: b"no zip")
    yield _change("flagged as encrypted", lambda data: data.replace(b"PK\1\2\x14\3\x14\0\0", b"PK\1\2\x14\3\x14\0\1"))
    for name, members in BAD_MEMBERS.items():
        yield Case(f"segment zip {name}", KIND, _with_members(members), mentions="s.zip")


def _zip_study(files: ValidFiles, path: Path, prefix: str = "") -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for member in sorted(files.study.iterdir()):
            archive.write(member, prefix + member.name)


def _valid(name: str, prefix: str = "") -> Case:
    def make(folder: Path, files: ValidFiles) -> list[str]:
        _zip_study(files, folder / "s.zip", prefix)
        return segment(files, "s.zip")

    return Case(f"segment zip {name}", UNUSUAL, make, True, reference="study")


def _change(name: str, change: Change) -> Case:
    def make(folder: Path, files: ValidFiles) -> list[str]:
        _zip_study(files, folder / "s.zip")
        (folder / "s.zip").write_bytes(change((folder / "s.zip").read_bytes()))
        return segment(files, "s.zip")

    return Case(f"segment zip {name}", KIND, make, mentions="s.zip")


def _with_members(members: dict[str, bytes]) -> Make:
    def make(folder: Path, files: ValidFiles) -> list[str]:
        with zipfile.ZipFile(folder / "s.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(name, content)
        return segment(files, "s.zip")

    return make
