"""What helps a student: one row for each way of teaching it, on a cohort's validation split. Masks only measure.

    python benchmarks/student.py MODEL COHORT [--variants default,wider] [--steps 2500]

The teacher draws once, into the model's folder, as for `anofpdm distill`. `drawn at least`: where fewer pixels than
that reach one half, the mask reaches down to what so many pixels reach. `accuracy` is cross-validated over patients.
"""

import argparse
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from scipy.special import expit

from anofpdm.calibration.fit import load_calibration, slice_positions
from anofpdm.cohorts import Cohort, open_cohort
from anofpdm.evaluation.metrics.pixels import average_precision, dice, mean_defined, volume_dice
from anofpdm.evaluation.truth import Truth
from anofpdm.labels import HEALTHY, UNHEALTHY
from anofpdm.method.calibration import Calibration
from anofpdm.method.context import smooth_across_slices
from anofpdm.method.decision import OURS
from anofpdm.method.mask import mask
from anofpdm.network.predictor import TrainedModel, load_trained
from anofpdm.student.distill import Options, drawn_by_teacher, taught_in_rounds, teacher_masks
from anofpdm.student.model import asked, calibrated, channels_of, cuts_of, sign_of
from anofpdm.student.network import StudentConfig, StudentNet
from anofpdm.student.targets import Lessons, neighbours_of, usual_neighbours
from anofpdm.student.training import LABEL_SHARE, Schooling
from anofpdm.util.distributed import World


@dataclass(frozen=True)
class Variant:
    neighbours_mm: tuple[float, ...] | None = None  # none given: the slices next to each
    certain: bool = False  # masks as they are, not how certain the teacher is
    label_share: float = LABEL_SHARE  # of the loss on image-level labels
    rounds: int = 1
    width: int | None = None
    again: str = ""  # taught a second time: on slices where both "agree", on the "mean" of both, after a second "look"
    wrong: float = 0.0  # share of the teacher's masks that are exchanged for those of other slices


VARIANTS = {
    "default": Variant(),
    "no neighbours": Variant(()),
    "no labels": Variant(label_share=0.0),
    "more of labels": Variant(label_share=1.0),
    "more neighbours": Variant((-4.0, -2.0, 2.0, 4.0)),
    "hard masks": Variant(certain=True),
    "two rounds": Variant(rounds=2),
    "three rounds": Variant(rounds=3),
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
    teacher, cohort = load_trained(args.model, torch.device(args.device)), open_cohort(args.cohort)
    calibration, _ = load_calibration(teacher)
    options = Options(
        Schooling(args.steps, seed=args.seed),
        width=args.width,
        choices=replace(OURS, context_mm=calibration.context_mm),
    )
    rows = cohort.rows("train")
    masks = teacher_masks(teacher, calibration, cohort, rows, options, World(), lambda *_: None)
    assert masks is not None
    study = Study(cohort, teacher, calibration)
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}", flush=True)
    for name in args.variants.split(","):
        study.run(name, VARIANTS[name], masks, options)


class Study:
    def __init__(self, cohort: Cohort, teacher: TrainedModel, calibration: Calibration):
        self.cohort, self.teacher, self.calibration = cohort, teacher, calibration
        self.first: dict[Variant, StudentNet] = {}  # students that others are compared with
        self.modalities = tuple(teacher.modalities[channel] for channel in calibration.settings.channels)
        self.val, self.device = cohort.rows("val"), teacher.device
        self.places, self.unhealthy = slice_positions(cohort, self.val), cohort.labels[self.val] == UNHEALTHY
        self.truth = Truth(cohort).masks(self.val)
        self.foreground = cohort.pixels(self.val).mean(axis=1) > -0.95

    def run(self, name: str, variant: Variant, masks: np.ndarray, options: Options) -> None:
        cohort, rows = self.cohort, self.cohort.rows("train")
        places = slice_positions(cohort, rows)
        beside = usual_neighbours(places) if variant.neighbours_mm is None else variant.neighbours_mm
        config = StudentConfig(self.modalities, self.teacher.size, beside, variant.width or options.width)
        masks = exchanged(masks, variant.wrong)
        shown = np.where(masks > 127, 255, 0).astype(np.uint8) if variant.certain else masks
        lessons = Lessons(self.pixels(rows), shown, neighbours_of(places, config.neighbours_mm), cohort.labels[rows])
        start = time.perf_counter()
        schooling = replace(options.schooling, label_share=variant.label_share)
        options = replace(options, rounds=variant.rounds, schooling=schooling)
        base = replace(variant, again="")
        if base not in self.first:
            self.first[base] = taught_in_rounds(config, lessons, places, options, self.device, lambda *_: None)
        network = self.first[base]
        if variant.again:
            lessons = self.reconsidered(variant.again, network, lessons, options)
            network = taught_in_rounds(config, lessons, places, options, self.device, lambda *_: None)
        seconds = time.perf_counter() - start
        said = asked(network, self.pixels(self.val), self.places, self.device)
        odds = smooth_across_slices(said[0], self.places, 2.0)
        found = calibrated(
            network,
            self.pixels(self.val),
            cohort.labels[self.val],
            cohort.patients[self.val],
            self.places,
            self.device,
        )
        detected = found.detector.scores(sign_of(found.sign, *said, self.places)[:, None]) >= 0
        for count in (None, 40, 160):
            cuts = np.zeros(len(odds)) if count is None else cuts_of(odds, count)
            self.print_row(name, count, odds, cuts, detected, found.accuracy, seconds)

    def reconsidered(self, how: str, network: StudentNet, lessons: Lessons, options: Options) -> Lessons:
        """What a second student learns, after the first has been asked about the same slices."""
        cohort, rows = self.cohort, self.cohort.rows("train")
        odds, _ = asked(network, lessons.pixels, slice_positions(cohort, rows), self.device)
        own = np.where((cohort.labels[rows] == HEALTHY)[:, None, None], 0, expit(odds))
        if how == "mean":
            return replace(lessons, masks=np.round((255 * own + lessons.masks) / 2).astype(np.uint8))
        agreed = dice(own > 0.5, lessons.masks > 127) >= 0.5
        if how == "agree":
            kept = {name: getattr(lessons, name)[agreed] for name in ("masks", "neighbours", "labels")}
            return replace(lessons, **kept)
        other = replace(self.calibration, seed=self.calibration.seed + 1)
        twice = lessons.masks.astype(np.float64)
        twice[~agreed] += drawn_by_teacher(self.teacher, other, cohort, rows[~agreed], options)
        twice[~agreed] /= 2
        return replace(lessons, masks=np.round(twice).astype(np.uint8))

    def pixels(self, rows: np.ndarray):  # type: ignore[no-untyped-def]
        channels = channels_of(self.cohort.modalities, self.modalities)
        return lambda some: self.cohort.pixels(rows[some])[:, channels]

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
