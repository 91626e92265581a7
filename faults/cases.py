"""The commands that a night is spent on: how each begins, how it goes on, and what counts as done."""

import hashlib
import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from commands import contents

from anofpdm.cohorts import open_cohort
from anofpdm.network import checkpoint

CPU = ("--device", "cpu")
QUICK = ("--levels", "3", "--strengths", "0,2", *CPU)
STEPS = 12

Words = tuple[str | Path, ...]
Done = frozenset[Hashable]


@dataclass(frozen=True)
class Case:
    """One command on one output folder."""

    name: str
    begin: Callable[[Path], Words]
    done: Callable[[Path], Done]  # whole pieces of work found in the folder; each is opened and checked
    result: Callable[[Path], dict[str, str]]  # what a finished run and an undisturbed one must have in common
    compared_by: str
    go_on: Callable[[Path], Words] | None = None  # none given: the same command

    def next(self, out: Path) -> Words:
        return (self.go_on or self.begin)(out)


def prepare_case(scans: Path, workers: int = 2) -> Case:
    def begin(out: Path) -> Words:
        return "prepare", "brats21", scans, out, "--size", "16", "--workers", str(workers)

    def done(out: Path) -> Done:
        if (out / "manifest.json").is_file():
            open_cohort(out)
        journal = out / "journal.jsonl"
        whole = journal.read_bytes().rpartition(b"\n")[0].split(b"\n") if journal.is_file() else []
        return frozenset(whole[1:])

    return Case("prepare", begin, done, contents, "every file, byte by byte")


def train_case(cohort: Path, *, save_minutes: str) -> Case:
    def begin(out: Path) -> Words:
        chosen = ("--preset", "tiny", "--batch", "4")
        return "train", cohort, "--out", out, *chosen, *limits

    def go_on(out: Path) -> Words:
        """Killed before its first save, a run has nothing to go on from."""
        if not (out / checkpoint.STATE).is_file():
            return begin(out)
        return "train", cohort, "--out", out, "--resume", *limits

    def done(out: Path) -> Done:
        """Steps that are safe. What is there must be whole: both are read and checked against their hashes."""
        if (out / checkpoint.WEIGHTS).is_file():
            checkpoint.load_model(out)
        if (out / checkpoint.CONFIG).is_file():
            json.loads((out / checkpoint.CONFIG).read_text())
        if not (out / checkpoint.STATE).is_file():
            return frozenset()
        return frozenset(range(checkpoint.load_state(out)[1]["step"]))

    def result(out: Path) -> dict[str, str]:
        """Tensors and configuration, not files: the library writes a file's two entries of metadata in any order."""
        state, said = checkpoint.load_state(out)
        weights, _, digest = checkpoint.load_model(out)
        tensors = {f"state {n}": t for n, t in state.items()} | {f"weights {n}": t for n, t in weights.items()}
        hashes = {name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in tensors.items()}
        log = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        assert [line["step"] for line in log] == sorted({line["step"] for line in log}), "a step is in the log twice"
        config = json.loads((out / checkpoint.CONFIG).read_text())
        assert config["sha256"] == digest, "config.json is not of these weights"
        return {**hashes, "said": json.dumps([said, config]), "loss": f"{log[-1]['step']} {log[-1]['loss']}"}

    limits = ("--steps", str(STEPS), "--save-minutes", save_minutes, "--no-pictures", *CPU)
    return Case("train", begin, done, result, "every tensor of weights and state, bit by bit", go_on)


def segment_case(model: Path, cohort: Path) -> Case:
    def begin(out: Path) -> Words:
        return "segment", model, cohort, "--out", out, "--engine", "diffusion", *CPU

    def done(out: Path) -> Done:
        """A scan with a summary is whole; its files are what they would be anyway."""
        scans = [path.parent for path in out.glob("*/summary.json")]
        return frozenset((scan.name, *sorted(_visible(contents(scan)).items())) for scan in scans)

    return Case("segment", begin, done, contents, "every file but the seconds it took, byte by byte")


def evaluate_case(model: Path, cohort: Path) -> Case:
    def begin(out: Path) -> Words:
        methods = ("--method", "anofpdm-ddim", "--method", "ddim-classifier-free", "--first-setting", "--seeds", "2")
        return "evaluate", model, cohort, "--out", out, *methods, "--sample", "8", "--tune", "8", *QUICK

    def done(out: Path) -> Done:
        """Numbers that are there have their slices beside them."""
        found = []
        for path in out.glob("methods/*/*.json"):
            with np.load(path.with_suffix(".npz"), allow_pickle=False) as slices:
                assert all(len(slices[name]) for name in slices.files)
            here = contents(path.parent)
            pair = (path.name, path.with_suffix(".npz").name)
            found.append((path.parent.name, *((name, here[name]) for name in pair)))
        return frozenset(found)

    def result(out: Path) -> dict[str, str]:
        """Tables and the page repeat results.json and name the seconds that it took."""
        return {n: d for n, d in contents(out).items() if not n.endswith((".md", ".tex", ".html"))}

    return Case("evaluate", begin, done, result, "all numbers, maps and masks, byte by byte")


def phantom_case() -> Case:
    def begin(out: Path) -> Words:
        small = ("--size", "32", "--slices", "16", "--seed", "1")
        return "phantom", out, "--kind", "tumour", "--patients", "8", *small, "--workers", "2"

    return Case("phantom", begin, _no_pieces, contents, "every file, byte by byte")


def calibrate_case(cohort: Path) -> Case:
    """Its output folder is the model's."""

    def begin(out: Path) -> Words:
        return "calibrate", out, cohort, *QUICK

    return Case("calibrate", begin, _no_pieces, contents, "every file, byte by byte")


def distill_case(cohort: Path) -> Case:
    """Its output folder is the model's."""

    def begin(out: Path) -> Words:
        return "distill", out, cohort, "--steps", "3", "--width", "8", *CPU

    def result(out: Path) -> dict[str, str]:
        weights, said, _ = checkpoint.load_model(out / "student")
        hashes = {name: hashlib.sha256(tensor.numpy().tobytes()).hexdigest() for name, tensor in weights.items()}
        return {**hashes, "said": json.dumps(said)}

    return Case("distill", begin, _no_pieces, result, "every tensor, bit by bit")


def _no_pieces(_out: Path) -> Done:
    return frozenset()


def _visible(files: dict[str, str]) -> dict[str, str]:
    """Without what a killed write left behind: that is looked at when the run is over."""
    return {name: digest for name, digest in files.items() if not name.startswith(".")}
