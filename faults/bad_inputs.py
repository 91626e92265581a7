"""The corpus: inputs that are wrong, and some that only look so, each with the command that meets it.

All are made by code from a few small files that are right (`Good`). `bad_scans.py` has what can be wrong with the bytes
of a scan; the other files what can be wrong with everything around them.
"""

import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from tests import toys

MODALITIES = ("flair", "t1", "t1ce", "t2")
SHAPE = (20, 20, 5)
AFFINE = toys.affine_of("LPS", (1, 1, 3), shape=SHAPE)
LEVELS = (0, 8)  # of the bundled calibration's twenty: quick, and a map as good as any to compare
EVERY_SLICE = ("--engine", "diffusion", "--detector", "none", "--smallest", "0")  # a mask in every slice
BRIEF = ("--no-pictures", "--no-report", *EVERY_SLICE)


@dataclass(frozen=True)
class Good:
    """What is right, to be made wrong."""

    root: Path

    @property
    def model(self) -> Path:
        return self.root / "model"

    @property
    def cohort(self) -> Path:
        return self.root / "cohort"

    @property
    def study(self) -> Path:
        return self.root / "study"

    def scan(self, modality: str = "flair") -> bytes:
        """A .nii file."""
        return gzip.decompress((self.root / "scan" / f"p_{modality}.nii.gz").read_bytes())

    def voxels(self) -> np.ndarray:
        return head(0)


def flip(data: bytes, at: int) -> bytes:
    changed = bytearray(data)
    changed[at] ^= 0x55
    return bytes(changed)


def head(seed: int) -> np.ndarray:
    return toys.head(SHAPE, seed, AFFINE)


@dataclass(frozen=True)
class Case:
    name: str
    kind: str  # of input, for the count
    make: Callable[[Path, Good], list[str]]  # fills a folder, and says what to run in it
    right: bool = False  # else refused
    names: str = ""  # in the message
    like: str = ""  # whose result is the right one (see PLAIN); none said: the command's
    obeying: bool = False  # permissions, even as root


def make_good(root: Path) -> Good:
    """Scan and model. The cohort is the business of `anofpdm prepare`, see the tests."""
    from tests import dicom_toys

    good = Good(root)
    for seed, modality in enumerate(MODALITIES):
        toys.save(root / "scan" / f"p_{modality}.nii.gz", head(seed), AFFINE)
    for number, name in enumerate(("AX T2 FLAIR", "AX T1", "AX T1 +C", "AX T2"), start=1):
        series = dicom_toys.Series(dicom_toys.head(6, 16, 14, seed=number), SeriesNumber=number, SeriesDescription=name)
        series.save(good.study, f"S{number}_")
    for number in range(4):
        for seed, modality in enumerate(MODALITIES):
            toys.save(root / f"patients/q{number}_{modality}.nii.gz", head(10 * number + seed), AFFINE)
        lesion = toys.ball(AFFINE, SHAPE, (1, -1, 0), 3 if number % 2 else -1)
        toys.save(root / f"patients/q{number}_seg.nii.gz", lesion.astype(np.uint8), AFFINE)
    (root / "split.csv").write_text("patient,split\nq0,val\nq1,val\nq2,test\nq3,test\n")
    _make_model(good.model)
    return good


def _make_model(folder: Path) -> None:
    """The bundled one, with fewer noise levels."""
    shutil.copytree(str(resources.files("anofpdm") / "models" / "tumour"), folder)
    said = json.loads((folder / "calibration.json").read_text())
    said["settings"]["levels"] = [said["settings"]["levels"][level] for level in LEVELS]
    for one in said["fitted"]:
        for name in ("centre", "scale", "weights"):
            one["curve"][name] = [one["curve"][name][level] for level in LEVELS]
    (folder / "calibration.json").write_text(json.dumps(said))


# ---- commands --------------------------------------------------------------------------------------------------------


def segment(good: Good, *words: str, model: str = "") -> list[str]:
    return ["segment", model or str(good.model), *words, "--out", "out", *BRIEF]


def segment_files(_folder: Path, good: Good, flair: str, *, model: str = "") -> list[str]:
    """`flair`, which is in the folder already, and the other three modalities of the good scan."""
    others = (f"{one}={good.root}/scan/p_{one}.nii.gz" for one in MODALITIES[1:])
    return segment(good, f"flair={flair}", *others, model=model)


def prepare(*words: str, layout: str = "brats21") -> list[str]:
    return ["prepare", layout, "src", "out", "--workers", "1", "--size", "64", *words]


def prepare_files(folder: Path, good: Good) -> list[str]:
    """p_flair, which is in `src` already, and the other three."""
    for one in MODALITIES[1:]:
        shutil.copy(good.root / f"scan/p_{one}.nii.gz", folder / "src")
    return prepare()


def prepare_cohort(good: Good) -> list[str]:
    split = str(good.root / "split.csv")
    return ["prepare", "brats21", str(good.root / "patients"), str(good.cohort), "--size", "64", "--split", split]


def calibrate(model: str, cohort: str) -> list[str]:
    return ["calibrate", model, cohort, "--levels", "2", "--strengths", "2"]


def evaluate(good: Good, cohort: str) -> list[str]:
    return ["evaluate", str(good.model), cohort, "--out", "out", "--levels", "2", "--strengths", "2", "--seeds", "1"]


def _plain_segment(folder: Path, good: Good) -> list[str]:
    return segment_files(folder, good, str(good.root / "scan" / "p_flair.nii.gz"))


def _plain_prepare(folder: Path, good: Good) -> list[str]:
    (folder / "src").mkdir()
    shutil.copy(good.root / "scan" / "p_flair.nii.gz", folder / "src")
    return prepare_files(folder, good)


def _plain_labels(folder: Path, good: Good) -> list[str]:
    from bad_folders import LABELS

    (folder / "labels.csv").write_text(LABELS)
    return ["prepare", "nifti", str(good.root / "patients"), "out", "--labels", "labels.csv", "--size", "64"]


def _plain_patients(_folder: Path, good: Good) -> list[str]:
    return ["prepare", "brats21", str(good.root / "patients"), "out", "--size", "64"]


PLAIN = {
    "segment": _plain_segment,
    "prepare": _plain_prepare,
    "study": lambda _folder, good: segment(good, str(good.study)),
    "labels": _plain_labels,
    "patients": _plain_patients,
}


def all_cases() -> list[Case]:
    import bad_dicom
    import bad_folders
    import bad_models
    import bad_scans

    return [case for room in (bad_scans, bad_folders, bad_models, bad_dicom) for case in room.cases()]
