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
STEPS = 12
NATIVE = "evaluate --native"
NAMES = ("phantom", "prepare", "train", "calibrate", "distill", "segment", "evaluate", NATIVE, "score")
INTO_MODEL = ("calibrate", "distill")  # their output folder is the model
LOCK_FOLDERS = {name: "student" if name == "distill" else "" for name in NAMES if name != "calibrate"}
METHODS = ("--method", "anofpdm-ddim", "--method", "ddim-classifier-free", "--first-setting", "--seeds", "2")

Arguments = tuple[Argument, ...]
Completed = frozenset[Hashable]


def _nothing(_out: Path) -> Completed:
    return frozenset()


@dataclass(frozen=True)
class Command:
    """One command, for any output folder."""

    name: str
    start: Callable[[Path], Arguments]
    completed: Callable[[Path], Completed] = _nothing  # complete pieces of work in the folder, opened and checked
    result: Callable[[Path], dict[str, str]] = hash_files  # what must be the same as after an undisturbed run
    compared: str = "all files except measured seconds, byte by byte"
    resume_with: Callable[[Path], Arguments] | None = None  # None: the same arguments

    def resume(self, out: Path) -> Arguments:
        return (self.resume_with or self.start)(out)

    def create_folder(self, out: Path, toy: Path) -> Path:
        """Create what the command needs to find in its output folder: a copy of the model, or nothing."""
        if self.name in INTO_MODEL:
            shutil.copytree(toy / "model", out)
        return out

    def lock(self, out: Path) -> Path:
        return out / LOCK_FOLDERS[self.name] / ".lock"


def command_named(name: str, toy: Path, many_scans: Path) -> Command:
    model, cohort, scans = toy / "model", toy / "cohort", many_scans
    small = ("--kind", "tumour", "--patients", "8", "--size", "32", "--slices", "16", "--seed", "1", "--workers", "2")
    sample = ("--sample", "8", "--tune", "8", *QUICK)
    native = ("--native", toy / "scans", "--engine", "diffusion", "--split", "train", "--workers", "1", *CPU)
    commands = (
        Command("phantom", lambda out: ("phantom", out, *small)),
        prepare(scans),
        train(cohort, save_minutes="0"),
        Command("calibrate", lambda out: ("calibrate", out, cohort, *QUICK)),
        Command(
            "distill",
            lambda out: ("distill", out, cohort, "--steps", "3", "--width", "8", *CPU),
            result=_distilled,
            compared="all tensors, bit by bit",
        ),
        Command(
            "segment",
            lambda out: ("segment", model, cohort, "--out", out, "--engine", "diffusion", *CPU),
            _segmented,
        ),
        Command(
            "evaluate",
            lambda out: ("evaluate", model, cohort, "--out", out, *METHODS, *sample),
            _evaluated,
            _without_pages,
        ),
        Command(
            NATIVE,
            lambda out: ("evaluate", model, cohort, "--out", out, *native),
            lambda out: _segmented(out / "diffusion"),
        ),
        Command(
            "score",
            lambda out: ("score", predicted_masks(scans), scans, "--out", out, "--image", scans, "--workers", "2"),
            lambda out: frozenset(file for file in hash_files(out).items() if not file[0].startswith(".")),
        ),
    )
    return next(command for command in commands if command.name == name)


def predicted_masks(scans: Path) -> Path:
    """The folder of predictions for a cohort of scans, beside it."""
    return scans.with_name("predicted")


def prepare(scans: Path) -> Command:
    return Command(
        "prepare", lambda out: ("prepare", "brats21", scans, out, "--size", "16", "--workers", "2"), _prepared
    )


def _prepared(out: Path) -> Completed:
    if (out / "manifest.json").is_file():
        open_cohort(out)
    journal = out / "journal.jsonl"
    lines = journal.read_bytes().rpartition(b"\n")[0].split(b"\n") if journal.is_file() else []
    return frozenset(lines[1:])


def _segmented(out: Path) -> Completed:
    """A scan with a summary is complete. Temporary files of a killed write are checked elsewhere."""
    scans = [path.parent for path in out.glob("*/summary.json")]
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


def _without_pages(out: Path) -> dict[str, str]:
    """Tables and the page repeat results.json and contain measured seconds."""
    return {name: digest for name, digest in hash_files(out).items() if not name.endswith((".md", ".tex", ".html"))}


def _distilled(out: Path) -> dict[str, str]:
    weights, payload, _ = checkpoint.load_model(out / "student")
    return {**_hash_tensors(weights), "payload": json.dumps(payload)}


def _hash_tensors(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in tensors.items()}


# ---- training --------------------------------------------------------------------------------------------------------


def train(cohort: Path, *, save_minutes: str) -> Command:
    limits = ("--steps", str(STEPS), "--save-minutes", save_minutes, "--no-pictures", *CPU)

    def start(out: Path) -> Arguments:
        return "train", cohort, "--out", out, "--preset", "tiny", "--batch", "4", *limits

    def resume(out: Path) -> Arguments:
        """Before the first save there is nothing to resume from."""
        saved = (out / checkpoint.STATE).is_file()
        return ("train", cohort, "--out", out, "--resume", *limits) if saved else start(out)

    return Command("train", start, _saved_steps, _trained, "all tensors of weights and state, bit by bit", resume)


def _saved_steps(out: Path) -> Completed:
    """Weights and state are read, and so checked against their hashes."""
    if (out / checkpoint.WEIGHTS).is_file():
        checkpoint.load_model(out)
    if (out / checkpoint.CONFIG).is_file():
        json.loads((out / checkpoint.CONFIG).read_text())
    if not (out / checkpoint.STATE).is_file():
        return frozenset()
    return frozenset(range(checkpoint.load_state(out)[1]["step"]))


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
