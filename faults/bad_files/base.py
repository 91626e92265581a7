"""Valid files to start from, the commands that read them, and what a case of the corpus is."""

import gzip
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from tests import dicom_toys, toys

MODALITIES = ("flair", "t1", "t1ce", "t2")
SHAPE = (20, 20, 5)
AFFINE = toys.affine_of("LPS", (8, 8, 24), shape=SHAPE)  # as large as a head
LEVELS = (0, 8)  # of the twenty of the bundled calibration: fast, and enough for a map to compare
SMALL = ("--workers", "1", "--size", "64")
FILES_ONLY = ("--no-pictures", "--no-report")
ENGINES = {  # a mask in every slice, to compare with
    "diffusion": ("--engine", "diffusion", "--detector", "none", "--smallest", "0"),
    "student": ("--engine", "student"),
}
UNUSUAL = "unusual but valid"  # a kind of its own, next to the kinds of faults
LABELS = "subject,slice,label\nq0,,healthy\nq1,2,unhealthy\nq2,,0\nq3,,unhealthy\n"
SPLIT = "patient,split\nq0,val\nq1,val\nq2,test\nq3,test\n"


@dataclass(frozen=True)
class ValidFiles:
    """scan/, study/ (DICOM), patients/, cohort/ and model/."""

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

    @property
    def patients(self) -> Path:
        return self.root / "patients"

    def scan_path(self, modality: str = "flair") -> Path:
        return self.root / "scan" / f"p_{modality}.nii.gz"

    def scan(self, modality: str = "flair") -> bytes:
        """The bytes of a .nii file."""
        return gzip.decompress(self.scan_path(modality).read_bytes())

    def voxels(self) -> np.ndarray:
        return head(0)


Make = Callable[[Path, ValidFiles], list[str]]
Change = Callable[[bytes], bytes]


@dataclass(frozen=True)
class Case:
    name: str
    kind: str  # row of the table in the summary
    make: Make  # creates the files in an empty folder, returns the arguments of the command to run there
    valid: bool = False  # otherwise it must be refused
    mentions: str = ""  # must be in the error message
    reference: str = ""  # whose result is expected, see references.py; "": that of the command
    unprivileged: bool = False  # run without root's right to ignore file permissions


def flip_byte(data: bytes, at: int, bits: int = 0x55) -> bytes:
    changed = bytearray(data)
    changed[at] ^= bits
    return bytes(changed)


def head(seed: int) -> np.ndarray:
    return toys.head(SHAPE, seed, AFFINE)


def make_valid_files(root: Path) -> ValidFiles:
    """All but the cohort, which the tests create with `anofpdm prepare`."""
    files = ValidFiles(root)
    for seed, modality in enumerate(MODALITIES):
        toys.save(files.scan_path(modality), head(seed), AFFINE)
    for number, name in enumerate(("AX T2 FLAIR", "AX T1", "AX T1 +C", "AX T2"), start=1):
        voxels, place = dicom_toys.head(6, 16, 14, seed=number), {"spacing": (7.2, 5.4), "step": 6.0}
        series = dicom_toys.Series(voxels, **place, SeriesNumber=number, SeriesDescription=name)
        series.save(files.study, f"S{number}_")
    for number in range(4):
        for seed, modality in enumerate(MODALITIES):
            toys.save(files.patients / f"q{number}_{modality}.nii.gz", head(10 * number + seed), AFFINE)
        lesion = toys.ball(AFFINE, SHAPE, (8, -8, 0), 24 if number % 2 else -1)
        toys.save(files.patients / f"q{number}_seg.nii.gz", lesion.astype(np.uint8), AFFINE)
    (root / "split.csv").write_text(SPLIT)
    _make_model(files.model)
    return files


def _make_model(folder: Path) -> None:
    """The bundled model, with fewer noise levels."""
    shutil.copytree(str(resources.files("anofpdm") / "models" / "phantom-tumour"), folder)
    calibration = json.loads((folder / "calibration.json").read_text())
    calibration["settings"]["levels"] = [calibration["settings"]["levels"][level] for level in LEVELS]
    for fit in calibration["fitted"]:
        for name in ("centre", "scale", "weights"):
            fit["curve"][name] = [fit["curve"][name][level] for level in LEVELS]
    (folder / "calibration.json").write_text(json.dumps(calibration))


# ---- commands --------------------------------------------------------------------------------------------------------


def segment(files: ValidFiles, *inputs: str, model: str = "", engine: str = "diffusion") -> list[str]:
    return ["segment", model or str(files.model), *inputs, "--out", "out", *FILES_ONLY, *ENGINES[engine]]


def segment_flair(files: ValidFiles, flair: str, *, model: str = "", engine: str = "diffusion") -> list[str]:
    """`flair`, and the other three modalities of the valid scan."""
    others = (f"{modality}={files.scan_path(modality)}" for modality in MODALITIES[1:])
    return segment(files, f"flair={flair}", *others, model=model, engine=engine)


def segment_valid(files: ValidFiles, *, model: str = "", engine: str = "diffusion") -> list[str]:
    return segment_flair(files, str(files.scan_path()), model=model, engine=engine)


def prepare(*options: str) -> list[str]:
    return ["prepare", "brats21", "src", "out", *SMALL, *options]


def prepare_patients(files: ValidFiles, *options: str) -> list[str]:
    layout = "nifti" if "--labels" in options else "brats21"
    return ["prepare", layout, str(files.patients), "out", *SMALL, *options]


def prepare_flair(folder: Path, files: ValidFiles) -> list[str]:
    """p_flair, which is in src/ already, and the other three modalities."""
    copy_others(folder / "src", files)
    return prepare()


def copy_others(folder: Path, files: ValidFiles, subject: str = "p") -> None:
    for modality in MODALITIES[1:]:
        shutil.copy(files.scan_path(modality), folder / f"{subject}_{modality}.nii.gz")


def prepare_cohort(files: ValidFiles) -> list[str]:
    split = str(files.root / "split.csv")
    return ["prepare", "brats21", str(files.patients), str(files.cohort), "--size", "64", "--split", split]


def calibrate(model: str, cohort: str) -> list[str]:
    return ["calibrate", model, cohort, "--levels", "2", "--strengths", "2"]


def evaluate(files: ValidFiles, cohort: str) -> list[str]:
    return ["evaluate", str(files.model), cohort, "--out", "out", "--levels", "2", "--strengths", "2", "--seeds", "1"]
