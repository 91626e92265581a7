"""Variants of student training: one row each, on a cohort's validation split. Lesion masks are used for scores only.

    python benchmarks/student.py MODEL COHORT [--variants default,wider] [--steps 2500]

Pseudo-labels are computed once and cached in the model's folder, as by `anofpdm distill`. `drawn at least`: if fewer
pixels than this reach a probability of 0.5, the threshold of the slice is lowered until so many do. `accuracy` is
cross-validated over patients.
"""

import argparse
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from scipy.special import expit

from anofpdm.calibration.files import load_calibration
from anofpdm.calibration.fit import slice_positions
from anofpdm.cohorts import Cohort, open_cohort
from anofpdm.evaluation.metrics.pixels import average_precision, dice, mean_defined, volume_dice
from anofpdm.evaluation.truth import Truth
from anofpdm.labels import HEALTHY, UNHEALTHY
from anofpdm.method.context import smooth_across_slices
from anofpdm.method.decision import OURS
from anofpdm.method.mask import mask
from anofpdm.network.predictor import load_trained
from anofpdm.student.calibration import fit_student_calibration
from anofpdm.student.model import mask_thresholds, predict_slices
from anofpdm.student.network import (
    Pixels,
    StudentConfig,
    StudentNet,
    cohort_pixels,
    default_neighbours_mm,
    neighbour_rows,
)
from anofpdm.student.targets import PseudoLabels, Teacher, evidence_of_scans, mask_scan, pseudo_label
from anofpdm.student.training import LABEL_SHARE, StudentTrainingConfig, train_student
from anofpdm.util.distributed import World


@dataclass(frozen=True)
class Variant:
    neighbours_mm: tuple[float, ...] | None = None  # none given: the slices next to each
    certain: bool = False  # masks as they are, not how certain the teacher is
    label_share: float = LABEL_SHARE  # of the loss on image-level labels
    width: int | None = None
    # A second student: on slices where both "agree", on the "mean" of both, after a second "look", on the first's "own"
    again: str = ""
    wrong: float = 0.0  # share of the teacher's masks that are exchanged for those of other slices


VARIANTS = {
    "default": Variant(),
    "no neighbours": Variant(()),
    "no labels": Variant(label_share=0.0),
    "more of labels": Variant(label_share=1.0),
    "more neighbours": Variant((-4.0, -2.0, 2.0, 4.0)),
    "hard masks": Variant(certain=True),
    "two rounds": Variant(again="own"),
    "wider": Variant(width=48),
    "agreement": Variant(again="agree"),
    "mean of both": Variant(again="mean"),
    "second look": Variant(again="look"),
    "a fifth wrong": Variant(wrong=0.2),
}
COLUMNS = (
    "variant",
    "drawn at least",
    "unhealthy DICE",
    "mixed DICE",
    "volume DICE",
    "AUPRC unhealthy",
    "AUPRC mixed",
    "accuracy",
    "s",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--steps", type=int, default=2500)
    parser.add_argument("--width", type=int, default=32, help="of variants that have none of their own")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    model, cohort = load_trained(args.model, torch.device(args.device)), open_cohort(args.cohort)
    calibration, _ = load_calibration(model)
    teacher = Teacher(model, calibration, replace(OURS, context_mm=calibration.context_mm))
    masks = pseudo_label(teacher, cohort, cohort.rows("train"), World())
    assert masks is not None
    study = Study(cohort, teacher, StudentTrainingConfig(args.steps, seed=args.seed), args.width)
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}", flush=True)
    for name in args.variants.split(","):
        study.run(name, VARIANTS[name], masks)


