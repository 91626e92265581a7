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


def cases() -> Iterator[Case]:
    for what, put in IRREGULAR.items():
        yield from _irregular(what, put)
    yield from _unreadable()
    for name, make in _odd_paths():
        yield Case(f"segment {name}", KIND, make, mentions="x" if "long" in name else "p_flair")
    yield Case("segment a link", KIND, _link, True)


def _irregular(what: str, put: Put) -> Iterator[Case]:
    uses: dict[str, tuple[str, CommandFor]] = {
        "segment modality=": ("x.nii.gz", lambda _folder, files, path: segment_flair(files, path)),
        "segment input": ("x.nii.gz", lambda _folder, files, path: segment(files, path)),
        "segment brain mask": ("b.nii.gz", lambda _folder, files, path: [*segment_valid(files), "--brain-mask", path]),
        "segment model": ("model7", lambda _folder, files, path: segment(files, "x", model=path)),
        "prepare labels": ("labels.csv", with_labels),
        "prepare split": ("split.csv", with_split),
        "prepare source": ("src", lambda *_: prepare()),
        "calibrate cohort": ("cohort7", lambda _folder, files, path: calibrate(str(files.model), path)),
    }
    for name, (where, command) in uses.items():
        yield Case(f"{name} {what}", KIND, put_at(where, put, command), mentions=where)
    if what != "missing":
        make = put_at("in/p_flair.nii.gz", put, _segment_folder)
        yield Case(f"segment folder with {what}", KIND, make, mentions="in")
        make = put_at("src/p_flair.nii.gz", put, _prepare_folder)
        yield Case(f"prepare folder with {what}", KIND, make, mentions="src")
    if what not in ("missing", "a folder", "a broken link"):
        yield Case(f"segment into {what}", KIND, put_at("out", put, _segment_valid), mentions="out")
        into = put_at("out", put, lambda _folder, files, _path: prepare_patients(files))
        yield Case(f"prepare into {what}", KIND, into, mentions="out")


def _unreadable() -> Iterator[Case]:
    for name, make, mentions in (
        (
            "segment unreadable",
            put_at("x.nii.gz", _lock, lambda _, files, path: segment_flair(files, path)),
            "x.nii.gz",
        ),
        ("prepare unreadable", put_at("src/p_flair.nii.gz", _lock, _prepare_folder), "p_flair"),
        ("prepare unreadable labels", put_at("labels.csv", _lock, with_labels), "labels.csv"),
        ("segment unreadable model", _lock_weights, "weights"),
        ("segment into a locked folder", put_at("out", lambda path: path.mkdir(mode=0o555), _segment_valid), "out"),
    ):
        yield Case(name, KIND, make, mentions=mentions, unprivileged=True)


def _lock(path: Path) -> None:
    path.write_bytes(b"x")
    path.chmod(0)


def _lock_weights(folder: Path, files: ValidFiles) -> list[str]:
    shutil.copytree(files.model, folder / "model7")
    (folder / "model7" / "weights.safetensors").chmod(0)
    return segment(files, "x", model="model7")


def _segment_valid(_folder: Path, files: ValidFiles, _where: str) -> list[str]:
    return segment_valid(files)


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


def _link(folder: Path, files: ValidFiles) -> list[str]:
    (folder / "one.nii.gz").symlink_to(files.scan_path())
    (folder / "two.nii.gz").symlink_to("one.nii.gz")
    return segment_flair(files, "two.nii.gz")


def _odd_paths() -> Iterator[tuple[str, Make]]:
    def beside_scan(flair: str) -> Make:
        def make(folder: Path, files: ValidFiles) -> list[str]:
            (folder / "p_flair.nii").write_bytes(files.scan())
            return segment_flair(files, flair)

        return make

    def renamed(name: str) -> Make:
        def make(folder: Path, files: ValidFiles) -> list[str]:
            (folder / name).write_bytes(files.scan())
            return segment(files, name)

        return make

    yield "a path through a file", beside_scan("p_flair.nii/x.nii")
    yield "a name too long", beside_scan(250 * "x" + ".nii.gz")
    yield "a path too long", beside_scan(3000 * "x/" + "x.nii.gz")
    for name in ("p_flair.hdr", "p_flair.img", "p_flair.mgz", "p_flair.nii.bz2", "p_flair.nii.gz.part"):
        yield f"a file named {name}", renamed(name)
