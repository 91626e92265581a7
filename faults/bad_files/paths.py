"""Paths at which there is no regular, readable file or no writable folder, and names that break careless code."""

import os
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

from faults.bad_files.base import (
    CALIBRATE,
    FLAIR,
    WITH_LABELS,
    WITH_SPLIT,
    Case,
    Command,
    Edit,
    prepare,
    replace,
    rows,
    segment,
    segment_flair,
)


def _bind_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket must be short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


IRREGULAR: dict[str, Edit] = {
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
USES: dict[str, tuple[str, Command]] = {  # where the path is, and the command that reads it
    "segment modality=": (FLAIR, segment_flair()),
    "segment input": (FLAIR, segment(FLAIR)),
    "segment folder with": (FLAIR, segment("scan")),
    "segment brain mask": ("p_mask.nii", (*segment_flair(), "--brain-mask", "p_mask.nii")),
    "segment model": ("model7", segment_flair()),
    "segment into": ("out", segment_flair()),
    "prepare labels": ("labels.csv", WITH_LABELS),
    "prepare split": ("split.csv", WITH_SPLIT),
    "prepare source": ("patients7", prepare("patients7")),
    "prepare folder with": (FLAIR, prepare("scan", "--modalities", "flair,t1,t1ce,t2")),
    "prepare into": ("out", prepare("patients7")),
    "calibrate cohort": ("cohort7", CALIBRATE),
}
HARMLESS = {  # a folder without the file, an output folder that is or can be created
    "segment folder with": ("missing",), "prepare folder with": ("missing",),
    "segment into": ("missing", "a folder", "a broken link"), "prepare into": ("missing", "a folder", "a broken link"),
}  # fmt: skip
NOT_SCANS = {f"named {name}": lambda path, name=name: path.rename(path.with_name(name))
             for name in ("p_flair.mgz", "p_flair.nii.gz.part")}  # fmt: skip
LONG_PATHS = {
    "a path through a file": f"{FLAIR}/x.nii", "a name too long": 250 * "x" + ".nii.gz",
    "a path too long": 3000 * "x/" + "x.nii.gz",
}  # fmt: skip
NAMES = (
    " before", "after ", "quote'", "new\nline", "--out", "Ünïcödé", "emoji🧠", "a=b", "100%", "{input}", "[bold]red",
    "$HOME", ";ls", "*", "\\", "~", "a.b.c", "\x1b[31m", "\udcff", "x" * 200, "p,q", "a\u202eb",
)  # fmt: skip


def cases() -> Iterator[Case]:
    for use, (path, command) in USES.items():
        edits = {name: replace(put) for name, put in IRREGULAR.items() if name not in HARMLESS.get(use, ())}
        mentions = path.split("/")[0]
        yield from rows(use, command, path, edits, mentions=mentions)
    for use in ("segment modality=", "prepare folder with", "prepare labels"):
        path, command = USES[use]
        yield _unreadable(use, command, path)
    yield _unreadable("segment model", segment_flair(), "model7/weights.safetensors")
    locked = lambda path: path.mkdir(mode=0o555)  # noqa: E731
    yield Case("segment into a locked folder", segment_flair(), "out", locked, unprivileged=True)
    for name, path in LONG_PATHS.items():
        mentions = "x" if "long" in name else "p_flair"
        yield Case(f"segment {name}", segment_flair(path), FLAIR, _nothing, mentions=mentions)
    yield Case("segment a link", segment_flair(), FLAIR, _link, True)
    yield from _names()


def _names() -> Iterator[Case]:
    for name, edit in NOT_SCANS.items():
        yield Case(f"segment a file {name}", segment(f"scan/{name[6:]}"), FLAIR, edit, mentions="p_flair")
    for number, name in enumerate(NAMES):
        utf8, file = "\udcff" not in name, f"{name}.nii.gz"
        shown = "".join(letter if letter.isprintable() else "?" for letter in name)
        bad = replace(lambda path, file=file: path.with_name(file).write_bytes(b"no scan"))
        command = segment_flair(f"scan/{file}")
        yield Case(f"segment a bad file named {name!a:.20}", command, FLAIR, bad, mentions=shown)
        if number % 4 == 1 or not utf8:
            move = lambda path, file=file: path.rename(path.with_name(file))  # noqa: E731
            yield Case(f"segment a name {name!a:.20}", command, FLAIR, move, True, reference=segment_flair())
        mentions = "" if utf8 else "UTF-8"
        named = _name_subject(name)
        yield Case(f"prepare a name {name!a:.20}", prepare("scan"), "scan", named, utf8, mentions)
    odd = "o\nu\udcfft '\"[b]"
    for use, command in {"segment": segment_flair(), "prepare": prepare("scan")}.items():
        into = tuple(odd if word == "out" else word for word in command)
        link = lambda path: path.with_name("out").symlink_to(path.name)  # noqa: E731
        yield Case(f"{use} into an odd name", into, odd, link, True, reference=command)


# ---- edits -----------------------------------------------------------------------------------------------------------


def _nothing(_path: Path) -> None:
    pass


def _unreadable(use: str, command: Command, path: str) -> Case:
    return Case(f"{use} unreadable", command, path, lambda file: file.chmod(0), unprivileged=True)


def _link(path: Path) -> None:
    shutil.move(path, path.with_name("moved"))
    path.symlink_to("moved")


def _name_subject(name: str) -> Edit:
    """All files of the scan."""

    def edit(folder: Path) -> None:
        for path in list(folder.iterdir()):
            path.rename(folder / path.name.replace("p_", f"{name}_", 1))

    return edit
