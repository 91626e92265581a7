"""Calibration: guidance strength, detectors and thresholds from image-level labels alone.

No type reachable from here holds a lesion mask.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec
import numpy as np
import torch
from torch import Tensor

from anofpdm.choices import Detector, StrengthBy, parse
from anofpdm.errors import CalibrationError, MethodError
from anofpdm.labels import HEALTHY, UNHEALTHY
from anofpdm.method.context import SlicePositions, smooth_across_slices
from anofpdm.method.detection import (
    Accuracy,
    CurveDetector,
    Scores,
    auc,
    best_cut,
    cross_validate,
    fit_and_validate,
    log_curves,
)
from anofpdm.method.evidence import Evidence, EvidenceSettings
from anofpdm.method.mask import median_filtered, smallest_lesion_level
from anofpdm.network.schedule import NoiseSchedule

ACCURACY_RATIO = 0.98
HEALTHY_PERCENTILE = 99.8  # of the filtered maps of healthy slices
CONTEXT_MM = 2.0
STRENGTHS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 8.0, 12.0, 20.0, 30.0)  # default candidates


NotNegative = Annotated[float, msgspec.Meta(ge=0)]  # checked where a file is read, like all such limits


@dataclass(frozen=True)
class Candidate:
    """How well one guidance strength separates the classes."""

    strength: float
    accuracy: float  # of the best cut of the cosine
    cut: float
    auc: float  # of the cosine
    map_auc: float  # of the maps alone


@dataclass(frozen=True)
class ContextFit:
    """What depends on the smoothing across slices."""

    context_mm: NotNegative
    curve: CurveDetector
    curve_accuracy: Accuracy
    healthy_threshold: NotNegative | None = None  # None: not fitted for the signal of the maps


@dataclass(frozen=True)
class Calibration:
    settings: EvidenceSettings
    strength: NotNegative  # w*
    best_strength: NotNegative
    cut: float  # of the cosine: slices at or below are unhealthy
    divergence_max: Annotated[float, msgspec.Meta(gt=0)]  # M_max
    detector: Detector  # the better one in cross-validated accuracy
    cosine_accuracy: Accuracy
    fitted: tuple[ContextFit, ...]  # without smoothing across slices, and with it
    candidates: tuple[Candidate, ...]
    accuracy_ratio: float
    n_healthy: int
    n_unhealthy: int
    n_patients: int
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    modalities: tuple[str, ...] = ()
    checkpoint_sha256: str = ""
    foreground: tuple[NotNegative, NotNegative] = (0.0, 1.0)  # smallest and largest foreground fraction among the scans
    strength_by: StrengthBy = StrengthBy.COSINE
    n_estimated: int = 0  # slices whose label was estimated from that of their scan

    def __post_init__(self) -> None:
        if self.detector not in (Detector.COSINE, Detector.CURVE):
            raise MethodError(f"a calibration chooses the detector cosine or curve, got {self.detector}")
        levels, channels = self.settings.levels, self.settings.channels
        if levels[-1] >= len(NoiseSchedule.linear()):
            raise MethodError(f"noise level {levels[-1]} does not exist")
        if self.modalities and max(channels) >= len(self.modalities):
            raise MethodError(f"channel {max(channels)} does not exist: there are {len(self.modalities)} modalities")
        if not self.fitted or any(len(fit.curve.weights) != len(levels) for fit in self.fitted):
            raise MethodError(f"a curve detector needs one weight for each of the {len(levels)} noise levels")

    @property
    def at_edge(self) -> bool:
        """Whether a larger strength than any candidate might be better still."""
        chosen = self.best_strength if self.strength_by == StrengthBy.COSINE else self.strength
        return chosen == max(candidate.strength for candidate in self.candidates)

    @property
    def context_mm(self) -> float:
        """The widest smoothing across slices that was fitted; 0 for none."""
        return max(fit.context_mm for fit in self.fitted)

    def with_context(self, context_mm: float) -> ContextFit:
        for fit in self.fitted:
            if math.isclose(fit.context_mm, context_mm):
                return fit
        known = ", ".join(f"{fit.context_mm:g}" for fit in self.fitted)
        raise CalibrationError(
            f"not calibrated for smoothing across slices of {context_mm:g} mm (only {known}); "
            f"calibrate with --context {context_mm:g}"
        )


def calibrate(
    evidence: Evidence,
    labels: Sequence[int] | np.ndarray,
    patients: Sequence[object] | np.ndarray,
    accuracy_ratio: float = ACCURACY_RATIO,
    *,
    positions: SlicePositions | None = None,  # default: slices are not neighbours
    context_mm: float = CONTEXT_MM,
    strength_by: StrengthBy = StrengthBy.COSINE,
) -> Calibration:
    """Guidance strength, detectors and thresholds from slices that are labelled healthy or unhealthy."""
    unhealthy, patients = _checked_labels(evidence, labels, patients)
    candidates = rate_strengths(evidence, unhealthy)
    strength_by = parse(StrengthBy, strength_by)
    best, chosen = choose_strength(candidates, accuracy_ratio, strength_by)
    at_chosen = evidence.at(chosen.strength)
    divergence = to_numpy(at_chosen.divergence[:, 0])  # [N, K]
    if not divergence.max() > 0:
        raise CalibrationError("guidance has no effect: the model ignores its labels; train it longer")
    contexts = [0.0] if positions is None or context_mm == 0 else [0.0, context_mm]
    positions = positions or SlicePositions.unrelated(len(unhealthy))
    fitted = _fit_curves(divergence, contexts, positions, unhealthy, patients)
    cosine_accuracy = _cosine_accuracy(to_numpy(at_chosen.similarity[:, 0]), unhealthy, patients)
    calibration = Calibration(
        settings=evidence.settings,
        strength=chosen.strength,
        best_strength=best.strength,
        cut=chosen.cut,
        divergence_max=float(divergence.max()),
        detector=Detector.CURVE if fitted[0].curve_accuracy.accuracy > cosine_accuracy.accuracy else Detector.COSINE,
        cosine_accuracy=cosine_accuracy,
        fitted=fitted,
        candidates=candidates,
        accuracy_ratio=accuracy_ratio,
        n_healthy=int((~unhealthy).sum()),
        n_unhealthy=int(unhealthy.sum()),
        n_patients=len(np.unique(patients)),
        strength_by=strength_by,
    )
    return refit_maps(calibration, at_chosen, unhealthy, positions)


def _fit_curves(
    divergence: np.ndarray,
    contexts: Sequence[float],
    positions: SlicePositions,
    unhealthy: np.ndarray,
    patients: np.ndarray,
) -> tuple[ContextFit, ...]:
    """The curve detector for each smoothing across slices."""
    logs = log_curves(divergence)
    return tuple(
        ContextFit(mm, *fit_and_validate(smooth_across_slices(logs, positions, mm), unhealthy, patients))
        for mm in contexts
    )


def rate_strengths(evidence: Evidence, unhealthy: np.ndarray) -> tuple[Candidate, ...]:
    """For each strength, from the weakest: the best cut of the cosine and its accuracy, and the AUC of the maps."""
    similarity, maps, candidates = to_numpy(evidence.similarity), evidence.maps, []
    for column, strength in sorted(enumerate(evidence.strengths), key=lambda pair: pair[1]):
        cut, accuracy = best_cut(similarity[:, column], unhealthy)
        map_auc = auc(smallest_lesion_level(to_numpy(maps[:, column])), unhealthy)
        cosine_auc = auc(-similarity[:, column], unhealthy)
        candidates.append(Candidate(strength, accuracy, cut, cosine_auc, map_auc))
    return tuple(candidates)


def choose_strength(
    candidates: Sequence[Candidate], accuracy_ratio: float, strength_by: StrengthBy = StrengthBy.COSINE
) -> tuple[Candidate, Candidate]:
    """The best candidate, and w*.

    By the cosine, as in the paper: the largest strength, from the most accurate one on, that is nearly as accurate. By
    the maps (ours): the smallest whose AUC is nearly the best, since stronger guidance spreads beyond a lesion's edge.
    """
    if strength_by == StrengthBy.MAP:
        best = max(candidates, key=lambda candidate: candidate.map_auc)
        return best, next(other for other in candidates if other.map_auc >= accuracy_ratio * best.map_auc)
    best = max(candidates, key=lambda candidate: candidate.accuracy)  # of equals the first, which is the weakest
    least = accuracy_ratio * best.accuracy - 1e-12
    good_enough = [other for other in candidates if other.strength >= best.strength and other.accuracy >= least]
    return best, good_enough[-1]


def refit_maps(
    calibration: Calibration, evidence: Evidence, unhealthy: np.ndarray, positions: SlicePositions
) -> Calibration:
    """The same strength and detectors for maps of the evidence's signal: thresholds are fitted to those."""
    maps = to_numpy(evidence.at(calibration.strength).maps[:, 0])

    def with_threshold(fit: ContextFit) -> ContextFit:
        healthy_maps = median_filtered(smooth_across_slices(maps, positions, fit.context_mm)[~unhealthy])
        return replace(fit, healthy_threshold=float(np.percentile(healthy_maps, HEALTHY_PERCENTILE)))

    return replace(calibration, settings=evidence.settings, fitted=tuple(map(with_threshold, calibration.fitted)))


