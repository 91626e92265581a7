"""Fit a calibration to the labelled slices of a cohort, with one pass of the network.

A cohort gives no access to lesion masks, and neither does anything here.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch

from anofpdm.calibration.scan_labels import estimate_labels
from anofpdm.calibration.signal_choice import TINY, choose_maps
from anofpdm.choices import Encoding, Signal, Split, StrengthBy
from anofpdm.cohorts.store import Cohort, check_slices, foreground
from anofpdm.errors import CalibrationError
from anofpdm.labels import HEALTHY, UNHEALTHY
from anofpdm.method.calibration import (
    ACCURACY_RATIO,
    CONTEXT_MM,
    STRENGTHS,
    Calibration,
    calibrate,
    check_both_classes,
    rate_strengths,
    refit_maps,
    to_numpy,
)
from anofpdm.method.context import SlicePositions, smooth_across_slices
from anofpdm.method.evidence import (
    AUTHORS_TOP,
    BATCH,
    Evidence,
    EvidenceRequest,
    EvidenceSettings,
    SignalMaps,
    spread_levels,
)
from anofpdm.method.gather import gather_shared, slice_seeds
from anofpdm.method.mask import smallest_lesion_level
from anofpdm.network.predictor import TrainedModel
from anofpdm.scans.expects import ScanExpectation
from anofpdm.util.artifacts import convert
from anofpdm.util.distributed import World
from anofpdm.util.progress import Progress, silent

SCORE_MM = 5.0  # smoothing (sigma) of the scores that slice labels are estimated from
LEVELS = 10  # on real slices as good as 600: results/design.md


@dataclass(frozen=True)
class CalibrationConfig:
    score: tuple[str, ...] = ()  # scored modalities; default: all
    strengths: tuple[float, ...] = STRENGTHS
    levels: int = LEVELS  # in a range of 600; the same spacing in any other range
    top: int = AUTHORS_TOP  # noise levels are below this
    encoding: Encoding = Encoding.DDIM
    signal: Signal = Signal.AUTO
    accuracy_ratio: float = ACCURACY_RATIO
    strength_by: StrengthBy = StrengthBy.MAP  # the better choice: results/design.md
    context_mm: float = CONTEXT_MM  # smoothing across slices
    split: str = Split.VAL
    most: int = 2000  # slices, in whole scans
    seed: int = 0
    batch: int = BATCH

    def settings(self, channels: tuple[int, ...]) -> EvidenceSettings:
        count = max(1, round(self.levels * self.top / AUTHORS_TOP))
        # Maps of errors choose the strength; those of other signals hardly depend on it.
        return EvidenceSettings(spread_levels(count, self.top), channels, self.encoding)


@dataclass(frozen=True)
class LabelledEvidence:
    """Evidence of the labelled slices of a split, and what else a calibration is fitted to."""

    evidence: Evidence  # with maps of errors
    labels: np.ndarray
    patients: np.ndarray
    positions: SlicePositions
    inside: np.ndarray  # [n, H, W], whether in the brain
    foreground: tuple[float, float]  # smallest and largest fraction among the scans
    model: TrainedModel
    suspected: np.ndarray  # [n], whether the slice's label was estimated

    def fit(self, config: CalibrationConfig) -> Calibration:
        """For maps of a signal that was gathered, or of the best one. The strength is chosen with maps of errors."""
        calibration = calibrate(
            self.evidence,
            self.labels,
            self.patients,
            config.accuracy_ratio,
            positions=self.positions,
            context_mm=config.context_mm,
            strength_by=config.strength_by,
        )
        evidence, unhealthy = self.evidence.at(calibration.strength), self.labels == UNHEALTHY
        if config.signal == Signal.AUTO:
            settings = choose_maps(calibration, evidence, unhealthy, self.inside)
        else:
            settings = replace(calibration.settings, signal=config.signal)
        if settings.signal != Signal.ERROR:
            calibration = refit_maps(calibration, evidence.with_maps_of(settings), unhealthy, self.positions)
        return replace(
            calibration,
            seed=config.seed,
            foreground=self.foreground,
            checkpoint_sha256=self.model.sha256,
            modalities=tuple(self.model.modalities),
            n_estimated=int(self.suspected.sum()),
        )


def fit_calibration(
    model: TrainedModel,
    cohort: Cohort,
    config: CalibrationConfig,
    progress: Progress = silent,
    world: World | None = None,
) -> tuple[Calibration, LabelledEvidence]:
    """Calibrate on image-level labels of one split."""
    gathered = gather_labelled(model, cohort, config, progress, world or World())
    return gathered.fit(config), gathered


def gather_labelled(
    model: TrainedModel,
    cohort: Cohort,
    config: CalibrationConfig,
    progress: Progress,
    world: World,
    *,
    last_maps: bool = False,
) -> LabelledEvidence:
    """In every process; the network's part is shared among them. `last_maps` are kept; calibration needs none."""
    check_model_fits(model, cohort)
    rows = labelled_rows(cohort, config.split, config.most, config.seed)
    labels, suspected, positions = cohort.labels[rows], cohort.suspected[rows], slice_positions(cohort, rows)
    check_both_classes(cohort.assumed_labels[rows])
    check_slices(cohort, rows)
    request = EvidenceRequest(
        config.settings(model.channels(config.score)),
        config.strengths,
        model.device,
        config.batch,
        (Signal.AGREEMENT if config.signal == Signal.AUTO else config.signal,),
        keep=lambda batch: compact(batch, last_maps=last_maps),
    )
    seeds = slice_seeds(cohort.indices[rows], config.seed)
    evidence = gather_shared(model.predict, lambda some: cohort.slices[rows[some]], seeds, request, world, progress)
    if suspected.any():
        labels = estimate_slice_labels(evidence, labels, suspected, positions)
    inside, share = foreground(cohort.pixels(rows)), foreground_range(cohort, np.unique(cohort.scans[rows]))
    return LabelledEvidence(evidence, labels, cohort.patients[rows], positions, inside, share, model, suspected)


