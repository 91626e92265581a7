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


CHANGES: dict[str, Change] = {
    **{f"truncated at {at}": lambda data, at=at: data[:at] for at in (0, 3, 5000, -1, -22, -100)},
    "flipped inside": lambda data: flip_byte(data, 300),
    "flipped at its end": lambda data: flip_byte(data, -8),
    "that is text": lambda _data: b"no zip",
    "flagged as encrypted": lambda data: data.replace(b"PK\1\2\x14\3\x14\0\0", b"PK\1\2\x14\3\x14\0\1"),
}
PREFIXES = {"plain": "", "with .. in its paths": "../../../", "with absolute paths": "/etc/"}


def cases() -> Iterator[Case]:
    for name, prefix in PREFIXES.items():
        yield Case(f"segment zip {name}", UNUSUAL, _zipped(prefix=prefix), True, reference="study")
    for name, change in CHANGES.items():
        yield Case(f"segment zip {name}", KIND, _zipped(change), mentions="s.zip")
    for name, members in BAD_MEMBERS.items():
        yield Case(f"segment zip {name}", KIND, _zipped(members=members), mentions="s.zip")


def _zipped(change: Change = bytes, *, prefix: str = "", members: dict[str, bytes] | None = None) -> Make:
    """The study, or other files, in a zip that is then changed."""

    def make(folder: Path, files: ValidFiles) -> list[str]:
        study = {path.name: path.read_bytes() for path in sorted(files.study.iterdir())}
        path = folder / "s.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in (study if members is None else members).items():
                archive.writestr(prefix + name, content)
        path.write_bytes(change(path.read_bytes()))
        return segment(files, "s.zip")

    return make
