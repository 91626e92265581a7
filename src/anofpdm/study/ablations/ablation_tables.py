"""Each ablation as a table: the parameter varied, and the resulting scores."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from anofpdm.choices import Threshold
from anofpdm.labels import UNHEALTHY
from anofpdm.method.decision import decide
from anofpdm.method.detection import Accuracy
from anofpdm.method.mask import MaskSettings, mask, thresholds
from anofpdm.scoring.metrics.pixels import dice
from anofpdm.study.ablations.evidence_passes import NO_DETECTOR, Study
from anofpdm.study.ablations.levels import FACTORS, LevelMeasurements

FIXED = tuple(round(0.90 + 0.01 * step, 2) for step in range(9))  # quantiles
Row = tuple[str | int | float, ...]


@dataclass(frozen=True)
class Ablation:
    """A table and its key numbers. Its figure is drawn from these alone."""

    name: str
    summary: str
    columns: tuple[str, ...]
    rows: list[Row]
    numbers: dict[str, float] = field(default_factory=dict)

    def column(self, name: str) -> list[Any]:
        return [row[self.columns.index(name)] for row in self.rows]


def mse_curves(study: Study) -> Ablation:
    calibration, unhealthy = study.calibration, study.gathered.labels == UNHEALTHY
    at_chosen = study.gathered.evidence.at(calibration.strength)
    curves = {"guided": at_chosen.mse_guided[:, 0].numpy(), "unguided": at_chosen.mse_unguided.numpy()}
    table: dict[str, np.ndarray] = {"level": np.array(calibration.settings.levels)}
    for group, members in (("healthy", ~unhealthy), ("unhealthy", unhealthy)):
        for kind, values in curves.items():
            table[f"{group}_{kind}_mean"] = values[members].mean(axis=0)
            for quartile in (25, 75):
                table[f"{group}_{kind}_q{quartile}"] = np.percentile(values[members], quartile, axis=0)
    summary = (
        f"Mean error of the guided (MSE^h) and the unguided (MSE^0) estimate along the noise levels at w* = "
        f"{calibration.strength:g}, for {int((~unhealthy).sum())} healthy and {int(unhealthy.sum())} unhealthy slices; "
        "thin lines are quartiles."
    )
    rows = table_rows(*table.values())
    return Ablation("mse_curves", summary, tuple(table), rows, {"strength": calibration.strength})


def sam(study: Study, measurements: LevelMeasurements) -> Ablation:
    calibration = study.calibration
    divergence = study.gathered.evidence.at(calibration.strength).divergence[study.unhealthy, 0].numpy().mean(axis=0)
    inside, outside = measurements.inside.mean(axis=0), np.nanmean(measurements.outside, axis=0)
    ratio = inside / np.maximum(outside, 1e-12)
    highest = calibration.settings.levels[int(ratio.argmax())]
    end = float(np.median(study.decisions.measured.end_step[study.unhealthy]))
    summary = (
        f"Mean divergence M_t, and mean magnitude of S_t inside the lesion and in the foreground outside it, over "
        f"{len(study.unhealthy)} slices with a lesion: their ratio is largest, {ratio.max():.2f}, at level {highest}; "
        f"the median end step is {end:g}."
    )
    columns = ("level", "divergence", "inside", "outside", "ratio")
    rows = table_rows(calibration.settings.levels, divergence, inside, outside, ratio)
    return Ablation("sam", summary, columns, rows, {"median_end_step": end, "level_of_largest_ratio": highest})


def lesion_size(study: Study) -> Ablation:
    unhealthy, rows = study.unhealthy, study.rows[study.unhealthy]
    sizes, divergence = study.lesions[unhealthy].sum(axis=(1, 2)), study.decisions.measured.end_divergence[unhealthy]
    varies = len(sizes) > 1 and np.ptp(sizes) and np.ptp(divergence)
    r = float(np.corrcoef(sizes, divergence)[0, 1]) if varies else float("nan")
    summary = f"Lesion size against the divergence at the end step: Pearson r = {r:.3f} over {len(unhealthy)} slices."
    table = table_rows(study.cohort.scans[rows], study.cohort.indices[rows], sizes, divergence)
    return Ablation("lesion_size", summary, ("scan", "slice", "pixels", "divergence"), table, {"pearson_r": r})


def strength(study: Study) -> Ablation:
    evidence, calibration = study.gathered.evidence, study.calibration
    rows: list[Row] = []
    for candidate in calibration.candidates:
        at_strength = evidence.at(candidate.strength)
        changed = replace(
            calibration, strength=candidate.strength, divergence_max=float(at_strength.end_divergence.max())
        )
        decided = decide(at_strength[torch.from_numpy(study.unhealthy)], changed, NO_DETECTOR)
        rows.append((candidate.strength, candidate.accuracy, candidate.auc, study.unhealthy_dice(decided.drawn)))
    highest = max(rows, key=lambda row: row[3])[0]
    summary = (
        f"Image-level accuracy at the best cosine threshold, and unhealthy DICE, against the guidance strength: labels "
        f"give w_best = {calibration.best_strength:g} and w* = {calibration.strength:g}; DICE, which needs masks, is "
        f"highest at {highest:g}."
    )
    marks = {"best_strength": calibration.best_strength, "strength": calibration.strength}
    return Ablation("strength", summary, ("strength", "accuracy", "auc", "unhealthy_dice"), rows, marks)


def end_step(measurements: LevelMeasurements) -> Ablation:
    means = measurements.dice.mean(axis=0)
    best = FACTORS[int(means.argmax())]
    summary = (
        "Unhealthy DICE when the map ends at a multiple of each slice's own end step t_e: "
        f"{means[FACTORS.index(1)]:.3f} at t_e itself, highest ({means.max():.3f}) at {best:g} t_e. "
        f"Levels end at 999: at 3 t_e, {measurements.cut_short[-1]:.0%} of slices are cut short."
    )
    rows = table_rows(FACTORS, means, measurements.cut_short)
    return Ablation("end_step", summary, ("factor", "unhealthy_dice", "cut_short"), rows)


def threshold(study: Study) -> Ablation:
    calibration, unhealthy = study.calibration, study.unhealthy
    maps = study.gathered.evidence.at(calibration.strength).maps[unhealthy, 0].float().numpy()
    smooth, healthy = study.decisions.maps[unhealthy], calibration.with_context(0.0).healthy_threshold

    def score(quantiles: np.ndarray, kind: Threshold) -> float:
        settings = MaskSettings(kind)
        return study.unhealthy_dice(mask(smooth, thresholds(maps, quantiles, healthy, settings), settings.smallest))

    quantile = study.decisions.measured.quantile[unhealthy]
    by_name = {"dynamic": Threshold.QUANTILE, "healthy": Threshold.HEALTHY, "both": Threshold.BOTH}
    rows: list[Row] = [(name, "", score(quantile, kind)) for name, kind in by_name.items()]
    rows += [("fixed", fixed, score(np.full(len(unhealthy), fixed), Threshold.QUANTILE)) for fixed in FIXED]
    best = max(rows[len(by_name) :], key=lambda row: row[2])
    summary = (
        f"Unhealthy DICE with the paper's dynamic quantile ({rows[0][2]:.3f}), the threshold from healthy slices "
        f"({rows[1][2]:.3f}), both ({rows[2][2]:.3f}), and fixed quantiles, of which {best[1]} is best "
        f"({best[2]:.3f}); choosing that one needs masks."
    )
    return Ablation("threshold", summary, ("threshold", "quantile", "unhealthy_dice"), rows)


def levels(by_levels: dict[int, tuple[float, float]]) -> Ablation:
    rows: list[Row] = [(count, *by_levels[count]) for count in sorted(by_levels)]
    summary = "Unhealthy DICE and AUPRC against the number of noise levels K, calibrated with labels for each K."
    return Ablation("levels", summary, ("levels", "unhealthy_dice", "auprc"), rows)


def variants(by_name: dict[str, tuple[float, float]]) -> Ablation:
    rows: list[Row] = [(name, *quality) for name, quality in by_name.items()]
    summary = (
        "Unhealthy DICE and AUPRC of the paper's variants, each encoding calibrated with labels: DDIM inversion or "
        "fresh noise at every level; maps averaged up to the end step or the last map alone; maps of the gradient, "
        "also without the lowest tenth of the levels (gradient-above)."
    )
    return Ablation("variants", summary, ("variant", "unhealthy_dice", "auprc"), rows)


def detector(study: Study) -> Ablation:
    calibration, decisions = study.calibration, study.decisions
    undefined = Accuracy(float("nan"), float("nan"))
    n = len(study.rows)
    detectors = {
        "cosine": (calibration.cosine_accuracy, decisions.measured.similarity <= calibration.cut),
        "curve": (calibration.with_context(0.0).curve_accuracy, decisions.log_odds >= 0),
        "none": (undefined, np.ones(n, dtype=bool)),
        "all-empty": (undefined, np.zeros(n, dtype=bool)),
    }
    rows: list[Row] = [
        (name, rated.accuracy, rated.auc, float(dice(decisions.drawn & detected[:, None, None], study.lesions).mean()))
        for name, (rated, detected) in detectors.items()
    ]
    summary = (
        "Accuracy and AUC of both detectors on held-out patients, and mixed DICE with each, with none, and with empty "
        "masks; for mixed DICE the detectors were fitted on the labels of the same slices."
    )
    return Ablation("detector", summary, ("detector", "accuracy", "auc", "mixed_dice"), rows)


def gallery(study: Study) -> Ablation:
    shown = study.unhealthy[study.gallery]
    sizes, rows = study.lesions[shown].sum(axis=(1, 2)), study.rows[shown]
    summary = (
        "S_t and the gradient (e_h - e_0)^2 of example slices, with the input and the lesion mask. Each tile has its "
        "own scale; the last column is the slice's own end step."
    )
    table = table_rows(
        study.cohort.scans[rows], study.cohort.indices[rows], sizes, study.decisions.measured.end_step[shown]
    )
    return Ablation("gallery", summary, ("scan", "slice", "pixels", "end_step"), table)


def table_rows(*columns: Any) -> list[Row]:
    """Rows of plain Python values."""
    return list(zip(*(np.asarray(column).tolist() for column in columns), strict=True))
