"""Studies of the signals averaged into anomaly maps, and of the guidance strength. Lesion masks are for scores only.

    python benchmarks/signals.py agreement MODEL COHORT [--levels 10] [--score flair,t2] [--shares 0,0.2,0.333,0.5,1]
                                                        [--every 1]
    python benchmarks/signals.py strengths MODEL COHORT [--levels 10] [--score flair,t2] [--shares 0.2,0.25,0.3]
    python benchmarks/signals.py lowest-level MODEL COHORT [--slices 30] [--levels 10,60,600] [--strength 5]

agreement: weighted geometric means of error and gradient maps on the validation split, or on every n-th slice (then
without smoothing across slices). A share of 0 is the error signal, 1 the gradient without the lowest level. The
guidance strength is chosen by error maps and thresholds are calibrated for each share, all with image-level labels.

strengths: each guidance strength calibrated alone on the validation split with image-level labels, for several
shares of the peak. The columns `cosine` and `maps` are the criteria of `--strength-by`. Set OMP_NUM_THREADS=1: each
strength has a process.

lowest-level: gradient maps with and without level 0, where the gradient is divided by 1 - a_t = 1e-4. Slices with a
lesion, evenly from the test split; the paper's quantile, with the largest divergence of these slices.
"""

import argparse
import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from anofpdm.calibration.fit import CalibrationConfig, compact, gather_labelled, labelled_rows, slice_positions
from anofpdm.cli.options import resolve_device
from anofpdm.cohorts import Cohort, open_cohort
from anofpdm.cohorts.store import foreground
from anofpdm.evaluation.ablations.study import measured_slices
from anofpdm.evaluation.metrics.pixels import average_precision, dice, mean_defined, volume_dice
from anofpdm.evaluation.truth import Truth
from anofpdm.labels import UNHEALTHY
from anofpdm.method import calibrate
from anofpdm.method.calibration import Calibration, refit_maps
from anofpdm.method.context import SlicePositions
from anofpdm.method.decision import OURS, DecisionSettings, decide
from anofpdm.method.detection import auc
from anofpdm.method.evidence import Evidence, EvidenceSettings, SignalMaps, concatenate, spread_levels
from anofpdm.method.gather import EvidenceRequest, batch_for, evidence_batches, slice_seeds
from anofpdm.method.mask import MaskSettings, mask, mask_quantiles, median_filtered, smallest_lesion_level, thresholds
from anofpdm.network.predictor import TrainedModel, load_trained
from anofpdm.options import Signal
from anofpdm.util.distributed import World
from anofpdm.util.progress import silent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    studies = parser.add_subparsers(required=True)
    for name, study in (("agreement", agreement), ("strengths", strengths), ("lowest-level", lowest_level)):
        one = studies.add_parser(name)
        one.set_defaults(study=study)
        one.add_argument("model", type=Path)
        one.add_argument("cohort", type=Path)
        one.add_argument("--device", default="auto")
        if name == "lowest-level":
            one.add_argument("--levels", default="10,60,600")
            one.add_argument("--slices", type=int, default=30)
            one.add_argument("--strength", type=float, default=5.0)
            continue
        one.add_argument("--levels", type=int, default=10)
        one.add_argument("--score", default="")
        if name == "agreement":
            one.add_argument("--shares", default="0,0.2,0.333,0.5,1")
            one.add_argument("--every", type=int, default=1)
        else:
            one.add_argument("--shares", default="0.2,0.25,0.3")
            one.add_argument("--workers", type=int, default=5)
    args = parser.parse_args()
    args.study(args, load_trained(args.model, resolve_device(args.device)), open_cohort(args.cohort))


def table_head(columns: Sequence[str]) -> str:
    return f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}"


def calibration_config(args: argparse.Namespace) -> CalibrationConfig:
    score = tuple(name for name in args.score.split(",") if name)
    return CalibrationConfig(score=score, levels=args.levels, signal=Signal.ERROR)


