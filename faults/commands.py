"""The long-running commands: how to start and resume each, and what its output folder must contain."""

import hashlib
import json
import shutil
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import Tensor

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

Arguments = tuple[Argument, ...]
Completed = frozenset[Hashable]


@dataclass(frozen=True)
class Input:
    """What the commands read: a small world with a model, many scans with predicted masks, and a raw study."""

    toy: Path
    many_scans: Path
    study: Path


def predicted_masks(scans: Path) -> Path:
    """The folder of predictions for a cohort of scans, beside it."""
    return scans.with_name("predicted")


def start_command(name: str, files: Input, out: Path) -> Arguments:
    model, cohort, scans = files.toy / "model", files.toy / "cohort", files.many_scans
    native = ("--native", files.toy / "scans", "--engine", "diffusion", "--split", "train", "--workers", "1", *CPU)
    series = (
        f"{path.name.removesuffix('.nii.gz').rpartition('_')[2]}={path}" for path in sorted(files.study.iterdir())
    )
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
        NATIVE: ("evaluate", model, cohort, "--out", out, *native),
        "score": ("score", predicted_masks(scans), scans, "--out", out, "--image", scans, "--workers", "2"),
    }  # fmt: skip
    return starts[name]


TRAINING = ("--steps", "12", "--save-minutes", "0", "--no-pictures", *CPU)


@dataclass(frozen=True)
class Command:
    """One command, for any output folder."""

    name: str
    files: Input

    def start(self, out: Path) -> Arguments:
        return start_command(self.name, self.files, out)

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
        """What must be the same as after an undisturbed run."""
        return RESULTS.get(self.name, hash_files)(out)


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


# ---- results; all files except measured seconds, byte by byte, unless stated otherwise -------------------------------


def _images(out: Path) -> dict[str, str]:
    """The summary also records which stages of the preparation were reused."""
    return {name: digest for name, digest in hash_files(out).items() if name.endswith(".nii.gz")}


def _without_pages(out: Path) -> dict[str, str]:
    """Tables and the page repeat results.json and contain measured seconds."""
    return {name: digest for name, digest in hash_files(out).items() if not name.endswith((".md", ".tex", ".html"))}


def _hash_tensors(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in tensors.items()}


def _distilled(out: Path) -> dict[str, str]:
    weights, payload, _ = checkpoint.load_model(out / "student")
    return {**_hash_tensors(weights), "payload": json.dumps(payload)}


def _trained(out: Path) -> dict[str, str]:
    """Tensors and configuration, not files: safetensors writes the two entries of its metadata in any order."""
    state, payload = checkpoint.load_state(out)
    weights, _, digest = checkpoint.load_model(out)
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == sorted({line["step"] for line in log}), "a step is in the log twice"
    config = json.loads((out / checkpoint.CONFIG).read_text())
    assert config["sha256"] == digest, "config.json does not match the weights"
    hashes = {f"state {name}": text for name, text in _hash_tensors(state).items()} | _hash_tensors(weights)
    return {**hashes, "payload": json.dumps([payload, config]), "loss": f"{log[-1]['step']} {log[-1]['loss']}"}


RESULTS: dict[str, Callable[[Path], dict[str, str]]] = {
    RAW: _images, "evaluate": _without_pages, "distill": _distilled, "train": _trained,
}  # fmt: skip
