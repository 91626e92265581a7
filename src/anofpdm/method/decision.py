"""From evidence to a decision on each slice: detected or not, and the mask."""

from dataclasses import dataclass, field

import numpy as np

from anofpdm.errors import MethodError
from anofpdm.method.calibration import CONTEXT_MM, Calibration
from anofpdm.method.context import SlicePositions, smooth_across_slices
from anofpdm.method.detection import log_curves
from anofpdm.method.evidence import Evidence
from anofpdm.method.mask import MaskSettings, mask, mask_quantiles, median_filtered, thresholds

PEAK_SHARE = 0.2  # a map spills over the edge of a strong lesion; its foot is not lesion
DETECTORS = ("cosine", "curve", "none")


@dataclass(frozen=True)
class DecisionSettings:
    """What can be decided anew without asking the network again."""

    detector: str = "calibrated"  # whichever calibration found better
    context_mm: float = 0.0
    mask: MaskSettings = field(default_factory=MaskSettings)
    last_map: bool = False  # the signal at the end step alone, instead of its mean up to there

    def __post_init__(self) -> None:
        if self.detector not in ("calibrated", *DETECTORS):
            raise MethodError(f"unknown detector {self.detector!r}; choose one of {', '.join(DETECTORS)}")
        if self.last_map and self.mask.threshold != "quantile":
            raise MethodError("thresholds from healthy slices are calibrated for aggregated maps; use 'quantile'")


PAPER = DecisionSettings(detector="cosine")
OURS = DecisionSettings(
    context_mm=CONTEXT_MM, mask=MaskSettings("both", peak_share=PEAK_SHARE)
)  # what scans are segmented with, unless told otherwise


@dataclass(frozen=True)
class Decisions:
    """One entry a slice; maps and masks [N, H, W]."""

    maps: np.ndarray  # filtered: what is thresholded, and what ranks pixels
    masks: np.ndarray  # empty where nothing was detected
    drawn: np.ndarray  # the masks before the detector had its say
    detected: np.ndarray
    score: np.ndarray  # of the detector that decided: higher is more unhealthy, from 0 on detected
    similarity: np.ndarray  # of the cosine detector: lower is more unhealthy
    log_odds: np.ndarray  # of the curve detector: higher is more unhealthy
    end_step: np.ndarray  # t_e
    end_divergence: np.ndarray  # M at t_e
    quantile: np.ndarray
    threshold: np.ndarray


def decide(
    evidence: Evidence, calibration: Calibration, choices: DecisionSettings, places: SlicePositions | None = None
) -> Decisions:
    """`places` are needed for a context above 0."""
    if choices.context_mm > 0 and places is None:
        raise MethodError("a context needs to know where slices lie")
    evidence = evidence.at(calibration.strength)
    places = places or SlicePositions(np.arange(len(evidence)), np.zeros(len(evidence)))
    fitted = calibration.with_context(choices.context_mm)
    raw = (evidence.last_maps if choices.last_map else evidence.maps)[:, 0].cpu().float().numpy()
    maps = smooth_across_slices(raw, places, choices.context_mm)
    logs = smooth_across_slices(log_curves(_numbers(evidence.divergence)), places, choices.context_mm)
    similarity, log_odds = _numbers(evidence.similarity), fitted.curve.scores(logs)
    detector = calibration.detector if choices.detector == "calibrated" else choices.detector
    score = {
        "cosine": calibration.cut - similarity,
        "curve": log_odds,
        "none": maps.max(axis=(1, 2)),
    }[detector]
    detected = similarity <= calibration.cut if detector == "cosine" else score >= 0
    end_divergence = _numbers(evidence.end_divergence)
    quantile = mask_quantiles(end_divergence, calibration.divergence_max)
    smooth = median_filtered(maps)
    cuts = thresholds(maps, quantile, fitted.healthy_threshold, choices.mask)
    cuts = np.maximum(cuts, choices.mask.peak_share * smooth.max(axis=(1, 2)))
    drawn = mask(smooth, cuts, choices.mask.smallest)
    return Decisions(
        maps=smooth,
        masks=drawn & detected[:, None, None],
        drawn=drawn,
        detected=detected,
        score=score,
        similarity=similarity,
        log_odds=log_odds,
        end_step=evidence.end_step[:, 0].cpu().numpy(),
        end_divergence=end_divergence,
        quantile=quantile,
        threshold=cuts,
    )


def _numbers(tensor: object) -> np.ndarray:
    """[N, 1, ...] -> [N, ...] on the CPU."""
    array: np.ndarray = tensor[:, 0].cpu().double().numpy()  # type: ignore[index]
    return array
