"""Maps of errors, of gradients, and of both agreeing: which share of the exponents the gradients should have.

    python benchmarks/agreement.py MODEL COHORT [--levels 10] [--score flair,t2] [--shares 0,0.2,0.333,0.5,1]
                                                [--every 1]

On a cohort's validation split, or every so many slices of it, then without context. A share of 0 is errors alone, of
1 gradients alone (the lowest level left out). The guidance strength is chosen by maps of errors, thresholds are
calibrated anew for each share, all from image-level labels; masks only measure.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from anofpdm.calibration.fit import CalibrationConfig, compact, slice_positions
from anofpdm.cli.options import resolve_device
from anofpdm.cohorts import Cohort, open_cohort
from anofpdm.cohorts.store import foreground
from anofpdm.evaluation.ablations.study import measured_slices
from anofpdm.evaluation.metrics.pixels import average_precision, dice
from anofpdm.labels import UNHEALTHY
from anofpdm.method import calibrate
from anofpdm.method.calibration import Calibration, refit_maps
from anofpdm.method.decision import OURS, decide
from anofpdm.method.detection import auc
from anofpdm.method.evidence import Evidence, SignalMaps, concatenate
from anofpdm.method.many_slices import EvidenceRequest, batch_for, evidence_batches, slice_seeds
from anofpdm.method.mask import smallest_lesion_level
from anofpdm.network.predictor import TrainedModel, load_trained
from anofpdm.options import Signal, SignalChoice

COLUMNS = ("share of gradients", "AUC of maps", "unhealthy DICE", "mixed DICE", "AUPRC")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--levels", type=int, default=10)
    parser.add_argument("--score", default="")
    parser.add_argument("--shares", default="0,0.2,0.333,0.5,1")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    model, cohort = load_trained(args.model, resolve_device(args.device)), open_cohort(args.cohort)
    score = tuple(name for name in args.score.split(",") if name)
    options = CalibrationConfig(score=score, levels=args.levels, signal=SignalChoice.ERROR)
    _measured, rows, truth = measured_slices(cohort, options)
    rows, truth = rows[:: args.every], truth[:: args.every]
    choices = OURS if args.every == 1 else replace(OURS, context_mm=0.0)
    error, gradient, calibration = gathered(model, cohort, rows, options, choices.context_mm)

    ill, inside = truth.any(axis=(1, 2)), foreground(cohort.pixels(rows))
    labels, places = cohort.labels[rows], slice_positions(cohort, rows)
    print(f"{len(rows)} slices, {int(ill.sum())} with a lesion; w = {calibration.strength:g}, by maps of errors\n")
    print(f"| {' | '.join(COLUMNS)} |\n|{' --- |' * len(COLUMNS)}")
    for share in (float(word) for word in args.shares.split(",")):
        maps = SignalMaps(mixed(error.maps, gradient.maps, share), error.last_maps)
        agreed = replace(error, maps_by_signal={Signal.ERROR: maps})
        decided = decide(agreed, refit_maps(calibration, agreed, labels, places), choices, places)
        said = (
            auc(smallest_lesion_level(agreed.maps[:, 0].numpy()), labels == UNHEALTHY),
            dice(decided.drawn, truth)[ill].mean(),
            dice(decided.masks, truth).mean(),
            average_precision(decided.maps[ill][inside[ill]], truth[ill][inside[ill]]),
        )
        print(f"| {share:g} | {' | '.join(f'{value:.3f}' for value in said)} |", flush=True)


def gathered(
    model: TrainedModel, cohort: Cohort, rows: np.ndarray, options: CalibrationConfig, context_mm: float
) -> tuple[Evidence, Evidence, Calibration]:
    """Errors and gradients at the strength that maps of errors choose, and the calibration that chose it."""
    settings, both = options.settings(model.channels(options.score)), (Signal.ERROR, Signal.GRADIENT_ABOVE)
    batches = evidence_batches(
        model.predict,
        lambda some: cohort.pixels(rows[some]),
        slice_seeds(cohort.indices[rows], options.seed),
        EvidenceRequest(settings, options.strengths, model.device, batch_for(model.device), both),
    )
    evidence = concatenate([compact(batch) for batch in batches])
    calibration = calibrate(
        evidence,
        cohort.labels[rows],
        cohort.patients[rows],
        positions=slice_positions(cohort, rows),
        context_mm=context_mm,
        strength_by=options.strength_by,
    )
    error, gradient = (evidence.with_signal(signal).at(calibration.strength) for signal in both)
    return error, gradient, calibration


def mixed(error: torch.Tensor, gradient: torch.Tensor, share: float) -> torch.Tensor:
    """As the method's own signal does it, with another share."""
    return error.float() ** (1 - share) * gradient.float() ** share


if __name__ == "__main__":
    main()
