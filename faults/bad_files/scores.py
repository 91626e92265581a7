"""Damaged and unusual masks, pairs and source folders, scored by `score` and `evaluate --native`; other results."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import nibabel as nib
import numpy as np

from faults.bad_files.base import (
    AFFINE,
    FLAIR,
    MODALITIES,
    Case,
    Edit,
    contents,
    head,
    replace,
    rows,
    segment,
    write,
)
from faults.bad_files.cohorts import NO_TABLES
from faults.bad_files.nifti_bytes import gzips, wrong_types
from tests import toys

TRUTH, PREDICTED = "patients7/q3_seg.nii.gz", "p_mask.nii"
SCORE = ("score", PREDICTED, TRUTH, "--out", "out")
SCORE_FOLDER = ("score", "patients7", "patients7", "--out", "out")
SCORE_PAIRS = (*SCORE_FOLDER, "--pairs", "split.csv")
NATIVE = ("evaluate", "model7", "cohort7", "--native", "patients7", "--out", "out", "--split", "test",
          "--engine", "student", "--workers", "1")  # fmt: skip
ELSEWHERE = AFFINE + np.outer((5000, 0, 0, 0), (0, 0, 0, 1))  # no overlap

BAD_PAIRS = {
    "without a column": "predicted\nq1_seg.nii.gz\n", "with an empty cell": "predicted,truth\nx,\n",
    "with a missing file": "predicted,truth\nsplit.csv.nii.gz,q1_seg.nii.gz\n",
}  # fmt: skip
BROKEN_MASKS: dict[str, Edit] = {
    "empty": Path.touch,
    "text": write("not a mask"),
    "in another space": lambda path: toys.save(path, np.ones((20, 20, 5), np.uint8), ELSEWHERE),
}
UNSEEN_MASKS: dict[str, Edit] = {"a pipe": os.mkfifo, "a broken link": lambda path: path.symlink_to("nowhere")}


def _voxels(function: Callable[[np.ndarray], np.ndarray]) -> Edit:
    def edit(path: Path) -> None:
        image = nib.load(path)
        voxels = np.array(image.dataobj)  # a copy: the file is mapped into memory, and written again
        nib.save(nib.Nifti1Image(function(voxels), image.affine), path)

    return edit


BAD_VOXELS: dict[str, Edit] = {
    "of other labels": _voxels(lambda mask: 2 * mask),
    "of NaN": _voxels(lambda mask: np.where(mask, np.nan, 0).astype(np.float32)),
    "in 4D": _voxels(lambda mask: np.stack([mask, mask], axis=-1)),
}
VALID_VOXELS: dict[str, Edit] = {
    "of float32": _voxels(lambda mask: mask.astype(np.float32)),
    "of int32, big-endian": _voxels(lambda mask: mask.astype(">i4")),
    "with a fourth axis of 1": _voxels(lambda mask: mask[..., None]),
}


def cases() -> Iterator[Case]:
    image = ("score", FLAIR, TRUTH, "--out", "out", "--label", "all")  # all above 0 is lesion
    for scan in (*wrong_types(), *gzips()):
        command = tuple(scan.path if word == FLAIR else word for word in image)
        yield Case(f"score {scan.name}", command, FLAIR, scan.edit, scan.valid, scan.path, image)
    yield from rows("score mask", SCORE, PREDICTED, BAD_VOXELS)
    yield from rows("score mask", SCORE, PREDICTED, VALID_VOXELS, valid=True)
    yield from rows("score pairs", SCORE_PAIRS, "split.csv", contents(NO_TABLES | BAD_PAIRS))
    broken = {name: replace(put) for name, put in BROKEN_MASKS.items()}
    unseen = {name: replace(put) for name, put in UNSEEN_MASKS.items()}
    unreadable = {name: edit for name, edit in broken.items() if name != "in another space"}  # as both masks are then
    yield from rows("score a folder, true mask", SCORE_FOLDER, TRUTH, unreadable | unseen)
    yield from rows("evaluate --native, true mask", NATIVE, TRUTH, broken)
    yield from rows("evaluate --native, true mask", NATIVE, TRUTH, unseen, mentions="q3")
    truncated = {"truncated": write(b"\x1f\x8b\x08\0")}
    yield from rows("evaluate --native, image", NATIVE, "patients7/q3_flair.nii.gz", truncated)
    folders = {"empty": replace(Path.mkdir), "missing": shutil.rmtree}
    for command in (SCORE_FOLDER, NATIVE):
        yield from rows(f"{command[0]} a folder", command, "patients7", folders)
    mixed = ("score", TRUTH, "patients7")
    yield Case("score a file and a folder", mixed, TRUTH, Path.touch, mentions="a file and a folder")
    yield from _other_results()


# ---- scans that cannot be right although their files are intact, and folders that hold other results -----------------


def _scale(factor: float) -> Edit:
    def edit(folder: Path) -> None:
        grid = AFFINE * [[factor], [factor], [factor], [1]]
        for seed, modality in enumerate(MODALITIES):
            toys.save(folder / f"p_{modality}.nii.gz", head(seed), grid)

    return edit


def _earlier(summary: bytes) -> Edit:
    def edit(path: Path) -> None:
        path.parent.mkdir(parents=True)
        path.write_bytes(summary)

    return edit


def _other_results() -> Iterator[Case]:
    for engine in ("diffusion", "student"):
        command = segment("scan", engine=engine)
        for factor, mentions in ((0.1, "smaller than the head"), (4.0, "for a head")):
            yield Case(f"{engine}: size x {factor}", command, "scan", _scale(factor), mentions=mentions)
    for name, summary in {"a nested summary": b"[" * 100_000, "a summary of another type": b"[1, 2]"}.items():
        edit = _earlier(summary)
        yield Case(f"join {name}", ("join", "earlier"), "earlier/p/summary.json", edit, mentions="damaged")
