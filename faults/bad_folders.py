"""What can be wrong with the place of a file, with its name, and with tables that people write."""

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

from bad_inputs import MODALITIES, Case, Good, calibrate, prepare, segment, segment_files

Change = Callable[[Path], object]


def cases() -> Iterator[Case]:
    for some in (places(), names(), tables()):
        yield from some


# ---- places ----------------------------------------------------------------------------------------------------------


def _nothing(_path: Path) -> None:
    pass


def _bound_socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket must be short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


PLACES: dict[str, Change] = {
    "missing": _nothing,
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a socket": _bound_socket,
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "an empty device": lambda path: path.symlink_to("/dev/null"),
    "a link to nothing": lambda path: path.symlink_to("nowhere"),
    "a link to itself": lambda path: path.symlink_to(path.name),
    "empty": Path.touch,
}


def places(kind: str = "place") -> Iterator[Case]:
    for what, put in PLACES.items():
        yield Case(f"segment modality= {what}", kind, _at("x.nii.gz", put, segment_files), names="x.nii.gz")
        yield Case(
            f"segment word {what}", kind, _at("x.nii.gz", put, lambda _, g, path: segment(g, path)), names="x.nii.gz"
        )
        yield Case(f"segment brain mask {what}", kind, _at("b.nii.gz", put, _with_brain), names="b.nii.gz")
        yield Case(
            f"segment model {what}",
            kind,
            _at("model7", put, lambda _, g, path: segment(g, "x", model=path)),
            names="model7",
        )
        yield Case(f"prepare labels {what}", kind, _at("labels.csv", put, _with_labels), names="labels.csv")
        yield Case(f"prepare split {what}", kind, _at("split.csv", put, _with_split), names="split.csv")
        yield Case(f"prepare source {what}", kind, _at("src", put, lambda *_: prepare()), names="src")
        yield Case(
            f"calibrate cohort {what}",
            kind,
            _at("cohort7", put, lambda _, g, path: calibrate(str(g.model), path)),
            names="cohort7",
        )
        if what != "missing":
            yield Case(f"segment folder with {what}", kind, _at("in/p_flair.nii.gz", put, _folder_of_four), names="in")
            yield Case(
                f"prepare folder with {what}", kind, _at("src/p_flair.nii.gz", put, _source_of_four), names="src"
            )
        if what not in ("missing", "a folder", "a link to nothing"):
            yield Case(f"segment into {what}", kind, _at("out", put, _segment_plain), names="out")
            yield Case(f"prepare into {what}", kind, _at("out", put, lambda _, g, _p: prepare_patients(g)), names="out")
    for name, make in _around():
        yield Case(f"segment {name}", kind, make, names="x" if "long" in name else "p_flair")
    yield Case("segment unreadable", kind, _at("x.nii.gz", _locked, segment_files), names="x.nii.gz", obeying=True)
    yield Case(
        "prepare unreadable", kind, _at("src/p_flair.nii.gz", _locked, _source_of_four), names="p_flair", obeying=True
    )
    yield Case(
        "prepare unreadable labels", kind, _at("labels.csv", _locked, _with_labels), names="labels.csv", obeying=True
    )
    yield Case("segment unreadable model", kind, _locked_weights, names="weights", obeying=True)
    yield Case(
        "segment into a locked folder", kind, _at("out", _locked_folder, _segment_plain), names="out", obeying=True
    )
    yield Case("segment a link", kind, _linked, True)


def _at(where: str, put: Change, argv: Callable[[Path, Good, str], list[str]]) -> Callable[[Path, Good], list[str]]:
    def make(folder: Path, good: Good) -> list[str]:
        path = folder / where
        path.parent.mkdir(exist_ok=True)
        put(path)
        return argv(folder, good, where)

    return make


def _locked(path: Path) -> None:
    path.write_bytes(b"x")
    path.chmod(0)


def _locked_folder(path: Path) -> None:
    path.mkdir(mode=0o555)


def _locked_weights(folder: Path, good: Good) -> list[str]:
    shutil.copytree(good.model, folder / "model7")
    (folder / "model7" / "weights.safetensors").chmod(0)
    return segment(good, "x", model="model7")


def _with_brain(folder: Path, good: Good, brain: str) -> list[str]:
    return [*_segment_plain(folder, good, ""), "--brain-mask", brain]


def _segment_plain(folder: Path, good: Good, _where: str) -> list[str]:
    return segment_files(folder, good, str(good.root / "scan" / "p_flair.nii.gz"))


def _with_labels(_folder: Path, good: Good, labels: str) -> list[str]:
    return prepare_patients(good, "--labels", labels)


def _with_split(_folder: Path, good: Good, split: str) -> list[str]:
    return prepare_patients(good, "--split", split)


