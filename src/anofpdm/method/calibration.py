"""What must be known of a model before it can be used, learned from image-level labels alone.

No type that can be reached from here holds a drawn lesion.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from anofpdm.errors import CalibrationError, MethodError
from anofpdm.labels import HEALTHY, UNHEALTHY
from anofpdm.method.context import SlicePositions, smooth_across_slices
from anofpdm.method.detection import (
    Accuracy,
    CurveDetector,
    auc,
    best_cut,
    cross_validated,
    fitted_and_rated,
    log_curves,
)
from anofpdm.method.evidence import Evidence, EvidenceSettings
from anofpdm.method.mask import median_filtered, smallest_lesion_level
from anofpdm.network.schedule import NoiseSchedule

FORMAT = 1
ACCURACY_RATIO = 0.98
HEALTHY_PERCENTILE = 99.8  # of the filtered maps of healthy slices
CONTEXT_MM = 2.0
STRENGTH_BY = ("cosine", "map")
STRENGTHS = (0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 8.0, 12.0, 20.0, 30.0)  # candidates, where none are given


@dataclass(frozen=True)
class Candidate:
    """How well the cosine of the two error curves tells the classes apart at one guidance strength."""

    strength: float
    accuracy: float
    cut: float
    auc: float
    map_auc: float | None = None  # how well the maps alone do: by what the smallest lesion's number of pixels reach


@dataclass(frozen=True)
class Fitted:
    """What depends on how far slices look at their neighbours."""

    context_mm: float
    curve: CurveDetector
    curve_accuracy: Accuracy
    healthy_threshold: float


@dataclass(frozen=True)
class Calibration:
    settings: EvidenceSettings
    strength: float  # w*
    best_strength: float
    cut: float  # of the cosine: at or below, a slice is called unhealthy
    divergence_max: float  # M_max
    detector: str  # the better one in cross-validated accuracy
    cosine_accuracy: Accuracy
    fitted: tuple[Fitted, ...]  # slices alone, and with their neighbours
    candidates: tuple[Candidate, ...]
    accuracy_ratio: float
    n_healthy: int
    n_unhealthy: int
    n_patients: int
    seed: int = 0
    modalities: tuple[str, ...] = ()
    checkpoint_sha256: str = ""
    foreground: tuple[float, float] = (0.0, 1.0)  # the smallest and largest share among the scans
    strength_by: str = "cosine"  # what chose the strength

    @property
    def rated(self) -> Candidate:
        """How well the chosen strength does."""
        return next(one for one in self.candidates if one.strength == self.strength)

    @property
    def at_edge(self) -> bool:
        """Whether a larger strength than any tried might be better still."""
        chosen = self.best_strength if self.strength_by == "cosine" else self.strength
        return chosen == max(one.strength for one in self.candidates)

    @property
    def context_mm(self) -> float:
        """The widest that it was calibrated for; 0 where slices were on their own."""
        return max(one.context_mm for one in self.fitted)

    def with_context(self, context_mm: float) -> Fitted:
        for one in self.fitted:
            if math.isclose(one.context_mm, context_mm):
                return one
        known = ", ".join(f"{one.context_mm:g}" for one in self.fitted)
        raise CalibrationError(f"not calibrated for a context of {context_mm:g} mm (only {known}); calibrate with it")

    def for_model(self, checkpoint_sha256: str, modalities: Sequence[str]) -> "Calibration":
        return replace(self, checkpoint_sha256=checkpoint_sha256, modalities=tuple(modalities))

    def for_signal(self, signal: str) -> "Calibration":
        """For maps of another signal: what is known of divergences and errors holds, a threshold for maps does not."""
        if signal == self.settings.signal:
            return self
        if self.strength_by != "cosine":
            raise CalibrationError(f"its strength was chosen by maps of another signal; calibrate for {signal!r}")
        fitted = tuple(replace(one, healthy_threshold=math.nan) for one in self.fitted)
        return replace(self, settings=replace(self.settings, signal=signal), fitted=fitted)


def calibrate(
    evidence: Evidence,
    labels: Sequence[int] | np.ndarray,
    patients: Sequence[object] | np.ndarray,
    accuracy_ratio: float = ACCURACY_RATIO,
    *,
    places: SlicePositions | None = None,  # without: slices alone
    context_mm: float = CONTEXT_MM,
    strength_by: str = "cosine",
) -> Calibration:
    """Guidance strength, detectors and thresholds from slices that are labelled healthy or unhealthy."""
    unhealthy, patients = _checked(evidence, labels, patients)
    candidates = rated_strengths(evidence, unhealthy)
    best, chosen = chosen_candidate(candidates, accuracy_ratio, strength_by)
    at_chosen = evidence.at(chosen.strength)
    divergence = _numpy(at_chosen.divergence[:, 0])  # [N, K]
    divergence_max = float(divergence.max())
    if not divergence_max > 0:
        raise CalibrationError("guidance changes nothing: the model has not learned from its labels; train it longer")
    maps = _numpy(at_chosen.maps[:, 0])
    contexts = [0.0] if places is None or context_mm == 0 else [0.0, context_mm]
    places = places or SlicePositions(np.arange(len(labels)), np.zeros(len(labels)))
    fitted = tuple(_fitted(mm, divergence, maps, places, unhealthy, patients) for mm in contexts)
    cosine = _cosine_accuracy(_numpy(at_chosen.similarity[:, 0]), unhealthy, patients)
    better = fitted[0].curve_accuracy.accuracy > cosine.accuracy
    return Calibration(
        settings=evidence.settings,
        strength=chosen.strength,
        best_strength=best.strength,
        cut=chosen.cut,
        divergence_max=divergence_max,
        detector="curve" if better else "cosine",
        cosine_accuracy=cosine,
        fitted=fitted,
        candidates=candidates,
        accuracy_ratio=accuracy_ratio,
        n_healthy=int((~unhealthy).sum()),
        n_unhealthy=int(unhealthy.sum()),
        n_patients=len(np.unique(patients)),
        strength_by=strength_by,
    )


def rated_strengths(evidence: Evidence, unhealthy: np.ndarray) -> tuple[Candidate, ...]:
    """By strength, the accuracy of the best cut of the cosine."""
    similarity = _numpy(evidence.similarity)  # [N, W]
    rated = []
    for column, strength in enumerate(evidence.strengths):
        cut = best_cut(similarity[:, column], unhealthy)
        reached = smallest_lesion_level(_numpy(evidence.maps[:, column]))
        rated.append(
            Candidate(
                strength, cut.accuracy, cut.value, auc(-similarity[:, column], unhealthy), auc(reached, unhealthy)
            )
        )
    return tuple(sorted(rated, key=lambda one: one.strength))


def chosen_candidate(
    candidates: Sequence[Candidate], accuracy_ratio: float, strength_by: str = "cosine"
) -> tuple[Candidate, Candidate]:
    """The best strength, and w*. By maps: w* is the weakest whose maps tell the classes apart nearly as well as the
    best, since stronger ones spill over a lesion's edge. By the cosine, as in the paper: from the most accurate one on,
    the largest that is nearly as accurate."""
    if strength_by not in STRENGTH_BY:
        raise MethodError(f"unknown way to choose a strength {strength_by!r}; choose one of {', '.join(STRENGTH_BY)}")
    if strength_by == "map":
        best = max(candidates, key=lambda one: one.map_auc or 0.0)
        return best, next(one for one in candidates if (one.map_auc or 0.0) >= accuracy_ratio * (best.map_auc or 0.0))
    best = max(candidates, key=lambda one: one.accuracy)  # of equals the first, that is the weakest
    enough = [
        one
        for one in candidates
        if one.strength >= best.strength and one.accuracy >= accuracy_ratio * best.accuracy - 1e-12
    ]
    return best, enough[-1]


def _fitted(
    context_mm: float,
    divergence: np.ndarray,
    maps: np.ndarray,
    places: SlicePositions,
    unhealthy: np.ndarray,
    patients: np.ndarray,
) -> Fitted:
    logs = smooth_across_slices(log_curves(divergence), places, context_mm)
    curve, accuracy = fitted_and_rated(logs, unhealthy, patients)
    return Fitted(context_mm, curve, accuracy, _healthy_threshold(context_mm, maps, places, unhealthy))


def _healthy_threshold(context_mm: float, maps: np.ndarray, places: SlicePositions, unhealthy: np.ndarray) -> float:
    healthy_maps = median_filtered(smooth_across_slices(maps, places, context_mm)[~unhealthy])
    return float(np.percentile(healthy_maps, HEALTHY_PERCENTILE))


def for_maps_of(
    evidence: Evidence, calibration: Calibration, labels: np.ndarray, places: SlicePositions
) -> Calibration:
    """The same strength and detectors, for maps of the evidence's signal: what depends on maps is learned anew."""
    maps, unhealthy = _numpy(evidence.at(calibration.strength).maps[:, 0]), labels == UNHEALTHY
    fitted = tuple(
        replace(one, healthy_threshold=_healthy_threshold(one.context_mm, maps, places, unhealthy))
        for one in calibration.fitted
    )
    return replace(calibration, settings=evidence.settings, fitted=fitted)