def estimate_slice_labels(
    evidence: Evidence, labels: np.ndarray, suspected: np.ndarray, positions: SlicePositions
) -> np.ndarray:
    """Labels [n] with those of suspected slices estimated, from maps of errors.

    The strength is the one whose maps separate suspected from healthy slices best. Healthy slices among the suspected
    ones do not change which strength has the highest AUC.
    """
    best = max(rate_strengths(evidence, suspected | (labels == UNHEALTHY)), key=lambda candidate: candidate.map_auc)
    levels = smallest_lesion_level(to_numpy(evidence.at(best.strength).maps[:, 0]))
    scores = smooth_across_slices(np.log(np.maximum(levels, TINY)), positions, SCORE_MM)
    return estimate_labels(scores, labels, suspected, positions.scans)


def labelled_rows(cohort: Cohort, split: str, most: int, seed: int) -> np.ndarray:
    """Rows of labelled scans, drawn at random until there are enough, in the cohort's order."""
    rows = cohort.rows(split)
    rows = rows[np.isin(cohort.assumed_labels[rows], (HEALTHY, UNHEALTHY))]
    if not len(rows):
        raise CalibrationError(
            f"{cohort.path}: no slice of its split '{split}' is labelled healthy or unhealthy, and calibration needs "
            "such slices; label some, or choose another split"
        )
    scans, sizes = np.unique(cohort.scans[rows], return_counts=True)
    order = np.random.default_rng(seed).permutation(len(scans))
    drawn_before = sizes[order].cumsum() - sizes[order]
    return rows[np.isin(cohort.scans[rows], scans[order[drawn_before < most]])]


def compact(evidence: Evidence, *, last_maps: bool = False) -> Evidence:
    """Maps in half precision: thousands of them are kept until the strength is known."""
    if not last_maps:
        maps = evidence.maps_by_signal.items()
        evidence = replace(evidence, maps_by_signal={key: SignalMaps(m.mean, m.last[:, :, :0, :0]) for key, m in maps})
    largest = torch.finfo(torch.float16).max  # which errors of unclamped estimates can exceed
    return evidence.map(lambda tensor: tensor.clamp(max=largest).half() if tensor.ndim == 4 else tensor)


def slice_positions(cohort: Cohort, rows: np.ndarray, expects: ScanExpectation | None = None) -> SlicePositions:
    """By the distances in the headers, unless the cohort, or a model, assumes one for every scan."""
    expects = expects or convert(ScanExpectation, cohort.manifest.expects)
    distances_mm = expects.nominal_slice_mm or cohort.spacing_mm[rows]
    return SlicePositions(cohort.scans[rows], cohort.indices[rows] * distances_mm)


def foreground_range(cohort: Cohort, scans: np.ndarray) -> tuple[float, float]:
    """Smallest and largest foreground fraction among whole scans, to recognise a scan that is unlike them."""
    shares = [float(foreground(cohort.pixels(np.flatnonzero(cohort.scans == scan))).mean()) for scan in scans]
    return min(shares), max(shares)


def check_model_fits(model: TrainedModel, cohort: Cohort) -> None:
    if cohort.modalities != model.modalities:
        raise CalibrationError(
            f"{model.folder} was trained on {', '.join(model.modalities)}, but {cohort.path} has "
            f"{', '.join(cohort.modalities)}; prepare the cohort with --modalities {','.join(model.modalities)}"
        )
    if cohort.slices.shape[-1] != model.size:
        raise CalibrationError(
            f"{model.folder} takes slices of {model.size} x {model.size}, but {cohort.path} has "
            f"{cohort.slices.shape[-1]} x {cohort.slices.shape[-1]}; prepare the cohort with --size {model.size}"
        )
