"""The long-running commands: how to start and resume each, and what its output folder must contain."""

import hashlib
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
STEPS = 12
NATIVE = "evaluate --native"
NAMES = ("phantom", "prepare", "train", "calibrate", "distill", "segment", "evaluate", NATIVE, "score")
INTO_MODEL = ("calibrate", "distill")  # their output folder is the model
LOCK_FOLDERS = {
    "phantom": "", "prepare": "", "train": "", "distill": "student", "segment": "", "evaluate": "", NATIVE: "",
    "score": "",
}  # fmt: skip

Arguments = tuple[Argument, ...]
Completed = frozenset[Hashable]


@dataclass(frozen=True)
class Command:
    """One command, for any output folder."""

    name: str
    start: Callable[[Path], Arguments]
    completed: Callable[[Path], Completed]  # complete pieces of work in the folder, each opened and checked
    result: Callable[[Path], dict[str, str]]  # what must be the same as after an undisturbed run
    compared: str
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
    cohort = toy / "cohort"
    makers: dict[str, Callable[[], Command]] = {
        "phantom": phantom,
        "prepare": lambda: prepare(many_scans),
        "train": lambda: train(cohort, save_minutes="0"),
        "calibrate": lambda: calibrate(cohort),
        "distill": lambda: distill(cohort),
        "segment": lambda: segment(toy / "model", cohort),
        "evaluate": lambda: evaluate(toy / "model", cohort),
        NATIVE: lambda: evaluate_native(toy / "model", cohort, toy / "scans"),
        "score": lambda: score(many_scans),
    }
    return makers[name]()


def prepare(scans: Path) -> Command:
    def start(out: Path) -> Arguments:
        return "prepare", "brats21", scans, out, "--size", "16", "--workers", "2"

    def completed(out: Path) -> Completed:
        if (out / "manifest.json").is_file():
            open_cohort(out)
        journal = out / "journal.jsonl"
        lines = journal.read_bytes().rpartition(b"\n")[0].split(b"\n") if journal.is_file() else []
        return frozenset(lines[1:])

    return Command("prepare", start, completed, hash_files, "all files, byte by byte")


def train(cohort: Path, *, save_minutes: str) -> Command:
    limits = ("--steps", str(STEPS), "--save-minutes", save_minutes, "--no-pictures", *CPU)

    def start(out: Path) -> Arguments:
        return "train", cohort, "--out", out, "--preset", "tiny", "--batch", "4", *limits

    def resume(out: Path) -> Arguments:
        """Before the first save there is nothing to resume from."""
        if not (out / checkpoint.STATE).is_file():
            return start(out)
        return "train", cohort, "--out", out, "--resume", *limits

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
    tensors = {f"state {n}": t for n, t in state.items()} | {f"weights {n}": t for n, t in weights.items()}
    hashes = {name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in tensors.items()}
    log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == sorted({line["step"] for line in log}), "a step is in the log twice"
    config = json.loads((out / checkpoint.CONFIG).read_text())
    assert config["sha256"] == digest, "config.json does not match the weights"
    return {**hashes, "payload": json.dumps([payload, config]), "loss": f"{log[-1]['step']} {log[-1]['loss']}"}


def segment(model: Path, cohort: Path) -> Command:
    def start(out: Path) -> Arguments:
        return "segment", model, cohort, "--out", out, "--engine", "diffusion", *CPU

    return Command("segment", start, _segmented, hash_files, "all files except measured seconds, byte by byte")


def _segmented(out: Path) -> Completed:
    """A scan with a summary is complete. Temporary files of a killed write are checked elsewhere."""
    scans = [path.parent for path in out.glob("*/summary.json")]
    files = {scan.name: hash_files(scan).items() for scan in scans}
    return frozenset((scan, *sorted(f for f in some if not f[0].startswith("."))) for scan, some in files.items())


def evaluate(model: Path, cohort: Path) -> Command:
    def start(out: Path) -> Arguments:
        methods = ("--method", "anofpdm-ddim", "--method", "ddim-classifier-free", "--first-setting", "--seeds", "2")
        return "evaluate", model, cohort, "--out", out, *methods, "--sample", "8", "--tune", "8", *QUICK

    def completed(out: Path) -> Completed:
        """Every file of scores has the file of its slices beside it."""
        pairs = []
        for path in out.glob("methods/*/*.json"):
            with np.load(path.with_suffix(".npz"), allow_pickle=False) as slices:
                assert all(len(slices[name]) for name in slices.files)
            hashes = hash_files(path.parent)
            pair = (path.name, path.with_suffix(".npz").name)
            pairs.append((path.parent.name, *((name, hashes[name]) for name in pair)))
        return frozenset(pairs)

    def result(out: Path) -> dict[str, str]:
        """Tables and the page repeat results.json and contain measured seconds."""
        return {name: digest for name, digest in hash_files(out).items() if not name.endswith((".md", ".tex", ".html"))}

    return Command("evaluate", start, completed, result, "all scores, maps and masks, byte by byte")


def evaluate_native(model: Path, cohort: Path, scans: Path) -> Command:
    def start(out: Path) -> Arguments:
        options = ("--engine", "diffusion", "--split", "train", "--workers", "1", *CPU)
        return "evaluate", model, cohort, "--native", scans, "--out", out, *options

    def completed(out: Path) -> Completed:
        return _segmented(out / "diffusion")

    return Command(NATIVE, start, completed, hash_files, "all masks, scores and pages, byte by byte")


def score(scans: Path) -> Command:
    def start(out: Path) -> Arguments:
        return "score", predicted_masks(scans), scans, "--out", out, "--image", scans, "--workers", "2"

    def completed(out: Path) -> Completed:
        return frozenset(file for file in hash_files(out).items() if not file[0].startswith("."))

    return Command("score", start, completed, hash_files, "all tables and the page, byte by byte")


def predicted_masks(scans: Path) -> Path:
    """The folder of predictions for a cohort of scans, beside it."""
    return scans.with_name("predicted")


def phantom() -> Command:
    def start(out: Path) -> Arguments:
        small = ("--size", "32", "--slices", "16", "--seed", "1")
        return "phantom", out, "--kind", "tumour", "--patients", "8", *small, "--workers", "2"

    return Command("phantom", start, _nothing, hash_files, "all files, byte by byte")


def calibrate(cohort: Path) -> Command:
    def start(out: Path) -> Arguments:
        return "calibrate", out, cohort, *QUICK

    return Command("calibrate", start, _nothing, hash_files, "all files, byte by byte")


def distill(cohort: Path) -> Command:
    def start(out: Path) -> Arguments:
        return "distill", out, cohort, "--steps", "3", "--width", "8", *CPU

    def result(out: Path) -> dict[str, str]:
        weights, payload, _ = checkpoint.load_model(out / "student")
        hashes = {name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in weights.items()}
        return {**hashes, "payload": json.dumps(payload)}

    return Command("distill", start, _nothing, result, "all tensors, bit by bit")


def _nothing(_out: Path) -> Completed:
    return frozenset()
