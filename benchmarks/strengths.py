"""Which guidance strength, and which share of the peak: what labels say of each, and what masks say.

    python benchmarks/strengths.py MODEL COHORT [--levels 10] [--score flair,t2] [--shares 0.2,0.25,0.3]

On a cohort's validation split, with each strength calibrated alone on the same slices' image-level labels. `cosine` and
`maps` are what `--strength-by` goes by; masks only measure. Set OMP_NUM_THREADS=1: a process decides for each strength.
"""

import argparse
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch

from anofpdm.calibration.fit import CalibrationConfig, gather_labelled, labelled_rows
from anofpdm.cohorts import open_cohort
from anofpdm.evaluation.metrics.pixels import average_precision, dice, mean_defined, volume_dice
from anofpdm.evaluation.truth import Truth
from anofpdm.labels import UNHEALTHY
from anofpdm.method import calibrate
from anofpdm.method.context import SlicePositions
from anofpdm.method.decision import OURS, DecisionSettings, decide
from anofpdm.method.evidence import Evidence
from anofpdm.method.mask import MaskSettings
from anofpdm.network.predictor import load_trained
from anofpdm.options import SignalChoice
from anofpdm.util.progress import silent

COLUMNS = ("w", "cosine", "maps", "accuracy", "AUPRC", "share", "unhealthy DICE", "mixed DICE", "volume DICE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--levels", type=int, default=10)
    parser.add_argument("--score", default="")
    parser.add_argument("--shares", default="0.2,0.25,0.3")
    parser.add_argument("--workers", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    model, cohort = load_trained(args.model, torch.device(args.device)), open_cohort(args.cohort)
    score = tuple(name for name in args.score.split(",") if name)
    options = CalibrationConfig(score=score, levels=args.levels, signal=SignalChoice.ERROR)
    rows = labelled_rows(cohort, "val", options.most, options.seed)
    gathered = gather_labelled(model, cohort, options, silent)
    evidence, known = gathered.evidence, (gathered.labels, gathered.patients, gathered.positions)
    measured = (Truth(cohort).masks(rows), cohort.pixels(rows).mean(axis=1) > -0.95)
    shares = [float(word) for word in args.shares.split(",")]
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}", flush=True)
    with ProcessPoolExecutor(args.workers, multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(lines, evidence.at(strength), *known, *measured, shares) for strength in evidence.strengths]
        for job in jobs:
            print(job.result(), flush=True)


def lines(
    evidence: Evidence,
    labels: np.ndarray,
    patients: np.ndarray,
    places: SlicePositions,
    truth: np.ndarray,
    foreground: np.ndarray,
    shares: list[float],
) -> str:
    """A row for each share of the peak, at the one strength of the evidence."""
    calibration = calibrate(evidence, labels, patients, positions=places)
    (rated,) = calibration.candidates
    unhealthy, rows = labels == UNHEALTHY, []
    for share in shares:
        choices = DecisionSettings(context_mm=OURS.context_mm, mask=MaskSettings(OURS.mask.threshold, peak_share=share))
        found = decide(evidence, calibration, choices, places)
        said = (
            rated.accuracy,
            rated.map_auc or 0.0,
            (found.detected == unhealthy).mean(),
            average_precision(found.maps[foreground], truth[foreground]),
            share,
            dice(found.drawn, truth)[unhealthy].mean(),
            dice(found.masks, truth).mean(),
            mean_defined(volume_dice(found.masks, truth, patients)),
        )
        rows.append(f"| {rated.strength:g} | {' | '.join(f'{one:.4g}' for one in said)} |")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
