"""How many noise levels are enough, and what half precision costs: DICE and AUPRC on a cohort's validation split.

    python benchmarks/levels.py MODEL COHORT [--levels 600,200,100,60,30,20,10] [--top 600] [--score flair,t2]

For each number of levels the model is calibrated on the same slices' image-level labels; masks only measure.
`unhealthy` is the mean DICE of slices with a lesion, without a detector; `mixed` that of all, with the detector.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from anofpdm.cohorts import open_cohort
from anofpdm.evaluation.metrics import average_precision, dice
from anofpdm.evaluation.truth import Truth
from anofpdm.labels import NULL, UNHEALTHY
from anofpdm.method import calibrate
from anofpdm.method.calibration import STRENGTHS
from anofpdm.method.context import Places
from anofpdm.method.decision import Choices, Decisions, decide
from anofpdm.method.evidence import Settings, spread_levels
from anofpdm.method.many_slices import evidence_of, slice_seeds
from anofpdm.method.mask import MaskSettings
from anofpdm.network.predictor import load_trained


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--levels", default="600,200,100,60,30,20,10")
    parser.add_argument("--precision-at", type=int, default=60, help="levels at which fp32, bf16 and fp16 are compared")
    parser.add_argument("--precisions", default="fp32,bf16,fp16")
    parser.add_argument("--top", type=int, default=600)
    parser.add_argument("--score", default="flair,t2")
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--most", type=int, default=0, help="only so many slices, evenly taken")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    study = Study(args)
    columns = ("levels", "precision", "w", "M_max", "detector", "accuracy", "unhealthy", "AUPRC", "mixed", "t_e", "s")
    print(f"| {' | '.join(columns)} |")
    print(f"|{'---|' * len(columns)}", flush=True)
    for count in map(int, args.levels.split(",")):
        study.row(count, "auto")
    masks = {name: study.row(args.precision_at, name).drawn for name in args.precisions.split(",") if name}
    for name, drawn in masks.items():
        first = next(iter(masks.values()))
        lesions = first.any((1, 2)) | drawn.any((1, 2))
        print(f"{name}: median slice DICE against {next(iter(masks))}: {np.median(dice(drawn, first)[lesions]):.4f}")


class Study:
    def __init__(self, args: argparse.Namespace):
        self.args, self.cohort = args, open_cohort(args.cohort)
        rows = self.cohort.rows("val")
        rows = rows[self.cohort.labels[rows] != NULL]
        self.rows = rows[:: max(1, len(rows) // args.most)] if args.most else rows
        self.truth = Truth(self.cohort).masks(self.rows)
        self.labels, self.patients = self.cohort.labels[self.rows], self.cohort.patients[self.rows]
        heights = self.cohort.indices[self.rows] * self.cohort.spacing_mm[self.rows]
        self.places = Places(self.cohort.scans[self.rows], heights)
        self.foreground = self.cohort.pixels(self.rows).mean(axis=1) > -0.95
        self.channels = tuple(self.cohort.modalities.index(name) for name in args.score.split(","))

    def row(self, count: int, precision: str) -> Decisions:
        args, device = self.args, torch.device(self.args.device)
        predict = load_trained(args.model, device, precision).predict
        start = time.perf_counter()
        evidence = evidence_of(
            predict,
            lambda rows: self.cohort.pixels(self.rows[rows]),
            slice_seeds(self.cohort.indices[self.rows]),
            settings=Settings(spread_levels(count, args.top), self.channels),
            strengths=STRENGTHS,
            device=device,
            batch=args.batch,
        )
        seconds = time.perf_counter() - start
        calibration = calibrate(evidence, self.labels, self.patients, places=self.places)
        found = decide(evidence, calibration, Choices())
        unhealthy = self.labels == UNHEALTHY
        accuracy = (found.detected == unhealthy).mean()
        whole = dice(found.drawn, self.truth)[unhealthy].mean()
        ranked = average_precision(found.maps[self.foreground], self.truth[self.foreground])
        mixed = dice(found.masks, self.truth).mean()
        print(
            f"| {count} | {predict.precision} | {calibration.strength:g} | {calibration.divergence_max:.4f} | "
            f"{calibration.detector} | {accuracy:.3f} | {whole:.4f} | {ranked:.4f} | {mixed:.4f} | "
            f"{np.median(found.end_step):.0f} | {seconds:.1f} |",
            flush=True,
        )
        self._also(evidence, calibration, unhealthy)
        return found

    def _also(self, evidence, calibration, unhealthy) -> None:  # type: ignore[no-untyped-def]
        """The choices beyond the paper's, from the same evidence."""
        for threshold in ("quantile", "healthy", "both"):
            for context in (0.0, 2.0):
                choices = Choices(context_mm=context, mask=MaskSettings(threshold))
                found = decide(evidence, calibration, choices, self.places)
                print(
                    f"    {threshold} context {context:g}: accuracy {(found.detected == unhealthy).mean():.3f} "
                    f"unhealthy {dice(found.drawn, self.truth)[unhealthy].mean():.4f} "
                    f"mixed {dice(found.masks, self.truth).mean():.4f} "
                    f"AUPRC {average_precision(found.maps[self.foreground], self.truth[self.foreground]):.4f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
