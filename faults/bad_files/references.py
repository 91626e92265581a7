"""What to run on valid files, by the name of the reference: unusual but valid input must give the same result."""

import shutil
from pathlib import Path

from faults.bad_files.base import LABELS, Make, ValidFiles, prepare_flair, prepare_patients, segment, segment_valid
from faults.bad_files.scores import score_image, score_moved


def _prepare(folder: Path, files: ValidFiles) -> list[str]:
    (folder / "src").mkdir()
    shutil.copy(files.scan_path(), folder / "src")
    return prepare_flair(folder, files)


def _labels(folder: Path, files: ValidFiles) -> list[str]:
    (folder / "labels.csv").write_text(LABELS)
    return prepare_patients(files, "--labels", "labels.csv")


REFERENCES: dict[str, Make] = {
    "segment": lambda _folder, files: segment_valid(files),
    "student": lambda _folder, files: segment_valid(files, engine="student"),
    "prepare": _prepare,
    "study": lambda _folder, files: segment(files, str(files.study)),
    "labels": _labels,
    "patients": lambda _folder, files: prepare_patients(files),
    "score": score_moved,
    "score image": score_image,
}