class Study:
    def __init__(self, cohort: Cohort, teacher: Teacher, training: StudentTrainingConfig, width: int):
        self.cohort, self.teacher, self.training, self.width = cohort, teacher, training, width
        self.first: dict[Variant, StudentNet] = {}  # students that others are compared with
        model, channels = teacher.model, teacher.calibration.settings.channels
        self.modalities = tuple(model.modalities[channel] for channel in channels)
        self.val, self.device = cohort.rows("val"), model.device
        self.places, self.unhealthy = slice_positions(cohort, self.val), cohort.labels[self.val] == UNHEALTHY
        self.truth = Truth(cohort).masks(self.val)
        self.foreground = cohort.pixels(self.val).mean(axis=1) > -0.95

    def run(self, name: str, variant: Variant, masks: np.ndarray) -> None:
        cohort, rows = self.cohort, self.cohort.rows("train")
        places = slice_positions(cohort, rows)
        beside = default_neighbours_mm(places) if variant.neighbours_mm is None else variant.neighbours_mm
        config = StudentConfig(self.modalities, self.teacher.model.size, beside, variant.width or self.width)
        masks = exchanged(masks, variant.wrong)
        shown = np.where(masks > 127, 255, 0).astype(np.uint8) if variant.certain else masks
        neighbours = neighbour_rows(places, config.neighbours_mm)
        data = PseudoLabels(self.pixels(rows), shown, neighbours, cohort.labels[rows])
        start = time.perf_counter()
        training = replace(self.training, label_share=variant.label_share)
        base = replace(variant, again="")
        if base not in self.first:
            self.first[base] = train_student(config, data, training, self.device)
        network = self.first[base]
        if variant.again:
            data = self.revise(variant.again, network, data)
            if variant.again == "own":
                training = replace(training, seed=training.seed + 1)
            network = train_student(config, data, training, self.device)
        seconds = time.perf_counter() - start
        logits = predict_slices(network, self.pixels(self.val), self.places, self.device)
        odds = smooth_across_slices(logits[0], self.places, 2.0)
        calibration = fit_student_calibration(
            network,
            self.pixels(self.val),
            cohort.labels[self.val],
            cohort.patients[self.val],
            self.places,
            self.device,
        )
        detected = calibration.scores(*logits, self.places) >= 0
        for count in (None, 40, 160):
            cuts = np.zeros(len(odds)) if count is None else mask_thresholds(odds, count)
            self.print_row(name, count, odds, cuts, detected, calibration.accuracy, seconds)

    def revise(self, how: str, network: StudentNet, data: PseudoLabels) -> PseudoLabels:
        """Pseudo-labels of a second student, with the first one's predictions of the same slices."""
        cohort, rows = self.cohort, self.cohort.rows("train")
        odds, _ = predict_slices(network, data.pixels, slice_positions(cohort, rows), self.device)
        own = np.where((cohort.labels[rows] == HEALTHY)[:, None, None], 0, expit(odds))
        if how == "own":
            return replace(data, masks=np.round(255 * own).astype(np.uint8))
        if how == "mean":
            return replace(data, masks=np.round((255 * own + data.masks) / 2).astype(np.uint8))
        agreed = dice(own > 0.5, data.masks > 127) >= 0.5
        if how == "agree":
            kept = {name: getattr(data, name)[agreed] for name in ("masks", "neighbours", "labels")}
            return replace(data, **kept)
        calibration = self.teacher.calibration
        other = replace(self.teacher, calibration=replace(calibration, seed=calibration.seed + 1))
        twice = data.masks.astype(np.float64)
        (evidence,) = evidence_of_scans(other, cohort, [rows[~agreed]])
        twice[~agreed] += mask_scan(other, cohort, rows[~agreed], evidence)
        twice[~agreed] /= 2
        return replace(data, masks=np.round(twice).astype(np.uint8))

    def pixels(self, rows: np.ndarray) -> Pixels:
        return cohort_pixels(self.cohort, rows, self.modalities)

    def print_row(
        self,
        name: str,
        count: int | None,
        odds: np.ndarray,
        cuts: np.ndarray,
        detected: np.ndarray,
        accuracy: float,
        seconds: float,
    ) -> None:
        drawn = mask(odds, cuts)
        masks = drawn & detected[:, None, None]
        volumes = volume_dice(masks, self.truth, self.cohort.patients[self.val])
        ill, inside = self.unhealthy, self.foreground
        numbers = (
            dice(drawn, self.truth)[ill].mean(),
            dice(masks, self.truth).mean(),
            mean_defined(volumes),
            average_precision(odds[ill][inside[ill]], self.truth[ill][inside[ill]]),
            average_precision(odds[inside], self.truth[inside]),
            accuracy,
        )
        cells = (name, "-" if count is None else str(count), *(f"{one:.4f}" for one in numbers), f"{seconds:.0f}")
        print(f"| {' | '.join(cells)} |", flush=True)


def exchanged(masks: np.ndarray, share: float) -> np.ndarray:
    """Some of the masks that have a lesion, for those of others."""
    rng, drawn = np.random.default_rng(0), np.flatnonzero((masks > 127).any((1, 2)))
    wrong = rng.permutation(drawn)[: round(share * len(drawn))]
    result = masks.copy()
    result[wrong] = masks[np.roll(wrong, 1)]
    return result


if __name__ == "__main__":
    main()