# ---- agreement -------------------------------------------------------------------------------------------------------


def agreement(args: argparse.Namespace, model: TrainedModel, cohort: Cohort) -> None:
    config = calibration_config(args)
    _measured, rows, truth = measured_slices(cohort, config)
    rows, truth = rows[:: args.every], truth[:: args.every]
    decision = OURS if args.every == 1 else replace(OURS, context_mm=0.0)
    error, gradient, calibration = error_and_gradient(model, cohort, rows, config, decision.context_mm)

    unhealthy, inside = truth.any(axis=(1, 2)), foreground(cohort.pixels(rows))
    labels, positions = cohort.labels[rows], slice_positions(cohort, rows)
    print(f"{len(rows)} slices, {int(unhealthy.sum())} with a lesion; w = {calibration.strength:g}, by error maps\n")
    print(table_head(("share of gradients", "AUC of maps", "unhealthy DICE", "mixed DICE", "AUPRC")))
    for share in (float(word) for word in args.shares.split(",")):
        maps = SignalMaps(agreement_maps(error, gradient, share), error.last_maps)
        agreed = replace(error, maps_by_signal={Signal.ERROR: maps})
        decisions = decide(agreed, refit_maps(calibration, agreed, labels, positions), decision, positions)
        scores = (
            auc(smallest_lesion_level(agreed.maps[:, 0].numpy()), labels == UNHEALTHY),
            dice(decisions.drawn, truth)[unhealthy].mean(),
            dice(decisions.masks, truth).mean(),
            average_precision(decisions.maps[unhealthy][inside[unhealthy]], truth[unhealthy][inside[unhealthy]]),
        )
        print(f"| {share:g} | {' | '.join(f'{score:.3f}' for score in scores)} |", flush=True)


def error_and_gradient(
    model: TrainedModel, cohort: Cohort, rows: np.ndarray, config: CalibrationConfig, context_mm: float
) -> tuple[Evidence, Evidence, Calibration]:
    """Evidence of both signals at the strength chosen by error maps, and the calibration."""
    settings, both = config.settings(model.channels(config.score)), (Signal.ERROR, Signal.GRADIENT_ABOVE)
    batches = evidence_batches(
        model.predict,
        lambda some: cohort.pixels(rows[some]),
        slice_seeds(cohort.indices[rows], config.seed),
        EvidenceRequest(settings, config.strengths, model.device, batch_for(model.device), both, keep=compact),
    )
    evidence = concatenate(batches)
    calibration = calibrate(
        evidence,
        cohort.labels[rows],
        cohort.patients[rows],
        positions=slice_positions(cohort, rows),
        context_mm=context_mm,
        strength_by=config.strength_by,
    )
    error, gradient = (evidence.with_signal(signal).at(calibration.strength) for signal in both)
    return error, gradient, calibration


def agreement_maps(error: Evidence, gradient: Evidence, share: float) -> torch.Tensor:
    """The method's agreement signal, with another share of the gradient."""
    settings = replace(error.settings, signal=Signal.AGREEMENT, gradient_share=share)
    both = {Signal.ERROR: error, Signal.GRADIENT_ABOVE: gradient}
    maps = {signal: evidence.maps_by_signal[signal] for signal, evidence in both.items()}
    return replace(error, maps_by_signal=maps).with_maps_of(settings).maps


# ---- strengths -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Labelled:
    """Slices with labels for calibration, and masks for scores."""

    labels: np.ndarray
    patients: np.ndarray
    positions: SlicePositions
    truth: np.ndarray
    foreground: np.ndarray