def check_both_classes(labels: np.ndarray) -> None:
    n_unhealthy = int((labels == UNHEALTHY).sum())
    if not 0 < n_unhealthy < len(labels):
        raise CalibrationError(
            f"need both classes, got {len(labels) - n_unhealthy} healthy and {n_unhealthy} unhealthy slices; "
            "use more of them (--most), or another part of the cohort (--split)"
        )


def _cosine_accuracy(similarity: np.ndarray, unhealthy: np.ndarray, patients: np.ndarray) -> Accuracy:
    def fit(rows: np.ndarray) -> Callable[[np.ndarray], Scores]:
        cut, _ = best_cut(similarity[rows], unhealthy[rows])
        return lambda held_out: cut - held_out

    return cross_validate(fit, similarity, unhealthy, patients)


def _checked_labels(
    evidence: Evidence, labels: Sequence[int] | np.ndarray, patients: Sequence[object] | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """bool [N], whether unhealthy, and the patients as an array."""
    labels, patients = np.asarray(labels), np.asarray(patients)
    if not len(evidence) == len(labels) == len(patients):
        raise CalibrationError(
            f"{len(evidence)} slices, {len(labels)} labels and {len(patients)} patients; give one each a slice"
        )
    if not np.isin(labels, (HEALTHY, UNHEALTHY)).all():
        raise CalibrationError("every slice must be labelled healthy or unhealthy; leave out unlabelled ones")
    check_both_classes(labels)
    return labels == UNHEALTHY, patients


def to_numpy(tensor: Tensor) -> np.ndarray:
    """Maps, which may be in half precision, in float32; everything else in float64."""
    return tensor.cpu().to(torch.float32 if tensor.ndim == 3 else torch.float64).numpy()
