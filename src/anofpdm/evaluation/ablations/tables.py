"""Each ablation as a table: what was varied, and the numbers that came of it."""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from anofpdm.calibration.fit import FittedCalibration
from anofpdm.cohorts.store import Cohort
from anofpdm.evaluation.ablations.levels import FACTORS, Heard
from anofpdm.evaluation.metrics.pixels import dice
from anofpdm.labels import UNHEALTHY
from anofpdm.method.decision import Decisions, DecisionSettings, decide
from anofpdm.method.detection import Accuracy
from anofpdm.method.mask import MaskSettings, mask, thresholds
from anofpdm.options import Detector, Threshold

FIXED = tuple(round(0.90 + 0.01 * step, 2) for step in range(9))  # quantiles
UNGATED = DecisionSettings(detector=Detector.NONE)
Cell = str | int | float


@dataclass(frozen=True)
class Ablation:
    """A table, and the numbers that sum it up. Its figure is drawn from these alone."""

    name: str
    says: str  # one plain sentence
    columns: tuple[str, ...]
    rows: list[tuple[Cell, ...]]
    numbers: dict[str, float] = field(default_factory=dict)

    def column(self, name: str) -> list[Any]:
        return [row[self.columns.index(name)] for row in self.rows]


@dataclass(frozen=True)
class Study:
    """The slices, their lesions, and what the first pass has found."""

    cohort: Cohort
    rows: np.ndarray  # [N]
    lesions: np.ndarray  # bool [N, H, W]
    calibrated: FittedCalibration
    decisions: Decisions  # at w*, no detector

    @property
    def ill(self) -> np.ndarray:
        """Numbers of the slices with a lesion, [U]: the setup `unhealthy`."""
        return np.flatnonzero(self.lesions.any(axis=(1, 2)))

    def unhealthy_dice(self, drawn: np.ndarray) -> float:
        """Of masks [U, H, W]."""
        return float(dice(drawn, self.lesions[self.ill]).mean())


# ---- decided anew from the first pass, or heard in the second --------------------------------------------------------


def mse_curves(study: Study) -> Ablation:
    calibration, unhealthy = study.calibrated.calibration, study.calibrated.labels == UNHEALTHY
    at_chosen = study.calibrated.evidence.at(calibration.strength)
    curves = {"guided": at_chosen.mse_guided[:, 0].numpy(), "unguided": at_chosen.mse_unguided.numpy()}
    table: dict[str, np.ndarray] = {"level": np.array(calibration.settings.levels)}
    for group, members in (("healthy", ~unhealthy), ("unhealthy", unhealthy)):
        for kind, values in curves.items():
            table[f"{group}_{kind}_mean"] = values[members].mean(axis=0)
            for quartile in (25, 75):
                table[f"{group}_{kind}_q{quartile}"] = np.percentile(values[members], quartile, axis=0)
    says = (
        f"Mean error of the guided (MSE^h) and the unguided (MSE^0) estimate along the noise levels at w* = "
        f"{calibration.strength:g}, for {int((~unhealthy).sum())} healthy and {int(unhealthy.sum())} unhealthy slices; "
        "thin lines are quartiles."
    )
    return Ablation("mse_curves", says, tuple(table), table_rows(*table.values()), {"strength": calibration.strength})


def sam(study: Study, heard: Heard) -> Ablation:
    calibration = study.calibrated.calibration
    divergence = study.calibrated.evidence.at(calibration.strength).divergence[study.ill, 0].numpy().mean(axis=0)
    inside, outside = heard.inside.mean(axis=0), np.nanmean(heard.outside, axis=0)
    ratio = inside / np.maximum(outside, 1e-12)
    highest = calibration.settings.levels[int(ratio.argmax())]
    end = float(np.median(study.decisions.end_step[study.ill]))
    says = (
        f"Mean divergence M_t and mean magnitude of S_t in the lesion and in the foreground around it, over "
        f"{len(study.ill)} slices with a lesion: their ratio is largest, {ratio.max():.2f}, at level {highest}; "
        f"the median end step is {end:g}."
    )
    columns = ("level", "divergence", "inside", "outside", "ratio")
    rows = table_rows(calibration.settings.levels, divergence, inside, outside, ratio)
    return Ablation("sam", says, columns, rows, {"median_end_step": end, "level_of_largest_ratio": highest})


def lesion_size(study: Study) -> Ablation:
    ill, rows = study.ill, study.rows[study.ill]
    sizes, divergence = study.lesions[ill].sum(axis=(1, 2)), study.decisions.end_divergence[ill]
    r = _pearson(sizes, divergence)
    says = f"Lesion size against the divergence at the end step: Pearson r = {r:.3f} over {len(ill)} slices."
    table = table_rows(study.cohort.scans[rows], study.cohort.indices[rows], sizes, divergence)
    return Ablation("lesion_size", says, ("scan", "slice", "pixels", "divergence"), table, {"pearson_r": r})