def _cosine_accuracy(similarity: np.ndarray, unhealthy: np.ndarray, patients: np.ndarray) -> Accuracy:
    def fit(rows: np.ndarray) -> Any:
        cut = best_cut(similarity[rows], unhealthy[rows]).value
        return lambda held_out: cut - held_out

    return cross_validated(fit, similarity, unhealthy, patients)


def _checked(
    evidence: Evidence, labels: Sequence[int] | np.ndarray, patients: Sequence[object] | np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    labels, patients = np.asarray(labels), np.asarray(patients)
    if not len(evidence) == len(labels) == len(patients):
        raise CalibrationError(f"{len(evidence)} slices, {len(labels)} labels and {len(patients)} patients; one each")
    if not np.isin(labels, (HEALTHY, UNHEALTHY)).all():
        raise CalibrationError("every slice must be labelled healthy or unhealthy; leave out those without a label")
    check_both_classes(labels)
    return labels == UNHEALTHY, patients


def check_both_classes(labels: np.ndarray) -> None:
    n_unhealthy = int((labels == UNHEALTHY).sum())
    if not 0 < n_unhealthy < len(labels):
        raise CalibrationError(
            f"need both classes, got {len(labels) - n_unhealthy} healthy and {n_unhealthy} unhealthy slices; "
            "take more of them (--most), or another part of the cohort (--split)"
        )


def _numpy(tensor: Any) -> np.ndarray:
    """Maps, which may be in half precision, in float32; curves and what follows from them in float64."""
    array: np.ndarray = tensor.cpu().to(torch.float32 if tensor.ndim == 3 else torch.float64).numpy()
    return array


# ---- as a file -------------------------------------------------------------------------------------------------------


def to_json(calibration: Calibration) -> str:
    """NaN, which is no JSON, becomes null: only accuracies can be NaN."""
    said = {"format": FORMAT, **asdict(calibration)}
    said["cosine_accuracy"] = _accuracy_said(calibration.cosine_accuracy)
    for one, fitted in zip(said["fitted"], calibration.fitted, strict=True):
        one["curve_accuracy"] = _accuracy_said(fitted.curve_accuracy)
    return json.dumps(said, indent=2, default=np.ndarray.tolist, allow_nan=False)


def _accuracy_said(accuracy: Accuracy) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else value for name, value in asdict(accuracy).items()}