def prepare_patients(good: Good, *words: str) -> list[str]:
    layout, source = (
        ("nifti", str(good.root / "patients")) if "--labels" in words else ("brats21", str(good.root / "patients"))
    )
    return ["prepare", layout, source, "out", "--workers", "1", "--size", "64", *words]


def _others(place: Path, good: Good, subject: str = "p") -> None:
    for one in MODALITIES[1:]:
        shutil.copy(good.root / f"scan/p_{one}.nii.gz", place / f"{subject}_{one}.nii.gz")


def _folder_of_four(folder: Path, good: Good, _where: str) -> list[str]:
    _others(folder / "in", good)
    return segment(good, "in")


def _source_of_four(folder: Path, good: Good, _where: str) -> list[str]:
    _others(folder / "src", good)
    return prepare("--modalities", "flair,t1,t1ce,t2")


def _linked(folder: Path, good: Good) -> list[str]:
    (folder / "one.nii.gz").symlink_to(good.root / "scan" / "p_flair.nii.gz")
    (folder / "two.nii.gz").symlink_to("one.nii.gz")
    return segment_files(folder, good, "two.nii.gz")


def _around() -> Iterator[tuple[str, Callable[[Path, Good], list[str]]]]:
    def given(flair: str) -> Callable[[Path, Good], list[str]]:
        def make(folder: Path, good: Good) -> list[str]:
            (folder / "p_flair.nii").write_bytes(good.scan())
            return segment_files(folder, good, flair)

        return make

    yield "through a file", given("p_flair.nii/x.nii")
    yield "of a name too long", given(250 * "x" + ".nii.gz")
    yield "of a path too long", given(3000 * "x/" + "x.nii.gz")
    for path in ("p_flair.hdr", "p_flair.img", "p_flair.mgz", "p_flair.nii.bz2", "p_flair.nii.gz.part"):
        yield f"of a file called {path}", lambda folder, good, path=path: _called(folder, good, path)


def _called(folder: Path, good: Good, name: str) -> list[str]:
    (folder / name).write_bytes(good.scan())
    return segment(good, name)


# ---- names -----------------------------------------------------------------------------------------------------------


NAMES = (
    "with space", " before", "after ", "quote'", 'double"quote', "new\nline", "tab\t", "-dash", "--out", "Ünïcödé",
    "日本",
    "emoji🧠", "e\u0301", "a=b", "100%", "{input}", "[bold]red", "$HOME", "`id`", ";ls", "*", "?", "a&b", "<b>", "\\",
    "#",
    "~", "a.b.c", "..x", "\x1b[31m", "\udcff", "x" * 200, "p,q", "C:", "a\u202eb", "None", "1",
)  # fmt: skip


def names(kind: str = "name") -> Iterator[Case]:
    for number, name in enumerate(NAMES):
        valid, hidden = "\udcff" not in name, name.startswith(".")
        if number % 4 == 1 or not valid:
            yield Case(f"segment a name {name!a:.20}", kind, _segment_named(name), True)
        yield Case(
            f"prepare a name {name!a:.20}",
            kind,
            _prepare_named(name),
            valid and not hidden,
            "src" if valid else "UTF-8",
        )
        yield Case(f"segment a bad file's name {name!a:.20}", kind, _bad_named(name), names=_shown(name))
    yield Case("segment capitals", kind, _segment_named("p", ".NII.GZ"), True)
    yield Case("segment into an odd name", kind, _into("o\nu\udcfft [b]"), True)
    yield Case("prepare into an odd name", kind, _prepare_into("out/ü '\"\n[b]"), True)


def _shown(name: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in name)


def _segment_named(name: str, ending: str = ".nii.gz") -> Callable[[Path, Good], list[str]]:
    def make(folder: Path, good: Good) -> list[str]:
        shutil.copy(good.root / "scan" / "p_flair.nii.gz", folder / f"{name}{ending}")
        return segment_files(folder, good, f"{name}{ending}")

    return make


def _prepare_named(name: str) -> Callable[[Path, Good], list[str]]:
    def make(folder: Path, good: Good) -> list[str]:
        (folder / "src").mkdir()
        for one in MODALITIES:
            shutil.copy(good.root / f"scan/p_{one}.nii.gz", folder / "src" / f"{name}_{one}.nii.gz")
        return prepare()

    return make


def _bad_named(name: str) -> Callable[[Path, Good], list[str]]:
    def make(folder: Path, good: Good) -> list[str]:
        (folder / f"{name}.nii.gz").write_bytes(b"no scan")
        return segment_files(folder, good, f"{name}.nii.gz")

    return make


def _into(out: str) -> Callable[[Path, Good], list[str]]:
    def make(folder: Path, good: Good) -> list[str]:
        (folder / out).mkdir()
        (folder / "out").symlink_to(out)
        return [out if word == "out" else word for word in _segment_plain(folder, good, "")]

    return make