def strengths(args: argparse.Namespace, model: TrainedModel, cohort: Cohort) -> None:
    torch.backends.cudnn.benchmark = True
    config = calibration_config(args)
    rows = labelled_rows(cohort, "val", config.most, config.seed)
    gathered = gather_labelled(model, cohort, config, silent, World())
    slices = Labelled(
        gathered.labels,
        gathered.patients,
        gathered.positions,
        Truth(cohort).masks(rows),
        cohort.pixels(rows).mean(axis=1) > -0.95,
    )
    shares, evidence = [float(word) for word in args.shares.split(",")], gathered.evidence
    columns = ("w", "cosine", "maps", "accuracy", "AUPRC", "share", "unhealthy DICE", "mixed DICE", "volume DICE")
    print(table_head(columns), flush=True)
    with ProcessPoolExecutor(args.workers, multiprocessing.get_context("spawn")) as pool:
        jobs = [pool.submit(strength_rows, evidence.at(one), slices, shares) for one in evidence.strengths]
        for job in jobs:
            print(job.result(), flush=True)


def strength_rows(evidence: Evidence, slices: Labelled, shares: Sequence[float]) -> str:
    """A row for each share of the peak, at the single strength of the evidence."""
    calibration = calibrate(evidence, slices.labels, slices.patients, positions=slices.positions)
    (candidate,) = calibration.candidates
    unhealthy, rows = slices.labels == UNHEALTHY, []
    for share in shares:
        settings = MaskSettings(OURS.mask.threshold, peak_share=share)
        decision = DecisionSettings(context_mm=OURS.context_mm, mask=settings)
        decisions = decide(evidence, calibration, decision, slices.positions)
        scores = (
            candidate.accuracy,
            candidate.map_auc or 0.0,
            (decisions.detected == unhealthy).mean(),
            average_precision(decisions.maps[slices.foreground], slices.truth[slices.foreground]),
            share,
            dice(decisions.drawn, slices.truth)[unhealthy].mean(),
            dice(decisions.masks, slices.truth).mean(),
            mean_defined(volume_dice(decisions.masks, slices.truth, slices.patients)),
        )
        rows.append(f"| {candidate.strength:g} | {' | '.join(f'{score:.4g}' for score in scores)} |")
    return "\n".join(rows)


# ---- lowest level ----------------------------------------------------------------------------------------------------


def lowest_level(args: argparse.Namespace, model: TrainedModel, cohort: Cohort) -> None:
    signals = {Signal.GRADIENT: "all levels", Signal.GRADIENT_ABOVE: "without the lowest tenth"}
    rows = cohort.rows("test")
    lesions = Truth(cohort).masks(rows)
    unhealthy = np.flatnonzero(lesions.any(axis=(1, 2)))
    count = min(args.slices, len(unhealthy))
    chosen = unhealthy[np.linspace(0, len(unhealthy) - 1, count).round().astype(int)]
    rows, lesions = rows[chosen], lesions[chosen]
    inside = foreground(cohort.pixels(rows))
    print(table_head(("levels", "averaged", "unhealthy DICE", "AUPRC", "s")))
    for levels in (int(word) for word in args.levels.split(",")):
        start = time.perf_counter()
        settings = EvidenceSettings(spread_levels(levels), model.channels(()))
        evidence = concatenate(
            evidence_batches(
                model.predict,
                lambda some: cohort.pixels(rows[some]),
                slice_seeds(cohort.indices[rows]),
                EvidenceRequest(settings, [args.strength], model.device, batch_for(model.device), tuple(signals)),
            )
        )
        seconds = time.perf_counter() - start
        for signal, averaged in signals.items():
            maps = evidence.with_signal(signal).maps[:, 0].float().cpu().numpy()
            divergence = evidence.end_divergence[:, 0].double().cpu().numpy()
            cuts = thresholds(maps, mask_quantiles(divergence, float(divergence.max())), None, MaskSettings())
            smooth = median_filtered(maps)
            scores = dice(mask(smooth, cuts), lesions).mean(), average_precision(smooth[inside], lesions[inside])
            print(f"| {levels} | {averaged} | {scores[0]:.3f} | {scores[1]:.3f} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
