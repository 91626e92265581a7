"""Damaged and unusual masks, pairs and source folders, scored by `score` and `evaluate --native`."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import nibabel as nib
import numpy as np

from faults.bad_files.base import AFFINE, UNUSUAL, Case, Make, ValidFiles
from faults.bad_files.nifti_bytes import flipped, gzips, truncated, wrong_types
from faults.bad_files.nifti_scan import Scan, to_nifti
from faults.bad_files.tables import NO_TABLES

KIND = "scoring"
NATIVE = ("--split", "test", "--engine", "student", "--workers", "1")  # q2 and q3
MASK = "q3_seg.nii.gz"
ELSEWHERE = AFFINE + np.outer((5000, 0, 0, 0), (0, 0, 0, 1))  # no overlap

BAD_PAIRS = {
    "without rows": "predicted,truth\n", "without a column": "predicted\nq1_seg.nii.gz\n",
    "with a missing file": "predicted,truth\nq9.nii.gz,q1_seg.nii.gz\n", "with an empty cell": "predicted,truth\nx,\n",
    "with a path outside": "predicted,truth\n../../x.nii.gz,q1_seg.nii.gz\n",
}  # fmt: skip
BROKEN_MASK: dict[str, Callable[[Path], object]] = {
    "empty": Path.touch,
    "text": lambda path: path.write_text("not a mask"),
    "a pipe": os.mkfifo,
    "a broken link": lambda path: path.symlink_to("nowhere"),
    "in another space": lambda path: nib.save(nib.Nifti1Image(np.ones((20, 20, 5), np.uint8), ELSEWHERE), path),
}
BAD_VOXELS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "of other labels": lambda mask: 2 * mask,
    "of NaN": lambda mask: np.where(mask, np.nan, 0).astype(np.float32),
    "in 4D": lambda mask: np.stack([mask, mask], axis=-1),
}
VALID_VOXELS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "of float32": lambda mask: mask.astype(np.float32),
    "of int32, big-endian": lambda mask: mask.astype(">i4"),
    "with a fourth axis of 1": lambda mask: mask[..., None],
}


def cases() -> Iterator[Case]:
    for number, scan in enumerate(scan for source in (truncated, flipped, wrong_types, gzips) for scan in source()):
        if scan.valid or number % 4 == 0:
            yield from _files(scan, number)
    for name, change in BAD_VOXELS.items():
        yield Case(f"score mask {name}", KIND, _moved(change), mentions="p_mask.nii")
    for name, change in VALID_VOXELS.items():
        yield Case(f"score mask {name}", UNUSUAL, _moved(change), True, reference="score")
    yield Case("score mask with axes in another order", UNUSUAL, _reoriented, True, reference="score")
    for name, content in {**NO_TABLES, **{name: text.encode() for name, text in BAD_PAIRS.items()}}.items():
        mentions = {"with a missing file": "q9.nii.gz", "with a path outside": "x.nii.gz"}.get(name, "pairs.csv")
        yield Case(f"score pairs {name}", KIND, _pairs(content), mentions=mentions)
    for name, put in BROKEN_MASK.items():
        yield Case(f"score folder with a mask {name}", KIND, _patients(MASK, put, score_folder), mentions=MASK)
        mentions = "q3" if name in ("a pipe", "a broken link") else MASK  # not seen as files of the scan
        make = _patients(MASK, put, evaluate_native)
        yield Case(f"evaluate --native mask {name}", KIND, make, mentions=mentions)
    image = _patients("q3_flair.nii.gz", lambda path: path.write_bytes(b"\x1f\x8b\x08\0"), evaluate_native)
    yield Case("evaluate --native image truncated", KIND, image, mentions="q3_flair")
    for name, command in {"score": score_folder, "evaluate --native": evaluate_native}.items():
        yield Case(f"{name} an empty folder", KIND, _in_empty_folder(command), mentions="src")
    yield Case("evaluate --native source missing", KIND, lambda _, f: evaluate_native(f, "gone"), mentions="gone")
    make = lambda _, files: ["score", str(files.patients / MASK), str(files.patients)]  # noqa: E731
    yield Case("score a file and a folder", KIND, make, mentions="a file and a folder")


# ---- commands --------------------------------------------------------------------------------------------------------


def score_mask(files: ValidFiles, predicted: str, *options: str) -> list[str]:
    """Against the lesion of a valid patient."""
    return ["score", predicted, str(files.patients / MASK), "--out", "out", *options]


def score_moved(folder: Path, files: ValidFiles) -> list[str]:
    return _moved(lambda mask: mask)(folder, files)


def score_image(_folder: Path, files: ValidFiles) -> list[str]:
    return score_mask(files, str(files.scan_path()), "--label", "all")


def score_folder(files: ValidFiles, predicted: str) -> list[str]:
    return ["score", predicted, str(files.patients), "--out", "out"]


def evaluate_native(files: ValidFiles, source: str) -> list[str]:
    return ["evaluate", str(files.model), str(files.cohort), "--native", source, "--out", "out", *NATIVE]


# ---- files -----------------------------------------------------------------------------------------------------------


def _files(scan: Scan, number: int) -> Iterator[Case]:
    """An image as predicted or as true mask: all above 0 is lesion."""

    def make(folder: Path, files: ValidFiles) -> list[str]:
        predicted, truth, *options = score_mask(files, scan.write(folder, files), "--label", "all")[1:]
        pair = (predicted, truth) if scan.valid or number % 8 else (truth, predicted)
        return ["score", *pair, *options]

    mentions, kind = f"p_flair{scan.suffix}", UNUSUAL if scan.valid else KIND
    yield Case(f"score {scan.name}", kind, make, scan.valid, mentions, "score image")


def _shifted_lesion(files: ValidFiles) -> np.ndarray:
    return np.roll(np.asarray(nib.load(files.patients / MASK).dataobj), 1, axis=0)


def _moved(change: Callable[[np.ndarray], np.ndarray]) -> Make:
    def make(folder: Path, files: ValidFiles) -> list[str]:
        (folder / "p_mask.nii").write_bytes(to_nifti(change(_shifted_lesion(files))))
        return score_mask(files, "p_mask.nii")

    return make


def _reoriented(folder: Path, files: ValidFiles) -> list[str]:
    turn = nib.orientations.axcodes2ornt("SAR")
    image = nib.Nifti1Image(_shifted_lesion(files), AFFINE)
    nib.save(image.as_reoriented(nib.orientations.ornt_transform(nib.io_orientation(AFFINE), turn)), folder / "m.nii")
    return score_mask(files, "m.nii")


def _pairs(content: bytes) -> Make:
    def make(folder: Path, files: ValidFiles) -> list[str]:
        (folder / "pairs.csv").write_bytes(content)
        return [*score_folder(files, str(files.patients)), "--pairs", "pairs.csv"]

    return make


def _patients(name: str, put: Callable[[Path], object], command: Callable[[ValidFiles, str], list[str]]) -> Make:
    """On a copy of the patients, with something else in place of one file."""

    def make(folder: Path, files: ValidFiles) -> list[str]:
        shutil.copytree(files.patients, folder / "patients7")
        (folder / "patients7" / name).unlink()
        put(folder / "patients7" / name)
        return command(files, "patients7")

    return make


def _in_empty_folder(command: Callable[[ValidFiles, str], list[str]]) -> Make:
    def make(folder: Path, files: ValidFiles) -> list[str]:
        (folder / "src").mkdir()
        return command(files, "src")

    return make