def strength(study: Study) -> Ablation:
    evidence, calibration = study.calibrated.evidence, study.calibrated.calibration
    scores = []
    for one in calibration.candidates:
        there = evidence.at(one.strength)
        changed = replace(calibration, strength=one.strength, divergence_max=float(there.end_divergence.max()))
        decided = decide(there.map(lambda tensor: tensor[study.ill]), changed, UNGATED)
        scores.append(study.unhealthy_dice(decided.drawn))
    rows = [(c.strength, c.accuracy, c.auc, score) for c, score in zip(calibration.candidates, scores, strict=True)]
    highest = rows[int(np.argmax(scores))][0]
    says = (
        f"Image-level accuracy by the cosine's best cut, and unhealthy DICE, against the guidance strength: labels "
        f"find w_best = {calibration.best_strength:g} and choose w* = {calibration.strength:g}; DICE is highest at "
        f"{highest:g}, which only masks can tell."
    )
    marks = {"best_strength": calibration.best_strength, "strength": calibration.strength}
    return Ablation("strength", says, ("strength", "accuracy", "auc", "unhealthy_dice"), list(rows), marks)


def end_step(heard: Heard) -> Ablation:
    means = heard.dice.mean(axis=0)
    best = FACTORS[int(means.argmax())]
    says = (
        "Unhealthy DICE when the map ends at a multiple of each slice's own end step t_e: "
        f"{means[FACTORS.index(1)]:.3f} at t_e itself, highest ({means.max():.3f}) at {best:g} t_e. "
        f"Levels end at 999: at 3 t_e, {heard.cut_short[-1]:.0%} of slices are cut short."
    )
    return Ablation(
        "end_step", says, ("factor", "unhealthy_dice", "cut_short"), table_rows(FACTORS, means, heard.cut_short)
    )


def threshold(study: Study) -> Ablation:
    calibration, ill = study.calibrated.calibration, study.ill
    maps = study.calibrated.evidence.at(calibration.strength).maps[ill, 0].float().numpy()
    smooth, healthy = study.decisions.maps[ill], calibration.with_context(0.0).healthy_threshold

    def score(quantiles: np.ndarray, name: str) -> float:
        settings = MaskSettings(Threshold(name))
        return study.unhealthy_dice(mask(smooth, thresholds(maps, quantiles, healthy, settings), settings.smallest))

    quantile = study.decisions.quantile[ill]
    by_name = {"dynamic": "quantile", "healthy": "healthy", "both": "both"}
    rows: list[tuple[Cell, ...]] = [(name, "", score(quantile, kind)) for name, kind in by_name.items()]
    rows += [("fixed", fixed, score(np.full(len(ill), fixed), "quantile")) for fixed in FIXED]
    best = max(rows[len(by_name) :], key=lambda row: row[2])
    says = (
        f"Unhealthy DICE with the paper's dynamic quantile ({rows[0][2]:.3f}), the threshold from healthy slices "
        f"({rows[1][2]:.3f}), both ({rows[2][2]:.3f}), and fixed quantiles: {best[1]} is best ({best[2]:.3f}); "
        "that one only masks can tell."
    )
    return Ablation("threshold", says, ("threshold", "quantile", "unhealthy_dice"), rows)


def levels(by_levels: dict[int, tuple[float, float]]) -> Ablation:
    rows: list[tuple[Cell, ...]] = [(count, *by_levels[count]) for count in sorted(by_levels)]
    says = "Unhealthy DICE and AUPRC against the number of noise levels K, calibrated anew by labels for each."
    return Ablation("levels", says, ("levels", "unhealthy_dice", "auprc"), rows)


def variants(by_name: dict[str, tuple[float, float]]) -> Ablation:
    rows: list[tuple[Cell, ...]] = [(name, *quality) for name, quality in by_name.items()]
    says = (
        "Unhealthy DICE and AUPRC of the paper's variants, each encoding calibrated by labels: noise by DDIM's "
        "inversion or drawn afresh at every level; maps averaged up to the end step or the last one alone; maps of the "
        "gradient, and (gradient-above) of the plain one without the lowest level."
    )
    return Ablation("variants", says, ("variant", "unhealthy_dice", "auprc"), rows)


def detector(study: Study) -> Ablation:
    calibration, decisions = study.calibrated.calibration, study.decisions
    nobody = Accuracy(float("nan"), float("nan"))
    n = len(study.rows)
    found = {
        "cosine": (calibration.cosine_accuracy, decisions.similarity <= calibration.cut),
        "curve": (calibration.with_context(0.0).curve_accuracy, decisions.log_odds >= 0),
        "none": (nobody, np.ones(n, dtype=bool)),
        "all-empty": (nobody, np.zeros(n, dtype=bool)),
    }
    rows: list[tuple[Cell, ...]] = [
        (name, rated.accuracy, rated.auc, float(dice(decisions.drawn & detected[:, None, None], study.lesions).mean()))
        for name, (rated, detected) in found.items()
    ]
    says = (
        "Accuracy and AUC of both detectors on patients they were not fitted on, and mixed DICE with each, with none, "
        "and of predicting nothing; for mixed DICE the detectors were fitted on the labels of these very slices."
    )
    return Ablation("detector", says, ("detector", "accuracy", "auc", "mixed_dice"), rows)


def table_rows(*columns: Any) -> list[tuple[Cell, ...]]:
    """Plain Python values, a row each."""
    return list(zip(*(np.asarray(column).tolist() for column in columns), strict=True))


def _pearson(x: np.ndarray, y: np.ndarray) -> float:
    """NaN where either does not vary."""
    if len(x) < 2 or not np.ptp(x) or not np.ptp(y):
        return float("nan")
    return float(np.corrcoef(x, y)[0, 1])
