"""Scores of scans and of their mirror images: does a model depend on the side of the brain?

    python benchmarks/mirror.py MODEL COHORT [--split val]

The lesions of a cohort can lie mostly in one hemisphere, as strokes of people with aphasia do. Every slice is segmented
as it is and mirrored left to right, by the diffusion engine and by the student without its mean over mirror images.
Differences are mirrored minus original, paired by slice, with 95% intervals from a bootstrap over patients.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from student_study import Drawing, Outputs, draw

from anofpdm.calibration.files import load_calibration
from anofpdm.calibration.fit import slice_positions
from anofpdm.cli.options import resolve_device
from anofpdm.cohorts import Cohort, open_cohort
from anofpdm.evaluation.metrics.bootstrap import patient_bootstrap
from anofpdm.evaluation.metrics.pixels import dice
from anofpdm.evaluation.truth import Truth
from anofpdm.method.context import SlicePositions
from anofpdm.method.decision import OURS, decide
from anofpdm.method.evidence import concatenate
from anofpdm.method.gather import EvidenceRequest, batch_for, evidence_batches, slice_seeds
from anofpdm.models.registry import model_folder
from anofpdm.network.predictor import TrainedModel, load_trained
from anofpdm.student.model import Student, load_student, predict_both

Pixels = Callable[[np.ndarray], np.ndarray]  # rows -> [n, C, H, W]
Segment = Callable[[Pixels], tuple[np.ndarray, np.ndarray]]  # masks before detection [n, H, W], and detections [n]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=model_folder)
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--split", default="val")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    trained, cohort = load_trained(args.model, resolve_device(args.device)), open_cohort(args.cohort)
    slices = Slices.of_split(cohort, args.split)
    left = slices.share_on_the_first_half()
    print(f"{len(slices.rows)} slices; {left:.0%} of lesion pixels lie in the first half of the image columns\n")
    print("| engine | | original | mirrored | difference |\n| --- | --- | --- | --- | --- |")
    for name, segment in engines(trained, slices).items():
        compare(name, segment, slices)


@dataclass(frozen=True)
class Slices:
    cohort: Cohort
    rows: np.ndarray
    truth: np.ndarray  # bool [n, H, W]
    patients: np.ndarray

    @classmethod
    def of_split(cls, cohort: Cohort, split: str) -> "Slices":
        rows, truth = cohort.rows(split), Truth(cohort)
        rows = rows[truth.available[rows]]
        return cls(cohort, rows, truth.masks(rows), cohort.patients[rows])

    @property
    def positions(self) -> SlicePositions:
        return slice_positions(self.cohort, self.rows)

    def pixels(self, some: np.ndarray) -> np.ndarray:
        return self.cohort.pixels(self.rows[some])

    def share_on_the_first_half(self) -> float:
        half = self.truth.shape[2] // 2
        return float(self.truth[:, :, :half].sum() / max(1, self.truth.sum()))


def engines(trained: TrainedModel, slices: Slices) -> dict[str, Segment]:
    found = {"diffusion": diffusion(trained, slices)}
    student = load_student(trained.folder, trained.sha256, trained.device)
    if student is not None:
        channels = [slices.cohort.modalities.index(name) for name in student.config.modalities]
        found["student"] = lambda pixels: draw_without_mirroring(
            student, lambda some: pixels(some)[:, channels], slices.positions
        )
    return found


def diffusion(trained: TrainedModel, slices: Slices) -> Segment:
    calibration, _ = load_calibration(trained)
    request = EvidenceRequest(
        calibration.settings, [calibration.strength], trained.device, batch_for(trained.device)
    ).in_even_batches(len(slices.rows))
    seeds = slice_seeds(slices.cohort.indices[slices.rows])

    def segment(pixels: Pixels) -> tuple[np.ndarray, np.ndarray]:
        evidence = concatenate(evidence_batches(trained.predict, pixels, seeds, request))
        decisions = decide(evidence, calibration, OURS, slices.positions)
        return decisions.drawn, decisions.detected

    return segment


def draw_without_mirroring(
    student: Student, pixels: Pixels, positions: SlicePositions
) -> tuple[np.ndarray, np.ndarray]:
    """From the first of the two predictions that a student averages."""
    of_pixels, of_slices = predict_both(student.network, pixels, positions, student.device)
    outputs = Outputs(of_pixels[0], of_slices[0], student.calibration)
    result = draw(outputs, positions, Drawing(smallest=student.calibration.smallest))
    return result.drawn, result.detected


def compare(name: str, segment: Segment, slices: Slices) -> None:
    """Prints a row for each score."""
    original = slice_scores(*segment(slices.pixels), slices.truth)
    mirrored = slice_scores(*segment(lambda some: mirror(slices.pixels(some))), mirror(slices.truth))
    unhealthy = slices.truth.any(axis=(1, 2))
    for score, which in (("unhealthy DICE", unhealthy), ("mixed DICE", ...), ("accuracy", ...)):
        before, after, patients = original[score][which], mirrored[score][which], slices.patients[which]
        low, high = patient_bootstrap(after - before, patients)
        change = f"{100 * (after - before).mean():+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
        print(f"| {name} | {score} | {100 * before.mean():.1f} | {100 * after.mean():.1f} | {change} |", flush=True)


def slice_scores(drawn: np.ndarray, detected: np.ndarray, truth: np.ndarray) -> dict[str, np.ndarray]:
    """[n] each."""
    correct = detected == truth.any(axis=(1, 2))
    scores = {"unhealthy DICE": dice(drawn, truth), "mixed DICE": dice(drawn & detected[:, None, None], truth)}
    return {**scores, "accuracy": correct.astype(float)}


def mirror(images: np.ndarray) -> np.ndarray:
    """[..., H, W], left to right."""
    return np.ascontiguousarray(images[..., ::-1])


if __name__ == "__main__":
    main()
