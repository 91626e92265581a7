"""Paths at which there is no regular, readable file or no writable folder."""

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from faults.bad_files.base import (
    Case,
    Make,
    ValidFiles,
    calibrate,
    copy_others,
    prepare,
    prepare_patients,
    segment,
    segment_flair,
    segment_valid,
)

KIND = "path"

Put = Callable[[Path], object]  # creates something at a path
CommandFor = Callable[[Path, ValidFiles, str], list[str]]  # folder, valid files, where the path is -> arguments


def _bind_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket must be short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


IRREGULAR: dict[str, Put] = {
    "missing": lambda _path: None,
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a socket": _bind_socket,
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "an empty device": lambda path: path.symlink_to("/dev/null"),
    "a broken link": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "empty": Path.touch,
}


def put_at(where: str, put: Put, command: CommandFor) -> Make:
    def make(folder: Path, files: ValidFiles) -> list[str]:
        path = folder / where
        path.parent.mkdir(exist_ok=True)
        put(path)
        return command(folder, files, where)

    return make


def with_labels(_folder: Path, files: ValidFiles, labels: str) -> list[str]:
    return prepare_patients(files, "--labels", labels)


def with_split(_folder: Path, files: ValidFiles, split: str) -> list[str]:
    return prepare_patients(files, "--split", split)


def _segment_folder(folder: Path, files: ValidFiles, _where: str) -> list[str]:
    copy_others(folder / "in", files)
    return segment(files, "in")


def _prepare_folder(folder: Path, files: ValidFiles, _where: str) -> list[str]:
    copy_others(folder / "src", files)
    return prepare("--modalities", "flair,t1,t1ce,t2")


def _segment_valid(_folder: Path, files: ValidFiles, _where: str) -> list[str]:
    return segment_valid(files)


USES: dict[str, tuple[str, CommandFor]] = {  # where the path is, and the command that reads it
    "segment modality=": ("x.nii.gz", lambda _folder, files, path: segment_flair(files, path)),
    "segment input": ("x.nii.gz", lambda _folder, files, path: segment(files, path)),
    "segment brain mask": ("b.nii.gz", lambda _folder, files, path: [*segment_valid(files), "--brain-mask", path]),
    "segment model": ("model7", lambda _folder, files, path: segment(files, "x", model=path)),
    "prepare labels": ("labels.csv", with_labels),
    "prepare split": ("split.csv", with_split),
    "prepare source": ("src", lambda *_: prepare()),
    "calibrate cohort": ("cohort7", lambda _folder, files, path: calibrate(str(files.model), path)),
    "segment folder with": ("in/p_flair.nii.gz", _segment_folder),
    "prepare folder with": ("src/p_flair.nii.gz", _prepare_folder),
    "segment into": ("out", _segment_valid),
    "prepare into": ("out", lambda _folder, files, _path: prepare_patients(files)),
}
HARMLESS = {  # a folder without the file, an output folder that is or can be created
    "folder with": ("missing",), "into": ("missing", "a folder", "a broken link"),
}  # fmt: skip


def cases() -> Iterator[Case]:
    for what, put in IRREGULAR.items():
        for use, (where, command) in USES.items():
            if what not in HARMLESS.get(use.partition(" ")[2], ()):
                yield Case(f"{use} {what}", KIND, put_at(where, put, command), mentions=where.split("/")[0])
    for name, where, command in (
        ("segment unreadable", *USES["segment modality="]),
        ("prepare unreadable", *USES["prepare folder with"]),
        ("prepare unreadable labels", *USES["prepare labels"]),
    ):
        yield Case(name, KIND, put_at(where, _lock, command), mentions=where.split("/")[-1], unprivileged=True)
    into = put_at("out", lambda path: path.mkdir(mode=0o555), _segment_valid)
    yield Case("segment into a locked folder", KIND, into, mentions="out", unprivileged=True)
    yield Case("segment unreadable model", KIND, _lock_weights, mentions="weights", unprivileged=True)
    for name, path in LONG_PATHS.items():
        make = put_at("p_flair.nii", Path.touch, lambda _, files, _path, path=path: segment_flair(files, path))
        yield Case(f"segment {name}", KIND, make, mentions="x" if "long" in name else "p_flair")
    for name in ("p_flair.hdr", "p_flair.img", "p_flair.mgz", "p_flair.nii.bz2", "p_flair.nii.gz.part"):
        make = put_at(name, Path.touch, lambda _folder, files, path: segment(files, path))
        yield Case(f"segment a file named {name}", KIND, make, mentions="p_flair")
    yield Case("segment a link", KIND, _link, True)


LONG_PATHS = {
    "a path through a file": "p_flair.nii/x.nii", "a name too long": 250 * "x" + ".nii.gz",
    "a path too long": 3000 * "x/" + "x.nii.gz",
}  # fmt: skip


def _lock(path: Path) -> None:
    path.write_bytes(b"x")
    path.chmod(0)


def _lock_weights(folder: Path, files: ValidFiles) -> list[str]:
    shutil.copytree(files.model, folder / "model7")
    (folder / "model7" / "weights.safetensors").chmod(0)
    return segment(files, "x", model="model7")


def _link(folder: Path, files: ValidFiles) -> list[str]:
    (folder / "one.nii.gz").symlink_to(files.scan_path())
    (folder / "two.nii.gz").symlink_to("one.nii.gz")
    return segment_flair(files, "two.nii.gz")