def _restored_accuracy(said: Mapping[str, float | None]) -> Accuracy:
    return Accuracy(**{name: math.nan if value is None else float(value) for name, value in said.items()})


def from_json(text: str, where: str) -> Calibration:
    try:
        said = json.loads(text)
        if said.pop("format", None) != FORMAT:
            raise CalibrationError(f"{where}: of another version; calibrate again")
        found = _restored(said)
        _check_sense(found)
        return found
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, MethodError) as problem:
        raise CalibrationError(f"{where}: damaged ({problem}); calibrate again") from None


def _restored(said: Mapping[str, Any]) -> Calibration:
    values = dict(said)
    settings: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values["settings"].items()}
    values["settings"] = EvidenceSettings(**settings)
    values["cosine_accuracy"] = _restored_accuracy(values["cosine_accuracy"])
    values["candidates"] = tuple(Candidate(**one) for one in values["candidates"])
    values["modalities"], values["foreground"] = tuple(values["modalities"]), tuple(values["foreground"])
    values["fitted"] = tuple(
        Fitted(
            one["context_mm"],
            CurveDetector.from_said(one["curve"]),
            _restored_accuracy(one["curve_accuracy"]),
            one["healthy_threshold"],
        )
        for one in values["fitted"]
    )
    return Calibration(**values)


def _check_sense(found: Calibration) -> None:
    """A file can be whole and hold what nothing can be computed with."""
    settings, curves = found.settings, [one.curve for one in found.fitted]
    above_0 = [found.divergence_max, *(value for curve in curves for value in curve.scale.flat)]
    from_0 = [found.strength, found.best_strength, *found.foreground]
    from_0 += [value for one in found.fitted for value in (one.context_mm, one.healthy_threshold)]
    said = [item for one in found.candidates for item in vars(one).items()]
    tried = [value for name, value in said if (name, value) != ("map_auc", None)]  # which earlier files do not have
    others = [
        found.cut,
        found.accuracy_ratio,
        *tried,
        *(value for one in curves for value in (one.offset, *one.centre.flat, *one.weights.flat)),
    ]
    accuracies = [found.cosine_accuracy, *(one.curve_accuracy for one in found.fitted)]
    others += [value for one in accuracies for value in vars(one).values() if not math.isnan(value)]
    if not all(_is_number(value) for value in (*above_0, *from_0, *others)):
        raise ValueError("a number in it is none")
    if min(above_0) <= 0 or min(from_0) < 0:
        raise ValueError("a number in it is too small")
    whole = (*settings.levels, *settings.channels, found.seed)
    if not all(type(value) is int and value >= 0 for value in whole) or found.seed >= 2**63:
        raise ValueError("a level, a channel or the seed is no whole number from 0")
    channels = len(found.modalities) or math.inf  # not yet of a model
    if max(settings.levels) >= len(NoiseSchedule.linear().betas) or max(settings.channels) >= channels:
        raise ValueError("a level or a channel that there is not")
    arrays = (array for curve in curves for array in (curve.centre, curve.scale, curve.weights))
    if not curves or any(array.shape != (len(settings.levels),) for array in arrays):
        raise ValueError("not one weight for each level")
    words = (found.checkpoint_sha256, *found.modalities)
    known = found.detector in ("cosine", "curve") and found.strength_by in STRENGTH_BY
    if not all(isinstance(word, str) for word in words) or not known:
        raise ValueError("a word in it is none that is known")
    if type(settings.clamp) is not bool or len(found.foreground) != 2:
        raise ValueError("clamp or foreground is not what it should be")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
