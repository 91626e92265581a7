"""The long-running commands: how to start and resume each, and what its output folder must contain."""

import json
import shutil
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anofpdm.cohorts import open_cohort
from anofpdm.network import checkpoint
from faults.folders import hash_files
from faults.processes import Argument

CPU = ("--device", "cpu")
QUICK = ("--levels", "3", "--strengths", "0,2", *CPU)
NATIVE, RAW = "evaluate --native", "segment raw series"
NAMES = ("phantom", "prepare", "train", "calibrate", "distill", "segment", RAW, "evaluate", NATIVE, "score")
INTO_MODEL = ("calibrate", "distill")  # their output folder is the model
LOCKED = tuple(name for name in NAMES if name not in ("calibrate", RAW))
METHODS = ("--method", "anofpdm-ddim", "--method", "ddim-classifier-free", "--first-setting", "--seeds", "2")

TRAINING = ("--steps", "12", "--save-minutes", "0", *CPU)

Arguments = tuple[Argument, ...]
Completed = frozenset[Hashable]


@dataclass(frozen=True)
class Input:
    """What the commands read: a small world with a model, many scans with predicted masks, and a raw study."""

    toy: Path
    many_scans: Path
    study: Path

    @property
    def predicted(self) -> Path:
        """Masks for the many scans, in a folder beside them."""
        return self.many_scans.with_name("predicted")


@dataclass(frozen=True)
class Command:
    """One command, for any output folder."""

    name: str
    files: Input

    def start(self, out: Path) -> Arguments:
        """The arguments of `anofpdm`."""
        model, cohort, scans = self.files.toy / "model", self.files.toy / "cohort", self.files.many_scans
        native = ("--native", self.files.toy / "scans", "--engine", "diffusion", "--split", "train", "--workers", "1")
        paths = sorted(self.files.study.iterdir())
        series = (f"{path.name.removesuffix('.nii.gz').rpartition('_')[2]}={path}" for path in paths)
        starts: dict[str, Arguments] = {
            "phantom": ("phantom", out, "--kind", "tumour", "--patients", "8", "--size", "32", "--slices", "16",
                        "--seed", "1", "--workers", "2"),
            "prepare": ("prepare", "brats21", scans, out, "--size", "16", "--workers", "2"),
            "train": ("train", cohort, "--out", out, "--preset", "tiny", "--batch", "4", *TRAINING),
            "calibrate": ("calibrate", out, cohort, *QUICK),
            "distill": ("distill", out, cohort, "--steps", "3", "--width", "8", *CPU),
            "segment": ("segment", model, cohort, "--out", out, "--engine", "diffusion", *CPU),
            RAW: ("segment", "phantom-tumour", *series, "--out", out, "--engine", "student", *CPU),
            "evaluate": ("evaluate", model, cohort, "--out", out, *METHODS, "--sample", "8", "--tune", "8", *QUICK),
            NATIVE: ("evaluate", model, cohort, "--out", out, *native, *CPU),
            "score": ("score", self.files.predicted, scans, "--out", out, "--image", scans, "--workers", "2"),
        }  # fmt: skip
        return starts[self.name]

    def resume(self, out: Path) -> Arguments:
        """The same arguments; training has an option for it, but before the first save there is nothing to resume."""
        if self.name == "train" and (out / checkpoint.STATE).is_file():
            return ("train", self.files.toy / "cohort", "--out", out, "--resume", *TRAINING)
        return self.start(out)

    def create_folder(self, out: Path) -> Path:
        """Create what the command needs to find in its output folder: a copy of the model, or nothing."""
        if self.name in INTO_MODEL:
            shutil.copytree(self.files.toy / "model", out)
        if self.name == "calibrate":
            for name in ("calibration.json", "calibration.png"):
                (out / name).unlink()
        return out

    def lock(self, out: Path) -> Path:
        return out / ("student" if self.name == "distill" else "") / ".lock"

    def completed(self, out: Path) -> Completed:
        """Complete pieces of work in the folder, opened and checked."""
        return COMPLETED[self.name](out) if self.name in COMPLETED else frozenset()

    def result(self, out: Path) -> dict[str, str]:
        """What must be the same as after an undisturbed run: all files, byte by byte, or tensor by tensor."""
        compared = COMPARED.get(self.name, lambda _name: True)
        hashes = {name: digest for name, digest in hash_files(out).items() if compared(name)}
        if self.name == "train":
            steps = [json.loads(line)["step"] for line in (out / "log.jsonl").read_text().splitlines()]
            assert steps == sorted(set(steps)), "a step is in the log twice"
        return hashes


COMPARED: dict[str, Callable[[str], bool]] = {  # files that do not vary; others: all
    RAW: lambda name: name.endswith(".nii.gz"),  # the summary records which stages of the preparation were reused
    "evaluate": lambda name: not name.endswith((".md", ".tex", ".html")),  # pages contain measured seconds
    "train": lambda name: not name.startswith(("log", "state.previous")),  # speeds, and an earlier save
    "distill": lambda name: "log" not in name,
}


# ---- complete pieces of work -----------------------------------------------------------------------------------------


def _prepared(out: Path) -> Completed:
    if (out / "manifest.json").is_file():
        open_cohort(out)
    journal = out / "journal.jsonl"
    lines = journal.read_bytes().rpartition(b"\n")[0].split(b"\n") if journal.is_file() else []
    return frozenset(lines[1:])


def _segmented(out: Path) -> Completed:
    """A scan with a summary is complete. Temporary files of a killed write are checked elsewhere."""
    scans = [path.parent for path in out.rglob("summary.json")]
    files = {scan.name: hash_files(scan).items() for scan in scans}
    return frozenset((scan, *sorted(f for f in some if not f[0].startswith("."))) for scan, some in files.items())


def _evaluated(out: Path) -> Completed:
    """Every file of scores has the file of its slices beside it."""
    pairs = []
    for path in out.glob("methods/*/*.json"):
        with np.load(path.with_suffix(".npz"), allow_pickle=False) as slices:
            assert all(len(slices[name]) for name in slices.files)
        hashes = hash_files(path.parent)
        pairs.append((path.parent.name, *(hashes[f"{path.stem}{suffix}"] for suffix in (".json", ".npz"))))
    return frozenset(pairs)


def _scored(out: Path) -> Completed:
    return frozenset(file for file in hash_files(out).items() if not file[0].startswith("."))


def _saved_steps(out: Path) -> Completed:
    """Weights and state are read, and so checked against their hashes."""
    if (out / checkpoint.WEIGHTS).is_file():
        checkpoint.load_model(out)
    if (out / checkpoint.CONFIG).is_file():
        json.loads((out / checkpoint.CONFIG).read_text())
    if not (out / checkpoint.STATE).is_file():
        return frozenset()
    return frozenset(range(checkpoint.load_state(out)[1]["step"]))


COMPLETED: dict[str, Callable[[Path], Completed]] = {
    "prepare": _prepared, "train": _saved_steps, "segment": _segmented, NATIVE: _segmented, "evaluate": _evaluated,
    "score": _scored,
}  # fmt: skip