def _prepare_into(out: str) -> Callable[[Path, Good], list[str]]:
    def make(folder: Path, good: Good) -> list[str]:
        (folder / "src").mkdir()
        (folder / "out").symlink_to(folder / "there" / Path(out).name)
        (folder / "there" / Path(out).name).mkdir(parents=True)
        shutil.copy(good.root / "scan" / "p_flair.nii.gz", folder / "src")
        _others(folder / "src", good)
        return ["there/" + Path(out).name if word == "out" else word for word in prepare()]

    return make


# ---- tables ----------------------------------------------------------------------------------------------------------


LABELS = "subject,slice,label\nq0,,healthy\nq1,2,unhealthy\nq2,,0\nq3,,unhealthy\n"
SPLIT = "patient,split\nq0,val\nq1,val\nq2,test\nq3,test\n"
NOT_TABLES = {
    "of zeros": bytes(100), "of binary": bytes(range(256)), "in UTF-16": LABELS.encode("utf-16"), "in Latin-1": b"\xe9",
    "of a page": b"<html>", "of blanks": b" \n \n", "of a mark alone": b"\xef\xbb\xbf", "deep": b"{" * 9999,
    "of one long line": b"subject,label\n" + b"x" * 200_000 + b",1\n", "of quotes": b'"""""\n"',
    "of one long quote": b'subject,slice,label\n"' + b"q0,,1\n" * 40_000,
}  # fmt: skip


def tables(kind: str = "table") -> Iterator[Case]:
    for name, content in NOT_TABLES.items():
        yield _labels(name, content, kind)
        yield _split(name, content, kind)
    for name, rows in {
        "without rows": "", "without label": "q0,,\nq1,2\n", "with an unknown label": "q0,,maybe\n",
        "with two words": "q0,,1,0\n",
        "with an unknown patient": "q9,,1\n", "without a patient": ",,1\n", "with slice -1": "q0,-1,1\n",
        "with slice x": "q0,x,1\n",
        "with slice 1.5": "q0,1.5,1\n", "with slice 99": "q0,99,1\n", "with slice NaN": "q0,nan,1\n",
        "with slice 1e3": "q0,1e3,1\n",
        "that contradicts itself": "q0,,1\nq0,,0\n", "with a slice of 5000 digits": f"q0,{'9' * 5000},1\n",
        "with slice 2**70": f"q0,{2**70},1\n", "with a superscript": "q0,\u00b2,1\n", "with NUL": "q0\0,,1\n",
    }.items():  # fmt: skip
        yield _labels(name, f"subject,slice,label\n{rows}".encode(), kind)
    for name, text in {
        "without a column": "subject,slice\nq0,1\n", "with a column twice": "subject,slice,label,label\nq0,1,1,0\n",
        "with a column misspelt": "subject,slcie,label\nq0,1,1\n", "without columns": "q0,,1\n",
    }.items():  # fmt: skip
        yield _labels(name, text.encode(), kind)
    for name, text in {
        "without rows": "patient,split\n", "of an unknown part": SPLIT + "q0,holdout\n",
        "that contradicts itself": SPLIT + "q0,test\n",
        "that leaves one out": SPLIT[:-8], "without a column": "patient\nq0\n",
        "with a column twice": "patient,split,split\nq0,val,test\n",
    }.items():  # fmt: skip
        yield _split(name, text.encode(), kind)
    for name, content in {
        "as it is": LABELS.encode(), "of Windows": LABELS.replace("\n", "\r\n").encode(),
        "with a mark": LABELS.encode("utf-8-sig"),
        "with semicolons": LABELS.replace(",", ";").encode(), "with tabs": LABELS.replace(",", "\t").encode(),
        "with quotes": LABELS.replace("q0", '"q0"').encode(), "with blanks": LABELS.replace(",", " , ").encode(),
        "with capitals": LABELS.replace("subject,slice,label", "SUBJECT,Slice,Label").encode(),
        "with an empty line": (LABELS + "\n\n,,\n").encode(), "without an end": LABELS.rstrip().encode(),
        "with 2.0": LABELS.replace("2,", "2.0,", 1).encode(),
    }.items():  # fmt: skip
        yield _labels(name, content, "unusual and right", right=True)


def _labels(name: str, content: bytes, kind: str, *, right: bool = False) -> Case:
    make = _at("labels.csv", lambda path: path.write_bytes(content), _with_labels)
    return Case(f"prepare labels {name}", kind, make, right, "labels.csv", like="labels")


def _split(name: str, content: bytes, kind: str) -> Case:
    make = _at("split.csv", lambda path: path.write_bytes(content), _with_split)
    return Case(f"prepare split {name}", kind, make, names="split.csv")
