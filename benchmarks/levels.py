"""How many noise levels are enough, and what half precision costs: DICE and AUPRC on a cohort's validation split.

    python benchmarks/levels.py MODEL COHORT [--levels 600,200,100,60,30,20,10] [--top 600] [--score flair,t2]

For each number of levels the model is calibrated on the same slices' image-level labels, for the comparison of
precisions once; masks only measure. Set
OMP_NUM_THREADS=1: seven processes decide while the network works.
`unhealthy` is the mean DICE of slices with a lesion, without a detector; `mixed` that of all, with the detector.
"""

import argparse
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from anofpdm.calibration.fit import compact, slice_positions
from anofpdm.cohorts import open_cohort
from anofpdm.evaluation.metrics.pixels import average_precision, dice, mean_defined, volume_dice
from anofpdm.evaluation.truth import Truth
from anofpdm.labels import NULL, UNHEALTHY
from anofpdm.method import calibrate
from anofpdm.method.calibration import STRENGTHS, Calibration
from anofpdm.method.context import SlicePositions
from anofpdm.method.decision import DecisionSettings, decide
from anofpdm.method.evidence import Evidence, EvidenceSettings, concatenate, spread_levels
from anofpdm.method.many_slices import EvidenceRequest, evidence_batches, slice_seeds
from anofpdm.method.mask import MaskSettings
from anofpdm.network.predictor import load_trained
from anofpdm.options import Threshold

OTHERS = [  # threshold, context in mm, share of the peak
    *((threshold, context, 0.0) for threshold in ("quantile", "healthy", "both") for context in (0.0, 2.0)),
    *((threshold, 2.0, 0.2) for threshold in ("quantile", "healthy")),
    *(("both", 2.0, share) for share in (0.1, 0.15, 0.2, 0.25, 0.3)),
    ("both", 0.0, 0.2),
]
COLUMNS = ("levels", "precision", "w", "M_max", "detector", "accuracy", "unhealthy", "AUPRC", "mixed", "t_e", "s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--levels", default="600,200,100,60,30,20,10")
    parser.add_argument("--precision-at", type=int, default=10, help="levels at which fp32, bf16 and fp16 are compared")
    parser.add_argument("--precisions", default="fp32,bf16,fp16")
    parser.add_argument("--top", type=int, default=600)
    parser.add_argument("--score", default="flair,t2")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--scans", type=int, default=0, help="only the first so many of the split, whole")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    study = Study(args)
    counts = [(int(count), "auto") for count in args.levels.split(",") if count]
    compared = [(args.precision_at, name) for name in args.precisions.split(",") if name]
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    with ProcessPoolExecutor(7, multiprocessing.get_context("spawn")) as pool:  # so that the GPU does not wait
        rows, first = [], None
        for count, name in counts + compared:
            found = study.evidence(count, name)
            if (count, name) in compared:  # all with the calibration of the first: what differs is the arithmetic
                known = study.known
                first = first or calibrate(found[0], known.labels, known.patients, positions=known.places)
            row = pool.submit(evaluated, *found, study.known, first)
            row.add_done_callback(lambda done: print(done.result()[0], flush=True))
            rows.append(row)
        drawn = [row.result()[1] for row in rows[len(counts) :]]
    for (_, name), masks in zip(compared, drawn, strict=True):
        some = drawn[0].any((1, 2)) | masks.any((1, 2))
        print(f"{name}: median slice DICE against {compared[0][1]}: {np.median(dice(masks, drawn[0])[some]):.4f}")


@dataclass(frozen=True)
class Known:
    """What evaluation knows of the slices."""

    labels: np.ndarray
    patients: np.ndarray
    places: SlicePositions
    foreground: np.ndarray
    truth: np.ndarray


class Study:
    def __init__(self, args: argparse.Namespace):
        self.args, self.cohort = args, open_cohort(args.cohort)
        rows = self.cohort.rows("val")
        rows = rows[self.cohort.labels[rows] != NULL]
        scans = list(dict.fromkeys(self.cohort.scans[rows].tolist()))
        self.rows = rows[np.isin(self.cohort.scans[rows], scans[: args.scans])] if args.scans else rows
        self.channels = tuple(self.cohort.modalities.index(name) for name in args.score.split(","))
        self.known = Known(
            self.cohort.labels[self.rows],
            self.cohort.patients[self.rows],
            slice_positions(self.cohort, self.rows),
            self.cohort.pixels(self.rows).mean(axis=1) > -0.95,
            Truth(self.cohort).masks(self.rows),
        )

    def evidence(self, count: int, precision: str) -> tuple[Evidence, str, float]:
        """Precision and seconds with it."""
        args, device = self.args, torch.device(self.args.device)
        predict = load_trained(args.model, device, precision).predict
        start = time.perf_counter()
        settings = EvidenceSettings(spread_levels(count, args.top), self.channels)
        batches = evidence_batches(
            predict,
            lambda rows: self.cohort.pixels(self.rows[rows]),
            slice_seeds(self.cohort.indices[self.rows]),
            EvidenceRequest(settings, STRENGTHS, device, args.batch),
        )
        found = concatenate([compact(batch) for batch in batches])
        seconds = time.perf_counter() - start
        return found, predict.precision, seconds


def evaluated(
    evidence: Evidence, precision: str, seconds: float, known: Known, given: Calibration | None = None
) -> tuple[str, np.ndarray]:
    """A line of the table and its footnotes, and the masks before the detector. Calibrates unless given one."""
    calibration = given or calibrate(evidence, known.labels, known.patients, positions=known.places)
    found = decide(evidence, calibration, DecisionSettings())
    unhealthy = known.labels == UNHEALTHY
    line = (
        f"| {len(evidence.settings.levels)} | {precision} | {calibration.strength:g} | "
        f"{calibration.divergence_max:.4f} | {calibration.detector} | {(found.detected == unhealthy).mean():.3f} | "
        f"{dice(found.drawn, known.truth)[unhealthy].mean():.4f} | "
        f"{average_precision(found.maps[known.foreground], known.truth[known.foreground]):.4f} | "
        f"{dice(found.masks, known.truth).mean():.4f} | {np.median(found.end_step):.0f} | {seconds:.1f} |"
    )
    ratings = " ".join(f"{one.strength:g}:{one.accuracy:.3f}" for one in calibration.candidates)
    lines = [line, f"    cosine accuracy by w: {ratings}; cross-validated {calibration.cosine_accuracy}"]
    for fitted in calibration.fitted:
        lines.append(f"    curve, context {fitted.context_mm:g}: cross-validated {fitted.curve_accuracy}")
    for threshold, context, share in OTHERS:
        choices = DecisionSettings(context_mm=context, mask=MaskSettings(Threshold(threshold), peak_share=share))
        other = decide(evidence, calibration, choices, known.places)
        volumes = volume_dice(other.masks, known.truth, known.patients)
        lines.append(
            f"    {threshold}, context {context:g}, peak {share:g}: "
            f"accuracy {(other.detected == unhealthy).mean():.3f} "
            f"unhealthy {dice(other.drawn, known.truth)[unhealthy].mean():.4f} "
            f"mixed {dice(other.masks, known.truth).mean():.4f} volume {mean_defined(volumes):.4f}"
        )
    return "\n".join(lines), found.drawn


if __name__ == "__main__":
    main()
