"""Raw studies against what is known of them.

    python benchmarks/raw.py brains RAW_GLIOMA
    python benchmarks/raw.py lesion MODEL RAW_GLIOMA
    python benchmarks/raw.py transforms RAW_MS
    python benchmarks/raw.py disturbed MODEL SCANS [--count 20]
    python benchmarks/raw.py cost MODEL RAW_GLIOMA

brains: DICE of extracted brains against `reference_brain_*`. lesion: DICE of the mask against
`reference_lesion_on_flair`, which is approximate. transforms: mean distance, inside the brain, of positions by our
registrations and by those of the publishers (`*_to_FLAIR.txt`). disturbed: every series that the model uses is moved
and sampled on a thick-slice grid of its own; DICE of the mask against that of the scan as it was, and against that of
perfectly registered series on the same grid; both masks against the scan's reference mask, if it has one; distance of
every registration to the movement. The series of the scan may not have been registered perfectly: how far registration
moves those is printed first. cost: seconds and peak memory of a four-series study, in a new process.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from raw_disturbed import read_transform
from raw_masks import DisturbedScores, Undisturbed, dice, distances_mm, disturb_once

from anofpdm.errors import ScanWarning
from anofpdm.raw.brain import extract_brain
from anofpdm.raw.cache import StudyCache
from anofpdm.raw.register import Head, register_rigid
from anofpdm.raw.study import Study
from anofpdm.scans import read_volume
from anofpdm.scans.grid import Grid
from anofpdm.segment.inputs import find_targets
from anofpdm.segment.model import load
from anofpdm.segment.segment_scan import study_options

SERIES = ("flair", "t1", "t1ce", "t2")
LEAST_BRAIN_DICE = {"flair": 0.95, "t1": 0.95, "t1ce": 0.95, "t2": 0.93}
MOST_MM = 1.0
LEAST_MEAN_DICE, LEAST_DICE = 0.95, 0.90
MOST_SECONDS, MOST_MIB = 90, 2048


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, words in {
        "brains": ["folder"], "lesion": ["model", "folder"], "transforms": ["folder"],
        "disturbed": ["model", "folder"], "cost": ["model", "folder"], "study": ["model", "folder"],
    }.items():  # fmt: skip
        command = commands.add_parser(name)
        for word in words:
            command.add_argument(word, type=Path)
        if name == "disturbed":
            command.add_argument("--count", type=int, default=20)
            command.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    measure = {
        "brains": measure_brains, "lesion": measure_lesion, "transforms": measure_transforms,
        "disturbed": measure_disturbed, "cost": measure_cost, "study": run_study,
    }  # fmt: skip
    warnings.simplefilter("ignore", ScanWarning)  # slices are thick
    measure[args.command](args)


def verdict(good: bool) -> str:
    return "met" if good else "NOT MET"


def series_files(folder: Path) -> dict[str, Path]:
    """One file per series, by the end of its name."""
    files = {name: [path for path in folder.glob(f"*_{name}.nii*") if "reference" not in path.name] for name in SERIES}
    return {name: paths[0] for name, paths in files.items() if paths}


# ---- real studies ----------------------------------------------------------------------------------------------------


def measure_brains(args: argparse.Namespace) -> None:
    print("| series | DICE | floor | | seconds |\n| --- | --- | --- | --- | --- |")
    for name, path in series_files(args.folder).items():
        volume = read_volume(path)
        truth = read_volume(args.folder / f"reference_brain_{name}.nii.gz").voxels > 0
        start = time.perf_counter()
        brain = extract_brain(volume.voxels, volume.grid, path)
        seconds, score = time.perf_counter() - start, dice(brain, truth)
        floor = LEAST_BRAIN_DICE[name]
        print(f"| {name} | {score:.3f} | {floor} | {verdict(score >= floor)} | {seconds:.1f} |", flush=True)


def measure_lesion(args: argparse.Namespace) -> None:
    model = load(args.model, "cpu")
    with tempfile.TemporaryDirectory() as folder:
        result = model.segment(series_files(args.folder), raw="always", raw_run=StudyCache(Path(folder), print))
    truth = read_volume(args.folder / "reference_lesion_on_flair.nii.gz").voxels > 0
    print(f"{result.volume_ml:.1f} ml, reference {truth.sum() * voxel_ml(result.grid):.1f} ml, ", end="")
    print(f"DICE {dice(result.mask, truth):.3f}")


def voxel_ml(grid: Grid) -> float:
    return float(abs(np.linalg.det(grid.affine[:3, :3])) / 1000)


def measure_transforms(args: argparse.Namespace) -> None:

    def head(path: Path) -> Head:
        volume = read_volume(path)
        brain = extract_brain(volume.voxels, volume.grid, path)
        return Head(volume.voxels.astype(np.float32), brain, volume.grid)

    reference = head(next(args.folder.glob("*_FLAIR.nii.gz")))
    print("| series | distance, mm | largest | limit | | without registration |\n" + "| --- " * 6 + "|")
    for transform in sorted(args.folder.glob("*_to_FLAIR.txt")):
        published = read_transform(transform)
        name = transform.name.removesuffix("_intrastudy_to_FLAIR.txt")
        registered = register_rigid(reference, head(args.folder / f"{name}.nii.gz"))
        ours, still = (distances_mm(matrix, published, reference) for matrix in (registered.matrix, np.eye(4)))
        met = verdict(ours.mean() <= MOST_MM)
        row = f"{ours.mean():.2f} | {ours.max():.2f} | {MOST_MM} | {met} | {still.mean():.2f}"
        print(f"| {name} | {row} |", flush=True)


# ---- constructed studies ---------------------------------------------------------------------------------------------


def measure_disturbed(args: argparse.Namespace) -> None:
    model, rng = load(args.model, "cpu"), np.random.default_rng(args.seed)
    targets = find_targets([str(args.folder)], model.modalities, None, None)
    scans = [Undisturbed.of_scan(model, target.subject) for target in targets[: args.count]]
    for target, scan in zip(targets, scans, strict=False):
        residuals = scan.residual_mm(model.scans.expects.template, model.request().modalities)
        moved = ", ".join(f"{name} {mm:.2f}" for name, mm in residuals.items())
        print(f"{target.subject.name}: registration of the scan as it was moves {moved} mm", flush=True)
    print("\n| scan | number | DICE to undisturbed | to perfect registration | perfect to undisturbed ", end="")
    print(
        "| undisturbed to reference mask | disturbed to it | registration error, mm | seconds |\n" + "| --- " * 9 + "|"
    )
    scores = []
    for number in range(args.count):
        start = time.perf_counter()
        score = disturb_once(model, scans[number % len(scans)], rng)
        errors = ", ".join(f"{name} {error:.2f}" for name, error in score.errors_mm.items())
        masks = (score.undisturbed, score.perfect, score.perfect_undisturbed)
        numbers = (*masks, score.reference_before, score.reference_after)
        row = " | ".join([*(f"{dice:.3f}" for dice in numbers), errors, f"{time.perf_counter() - start:.0f}"])
        print(f"| {targets[number % len(scans)].subject.name} | {number} | {row} |", flush=True)
        scores.append(score)
    print_summary(scores)


def print_summary(scores: Sequence[DisturbedScores]) -> None:
    for name, what in (("undisturbed", "undisturbed prediction"), ("perfect", "prediction with perfect registration")):
        values = np.array([getattr(score, name) for score in scores])
        met = verdict(values.mean() >= LEAST_MEAN_DICE and values.min() >= LEAST_DICE)
        print(f"\nDICE to the {what}: mean {values.mean():.3f} (floor {LEAST_MEAN_DICE}), ", end="")
        print(f"worst {values.min():.3f} (floor {LEAST_DICE}): {met}")
    before, after = (np.mean([getattr(score, f"reference_{when}") for score in scores]) for when in ("before", "after"))
    print(f"\nDICE to the reference masks: mean {before:.3f} undisturbed, {after:.3f} disturbed")
    errors_mm = np.array([error for score in scores for error in score.errors_mm.values()])
    if len(errors_mm):
        print(f"\nRegistration error: mean {errors_mm.mean():.2f} mm, worst {errors_mm.max():.2f} mm, ", end="")
        print(f"above {MOST_MM} mm in {(errors_mm > MOST_MM).sum()} of {len(errors_mm)} series")


# ---- cost ------------------------------------------------------------------------------------------------------------


def measure_cost(args: argparse.Namespace) -> None:
    start = time.perf_counter()
    words = [sys.executable, __file__, "study", str(args.model), str(args.folder)]
    subprocess.run(words, check=True)
    seconds = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    mib, computed = used.ru_maxrss / 1024, used.ru_utime + used.ru_stime
    cores = len(os.sched_getaffinity(0))
    print(f"{seconds:.0f} s on {cores} cores (limit {MOST_SECONDS} s): {verdict(seconds <= MOST_SECONDS)}", end="; ")
    print(f"{computed:.0f} s of computing")
    print(f"{mib:.0f} MiB at most (limit {MOST_MIB} MiB): {verdict(mib <= MOST_MIB)}")


def run_study(args: argparse.Namespace) -> None:
    """Prepare all series, then segment with those that the model needs, and write all results."""
    model, files = load(args.model, "cpu"), series_files(args.folder)
    with tempfile.TemporaryDirectory() as name:
        needed = model.request().modalities
        ordered = {series: files[series] for series in (*needed, *files)}
        options = study_options(model.request())
        Study(ordered, options, StudyCache(Path(name, "preparation"), print)).prepare()
        model.segment(files, raw="always", raw_run=StudyCache(Path(name, "preparation"))).save(Path(name, "out"))


if __name__ == "__main__":
    main()
