"""Effect of the number of noise levels and of half precision: DICE and AUPRC on a cohort's validation split.

    python benchmarks/levels.py MODEL COHORT [--levels 600,200,100,60,30,20,10] [--top 600] [--score flair,t2]

The model is calibrated with image-level labels of the same slices for each number of levels, and once for comparing
precisions; masks are used for scores only. Set OMP_NUM_THREADS=1: seven processes score while the network runs.
`unhealthy` is the mean DICE of slices with a lesion, without a detector; `mixed` that of all slices, with the detector.
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
from anofpdm.method.gather import EvidenceRequest, evidence_batches, slice_seeds
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
    parser.add_argument("--scans", type=int, default=0, help="number of scans, the first of the split; default: all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    study = Study(args)
    counts = [(int(count), "auto") for count in args.levels.split(",") if count]
    compared = [(args.precision_at, name) for name in args.precisions.split(",") if name]
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}", flush=True)
    with ProcessPoolExecutor(7, multiprocessing.get_context("spawn")) as pool:  # keeps the GPU busy
        rows, first = [], None
        for count, name in counts + compared:
            evidence = study.evidence(count, name)
            if (count, name) in compared:  # all with the first calibration: only the arithmetic differs
                slices = study.slices
                first = first or calibrate(evidence[0], slices.labels, slices.patients, positions=slices.positions)
            row = pool.submit(score_row, *evidence, study.slices, first)
            row.add_done_callback(lambda done: print(done.result()[0], flush=True))
            rows.append(row)
        all_masks = [row.result()[1] for row in rows[len(counts) :]]
    for (_, name), masks in zip(compared, all_masks, strict=True):
        some = all_masks[0].any((1, 2)) | masks.any((1, 2))
        print(f"{name}: median slice DICE against {compared[0][1]}: {np.median(dice(masks, all_masks[0])[some]):.4f}")


@dataclass(frozen=True)
class Labelled:
    """Slices with labels for calibration, and masks for scores."""

    labels: np.ndarray
    patients: np.ndarray
    positions: SlicePositions
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
        self.slices = Labelled(
            self.cohort.labels[self.rows],
            self.cohort.patients[self.rows],
            slice_positions(self.cohort, self.rows),
            self.cohort.pixels(self.rows).mean(axis=1) > -0.95,
            Truth(self.cohort).masks(self.rows),
        )

    def evidence(self, count: int, precision: str) -> tuple[Evidence, str, float]:
        """Evidence, the precision used, and seconds."""
        args, device = self.args, torch.device(self.args.device)
        predict = load_trained(args.model, device, precision).predict
        start = time.perf_counter()
        settings = EvidenceSettings(spread_levels(count, args.top), self.channels)
        batches = evidence_batches(
            predict,
            lambda rows: self.cohort.pixels(self.rows[rows]),
            slice_seeds(self.cohort.indices[self.rows]),
            EvidenceRequest(settings, STRENGTHS, device, args.batch, keep=compact),
        )
        evidence = concatenate(batches)
        seconds = time.perf_counter() - start
        return evidence, predict.precision, seconds


def score_row(
    evidence: Evidence, precision: str, seconds: float, slices: Labelled, given: Calibration | None = None
) -> tuple[str, np.ndarray]:
    """A row of the table with footnotes, and the masks before the detector."""
    calibration = given or calibrate(evidence, slices.labels, slices.patients, positions=slices.positions)
    decisions = decide(evidence, calibration, DecisionSettings())
    unhealthy = slices.labels == UNHEALTHY
    line = (
        f"| {len(evidence.settings.levels)} | {precision} | {calibration.strength:g} | "
        f"{calibration.divergence_max:.4f} | {calibration.detector} | {(decisions.detected == unhealthy).mean():.3f} | "
        f"{dice(decisions.drawn, slices.truth)[unhealthy].mean():.4f} | "
        f"{average_precision(decisions.maps[slices.foreground], slices.truth[slices.foreground]):.4f} | "
        f"{dice(decisions.masks, slices.truth).mean():.4f} | {np.median(decisions.end_step):.0f} | {seconds:.1f} |"
    )
    ratings = " ".join(f"{one.strength:g}:{one.accuracy:.3f}" for one in calibration.candidates)
    lines = [line, f"    cosine accuracy by w: {ratings}; cross-validated {calibration.cosine_accuracy}"]
    for fitted in calibration.fitted:
        lines.append(f"    curve, context {fitted.context_mm:g}: cross-validated {fitted.curve_accuracy}")
    for threshold, context, share in OTHERS:
        decision = DecisionSettings(context_mm=context, mask=MaskSettings(Threshold(threshold), peak_share=share))
        other = decide(evidence, calibration, decision, slices.positions)
        volumes = volume_dice(other.masks, slices.truth, slices.patients)
        lines.append(
            f"    {threshold}, context {context:g}, peak {share:g}: "
            f"accuracy {(other.detected == unhealthy).mean():.3f} "
            f"unhealthy {dice(other.drawn, slices.truth)[unhealthy].mean():.4f} "
            f"mixed {dice(other.masks, slices.truth).mean():.4f} volume {mean_defined(volumes):.4f}"
        )
    return "\n".join(lines), decisions.drawn


if __name__ == "__main__":
    main()
