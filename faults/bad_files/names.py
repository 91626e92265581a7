"""File and folder names that break careless code."""

import shutil
from collections.abc import Iterator
from pathlib import Path

from faults.bad_files.base import MODALITIES, Case, Make, ValidFiles, copy_others, prepare, segment_flair, segment_valid

KIND = "file name"
NAMES = (
    " before", "after ", "quote'", 'double"quote', "new\nline", "--out", "Ünïcödé", "emoji🧠", "e\u0301", "a=b", "100%",
    "{input}", "[bold]red", "$HOME", ";ls", "*", "a&b", "<b>", "\\", "~", "a.b.c", "..x", "\x1b[31m", "\udcff",
    "x" * 200, "p,q", "a\u202eb", "None",
)  # fmt: skip


def cases() -> Iterator[Case]:
    for number, name in enumerate(NAMES):
        utf8, hidden = "\udcff" not in name, name.startswith(".")
        if number % 4 == 1 or not utf8:
            yield Case(f"segment a name {name!a:.20}", KIND, _segment_named(name), True)
        mentions = "src" if utf8 else "UTF-8"
        yield Case(f"prepare a name {name!a:.20}", KIND, _prepare_named(name), utf8 and not hidden, mentions)
        shown = "".join(letter if letter.isprintable() else "?" for letter in name)
        yield Case(f"segment a bad file named {name!a:.20}", KIND, _segment_bad(name), mentions=shown)
    yield Case("segment capitals", KIND, _segment_named("p", ".NII.GZ"), True)
    yield Case("segment into an odd name", KIND, _segment_into("o\nu\udcfft [b]"), True)
    yield Case("prepare into an odd name", KIND, _prepare_into("ü '\"\n[b]"), True)


def _segment_named(name: str, suffix: str = ".nii.gz") -> Make:
    def make(folder: Path, files: ValidFiles) -> list[str]:
        shutil.copy(files.scan_path(), folder / f"{name}{suffix}")
        return segment_flair(files, f"{name}{suffix}")

    return make


def _prepare_named(name: str) -> Make:
    def make(folder: Path, files: ValidFiles) -> list[str]:
        (folder / "src").mkdir()
        for modality in MODALITIES:
            shutil.copy(files.scan_path(modality), folder / "src" / f"{name}_{modality}.nii.gz")
        return prepare()

    return make


def _segment_bad(name: str) -> Make:
    def make(folder: Path, files: ValidFiles) -> list[str]:
        (folder / f"{name}.nii.gz").write_bytes(b"no scan")
        return segment_flair(files, f"{name}.nii.gz")

    return make


def _segment_into(out: str) -> Make:
    def make(folder: Path, files: ValidFiles) -> list[str]:
        (folder / out).mkdir()
        (folder / "out").symlink_to(out)
        return [out if word == "out" else word for word in segment_valid(files)]

    return make


def _prepare_into(name: str) -> Make:
    def make(folder: Path, files: ValidFiles) -> list[str]:
        (folder / "src").mkdir()
        (folder / "out").symlink_to(folder / "parent" / name)
        (folder / "parent" / name).mkdir(parents=True)
        shutil.copy(files.scan_path(), folder / "src")
        copy_others(folder / "src", files)
        return [f"parent/{name}" if word == "out" else word for word in prepare()]

    return make
