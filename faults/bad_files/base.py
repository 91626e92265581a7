"""Valid files to start from, the commands that read them, and what a case of the corpus is."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np

from tests import dicom_toys, toys

MODALITIES = ("flair", "t1", "t1ce", "t2")
SHAPE = (20, 20, 5)
AFFINE = toys.affine_of("LPS", (8, 8, 24), shape=SHAPE)  # as large as a head
LEVELS = (0, 8)  # of the twenty of the bundled calibration: fast, and enough for a map to compare
ENGINES = {  # a mask in every slice, to compare with
    "diffusion": ("--engine", "diffusion", "--detector", "none", "--smallest", "0"),
    "student": ("--engine", "student"),
}
LABELS = "subject,slice,label\nq0,,healthy\nq1,2,unhealthy\nq2,,0\nq3,,unhealthy\n"
SPLIT = "patient,split\nq0,val\nq1,val\nq2,test\nq3,test\n"
FLAIR = "scan/p_flair.nii.gz"

Command = tuple[str, ...]
Change = Callable[[bytes], bytes]
Edit = Callable[[Path], object]  # of the file or folder at a path


def segment(*inputs: str, engine: str = "diffusion") -> Command:
    return ("segment", "model7", *inputs, "--out", "out", "--no-pictures", "--no-report", *ENGINES[engine])


def segment_flair(flair: str = FLAIR, engine: str = "diffusion") -> Command:
    """This file, and the other three modalities of the valid scan."""
    others = (f"{modality}=scan/p_{modality}.nii.gz" for modality in MODALITIES[1:])
    return segment(f"flair={flair}", *others, engine=engine)


def prepare(source: str, *options: str, layout: str = "brats21", out: str = "out") -> Command:
    return ("prepare", layout, source, out, "--workers", "1", "--size", "64", *options)


WITH_LABELS = prepare("patients7", "--labels", "labels.csv", layout="nifti")
WITH_SPLIT = prepare("patients7", "--split", "split.csv")
CALIBRATE = ("calibrate", "model7", "cohort7", "--levels", "2", "--strengths", "2")
EVALUATE = ("evaluate", "model7", "cohort7", "--out", "out", "--levels", "2", "--strengths", "2", "--seeds", "1")


@dataclass(frozen=True)
class Case:
    """A command run in a folder that holds the valid files, with an edit at one path."""

    name: str
    command: Command
    path: str
    edit: Edit
    valid: bool = False  # otherwise it must be refused
    mentions: str = ""  # must be in the error message; default: the name of the edited file
    reference: Command = ()  # whose result with valid files is expected; default: that of `command`
    unprivileged: bool = False  # run without root's right to ignore file permissions

    def set_up(self, folder: Path, valid_files: Path) -> None:
        """Links to the valid files; copies of those that are edited or written to."""
        copied = {self.path.split("/")[0], "model7" if self.command[0] == "calibrate" else ""}
        for source in valid_files.iterdir():
            target = folder / source.name
            if source.name not in copied:
                target.symlink_to(source)
            elif source.is_dir():
                shutil.copytree(source, target)
            else:
                shutil.copy(source, target)
        self.edit(folder / self.path)


def rows(
    prefix: str, command: Command, path: str, edits: Mapping[str, Edit], *, mentions: str = "", valid: bool = False
) -> Iterator[Case]:
    """One case for each edit: refused, or, where it is valid, with the result of the valid files."""
    for name, edit in edits.items():
        yield Case(f"{prefix} {name}", command, path, edit, valid, mentions)


# ---- edits -----------------------------------------------------------------------------------------------------------


def write(content: bytes | str) -> Edit:
    data = content.encode() if isinstance(content, str) else content
    return lambda path: path.write_bytes(data)


def change(function: Change) -> Edit:
    return lambda path: path.write_bytes(function(path.read_bytes()))


def replace(put: Edit) -> Edit:
    """Something else instead of a file or folder."""

    def edit(path: Path) -> None:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        put(path)

    return edit


def flip_byte(data: bytes, at: int, bits: int = 0x55) -> bytes:
    changed = bytearray(data)
    changed[at] ^= bits
    return bytes(changed)


def damages(truncated_at: tuple[int, ...], flipped_at: tuple[int, ...]) -> dict[str, Change]:
    cuts = {f"truncated at {at}": lambda data, at=at: data[:at] for at in truncated_at}
    return cuts | {f"flipped at {at}": lambda data, at=at: flip_byte(data, at) for at in flipped_at}


def changes(functions: Mapping[str, Change]) -> dict[str, Edit]:
    return {name: change(function) for name, function in functions.items()}


def contents(texts: Mapping[str, bytes | str]) -> dict[str, Edit]:
    return {name: write(text) for name, text in texts.items()}


# ---- valid files -----------------------------------------------------------------------------------------------------


def head(seed: int) -> np.ndarray:
    return toys.head(SHAPE, seed, AFFINE)


def make_valid_files(root: Path) -> None:
    """All but cohort7, which the tests create with `anofpdm prepare`."""
    for seed, modality in enumerate(MODALITIES):
        toys.save(root / "scan" / f"p_{modality}.nii.gz", head(seed), AFFINE)
    for number, name in enumerate(("AX T2 FLAIR", "AX T1", "AX T1 +C", "AX T2"), start=1):
        voxels = dicom_toys.head(6, 16, 14, seed=number)
        tags = {"SeriesNumber": number, "SeriesDescription": name}
        series = dicom_toys.Series(voxels, spacing=(7.2, 5.4), step=6.0, **tags)
        series.save(root / "study", f"S{number}_")
    dicom_toys.zipped(root / "study", root / "study.zip")
    for number in range(4):
        for seed, modality in enumerate(MODALITIES):
            toys.save(root / "patients7" / f"q{number}_{modality}.nii.gz", head(10 * number + seed), AFFINE)
        lesion = toys.ball(AFFINE, SHAPE, (8, -8, 0), 24 if number % 2 else -1).astype(np.uint8)
        toys.save(root / "patients7" / f"q{number}_seg.nii.gz", lesion, AFFINE)
    predicted = np.roll(lesion, 1, axis=0)
    toys.save(root / "p_mask.nii", predicted, AFFINE)
    (root / "split.csv").write_text(SPLIT)
    (root / "labels.csv").write_text(LABELS)
    _make_model(root / "model7")


def _make_model(folder: Path) -> None:
    """The bundled model, with fewer noise levels."""
    shutil.copytree(str(resources.files("anofpdm") / "models" / "phantom-tumour"), folder)
    calibration = json.loads((folder / "calibration.json").read_text())
    calibration["settings"]["levels"] = [calibration["settings"]["levels"][level] for level in LEVELS]
    for fit in calibration["fitted"]:
        for name in ("centre", "scale", "weights"):
            fit["curve"][name] = [fit["curve"][name][level] for level in LEVELS]
    (folder / "calibration.json").write_text(json.dumps(calibration))
