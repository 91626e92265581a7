"""From evidence to a decision on each slice: detected or not, and the mask."""

from dataclasses import dataclass, field

import numpy as np

from anofpdm.choices import Detector, Threshold
from anofpdm.errors import CalibrationError, MethodError
from anofpdm.method.calibration import CONTEXT_MM, Calibration, ContextFit, to_numpy
from anofpdm.method.context import SlicePositions, smooth_across_slices
from anofpdm.method.detection import log_curves
from anofpdm.method.evidence import Evidence
from anofpdm.method.mask import MaskSettings, mask, mask_quantiles, median_filtered, thresholds

PEAK_SHARE = 0.2  # maps spread beyond the edge of a strong lesion; values below this share of the peak are not lesion


@dataclass(frozen=True)
class DecisionSettings:
    """What can be changed without running the network again."""

    detector: Detector = Detector.CALIBRATED
    context_mm: float = 0.0  # smoothing across slices
    mask: MaskSettings = field(default_factory=MaskSettings)
    last_map: bool = False  # the signal at the end step alone, instead of its mean up to there

    def __post_init__(self) -> None:
        if self.last_map and self.mask.threshold != Threshold.QUANTILE:
            raise MethodError("thresholds from healthy slices are calibrated for aggregated maps; use 'quantile'")


PAPER = DecisionSettings(detector=Detector.COSINE)
# The default of `anofpdm segment`:
OURS = DecisionSettings(context_mm=CONTEXT_MM, mask=MaskSettings(Threshold.BOTH, peak_share=PEAK_SHARE))


@dataclass(frozen=True)
class SliceEvidence:
    """What the diffusion model measured at the calibrated strength: an entry for each of `rows`, curves [k, K]."""

    rows: np.ndarray  # of the decisions
    similarity: np.ndarray  # of the cosine detector: lower is more unhealthy
    end_step: np.ndarray  # t_e
    end_divergence: np.ndarray  # M at t_e
    quantile: np.ndarray  # that thresholds its map
    levels: tuple[int, ...]  # K
    divergence: np.ndarray  # M_t
    mse_guided: np.ndarray
    mse_unguided: np.ndarray

    def index(self, row: int) -> int | None:
        """The entry of a row; None where it has none."""
        entries = np.flatnonzero(self.rows == row)
        return int(entries[0]) if len(entries) else None


@dataclass(frozen=True)
class Decisions:
    """One entry a slice; maps and masks [N, H, W]."""

    maps: np.ndarray  # filtered: what is thresholded, and what ranks pixels
    masks: np.ndarray  # empty where nothing was detected
    outlines: np.ndarray  # 0 to 1, at least 0.5 in masks: interpolated where masks are needed on another grid
    drawn: np.ndarray  # masks before the detector empties those of healthy slices
    score: np.ndarray  # of the detector in use: a lesion is detected at 0 and above
    log_odds: np.ndarray  # of the curve detector, or a student's: higher is more unhealthy
    threshold: np.ndarray  # of the map: the lowest in the mask, where a student draws each lesion by one of its own
    highest_threshold: np.ndarray
    evidence: SliceEvidence | None = None  # None: decided without the diffusion model
    estimated_dice: np.ndarray | None = None  # of each mask, NaN where it is empty; None: no estimate is possible

    @property
    def detected(self) -> np.ndarray:
        return self.score >= 0

    @property
    def measured(self) -> SliceEvidence:
        """The evidence, where there is any."""
        if self.evidence is None:
            raise MethodError("these decisions were made without the diffusion model: they have no evidence")
        return self.evidence


def fit_for(calibration: Calibration, settings: DecisionSettings) -> ContextFit:
    """The part of the calibration that these settings need; an error where it was not fitted."""
    fit = calibration.with_context(settings.context_mm)
    if settings.mask.threshold != Threshold.QUANTILE and fit.healthy_threshold is None:
        raise CalibrationError(
            f"no threshold from healthy slices was fitted for maps of {calibration.settings.signal}; "
            f"use --threshold quantile, or calibrate with --signal {calibration.settings.signal}"
        )
    return fit


def decide(
    evidence: Evidence, calibration: Calibration, settings: DecisionSettings, positions: SlicePositions | None = None
) -> Decisions:
    """`positions` are needed for smoothing across slices."""
    if settings.context_mm > 0 and positions is None:
        raise MethodError("smoothing across slices needs the positions of the slices")
    fit = fit_for(calibration, settings)
    evidence = evidence.at(calibration.strength)
    positions = positions or SlicePositions.unrelated(len(evidence))
    maps = to_numpy((evidence.last_maps if settings.last_map else evidence.maps)[:, 0])
    logs = log_curves(to_numpy(evidence.divergence[:, 0]))
    maps = smooth_across_slices(maps, positions, settings.context_mm)
    logs = smooth_across_slices(logs, positions, settings.context_mm)
    measured, log_odds = _measure(evidence, calibration), fit.curve.scores(logs)
    scores = {
        Detector.COSINE: calibration.cut - measured.similarity,
        Detector.CURVE: log_odds,
        Detector.NONE: maps.max(axis=(1, 2)),
    }
    detector = calibration.detector if settings.detector == Detector.CALIBRATED else settings.detector
    score = scores[detector]
    smooth = median_filtered(maps)
    cuts = thresholds(maps, measured.quantile, fit.healthy_threshold, settings.mask)
    cuts = np.maximum(cuts, settings.mask.peak_share * smooth.max(axis=(1, 2)))
    drawn = mask(smooth, cuts, settings.mask.smallest)
    masks = drawn & (score >= 0)[:, None, None]
    return Decisions(
        maps=smooth,
        masks=masks,
        outlines=masks.astype(np.float32),
        drawn=drawn,
        score=score,
        log_odds=log_odds,
        threshold=cuts,
        highest_threshold=cuts,
        evidence=measured,
    )


def _measure(evidence: Evidence, calibration: Calibration) -> SliceEvidence:
    """Of evidence at one strength."""
    end_divergence = to_numpy(evidence.end_divergence[:, 0])
    return SliceEvidence(
        rows=np.arange(len(evidence)),
        similarity=to_numpy(evidence.similarity[:, 0]),
        end_step=evidence.end_step[:, 0].cpu().numpy(),
        end_divergence=end_divergence,
        quantile=mask_quantiles(end_divergence, calibration.divergence_max),
        levels=evidence.settings.levels,
        divergence=to_numpy(evidence.divergence[:, 0]),
        mse_guided=to_numpy(evidence.mse_guided[:, 0]),
        mse_unguided=evidence.mse_unguided.cpu().double().numpy(),
    )
