"""The paper's ablations: what each choice of the method is worth, measured on slices whose lesions are known.

Everything is calibrated from image-level labels, as always; drawn lesions only measure. Guidance, detector and
threshold are decided anew from one pass of the network, the end step and the levels are heard in a second one, and
every number of levels and the other encoding take passes of their own, and maps of gradients one more.
"""

import math
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from anofpdm import __version__
from anofpdm.calibration.fit import CalibrationConfig, FittedCalibration, fit_calibration, labelled_rows
from anofpdm.cohorts.store import Cohort, foreground
from anofpdm.errors import EvaluationError
from anofpdm.evaluation.ablations.levels import Heard, Slices, second_pass
from anofpdm.evaluation.ablations.tables import (
    UNGATED,
    Ablation,
    Study,
    detector,
    end_step,
    lesion_size,
    levels,
    mse_curves,
    sam,
    strength,
    table_rows,
    threshold,
    variants,
)
from anofpdm.evaluation.metrics.pixels import average_precision
from anofpdm.evaluation.truth import Truth
from anofpdm.labels import UNHEALTHY
from anofpdm.method.calibration import Calibration
from anofpdm.method.decision import decide
from anofpdm.method.evidence import Evidence
from anofpdm.method.many_slices import EvidenceRequest, gather_evidence, slice_seeds
from anofpdm.method.variants import VARIANTS, Variant
from anofpdm.network.predictor import TrainedModel
from anofpdm.options import Encoding, Signal, SignalChoice, StrengthBy
from anofpdm.util.progress import Progress

LEVELS_TRIED = (10, 20, 30, 60)
COMPARED = {**VARIANTS, "gradient-above": Variant(Encoding.DDIM, Signal.GRADIENT_ABOVE)}
GALLERY_SLICES, GALLERY_LEVELS = 4, 6
AT_ONCE = 200  # slices, where only pixels are read
Listener = Callable[[int, int], None]


@dataclass(frozen=True)
class Options:
    calibration: CalibrationConfig = field(
        default_factory=lambda: CalibrationConfig(signal=SignalChoice.ERROR, strength_by=StrengthBy.COSINE)
    )
    levels_tried: tuple[int, ...] = LEVELS_TRIED
    gallery_levels: tuple[int, ...] = ()  # none named: some, spread over the range
    variants: tuple[str, ...] = tuple(COMPARED)

    def __post_init__(self) -> None:
        one = self.calibration
        if (one.encoding, one.signal, one.strength_by) != ("ddim", "error", "cosine"):
            raise EvaluationError("ablations begin where the paper does: ddim, errors, guidance chosen by the cosine")


@dataclass(frozen=True)
class Gallery:
    pixels: np.ndarray  # [n, H, W], the first scored modality
    lesions: np.ndarray  # bool [n, H, W]
    captions: list[str]
    levels: tuple[int, ...]
    tiles: np.ndarray  # [n, 2, levels + 1, H, W]


@dataclass(frozen=True)
class Ablations:
    tables: list[Ablation]
    gallery: Gallery
    settings: dict[str, Any]  # all that decides the numbers


def ablate(
    model: TrainedModel, cohort: Cohort, options: Options, on_progress: Listener = lambda _done, _total: None
) -> Ablations:
    measured, rows, lesions = measured_slices(cohort, options.calibration)
    others = _other_passes(options)
    first_share, second_share, gradient_share, *shares = _shares(model, options, others, rows, lesions, on_progress)

    first = fit_calibration(model, measured, options.calibration, first_share, last_maps=True)
    study = Study(measured, rows, lesions, first, decide(first.evidence, first.calibration, UNGATED))
    inside = _foreground(measured, rows[study.ill])

    slices = _second_pass_slices(study, inside, options)
    calibration = first.calibration
    heard = second_pass(
        model,
        measured,
        slices,
        settings=calibration.settings,
        strength=calibration.strength,
        seed=options.calibration.seed,
        batch=options.calibration.batch,
        on_progress=second_share,
    )

    by_levels = {options.calibration.levels: _of_ill(study, first)}
    by_kind = {("ddim", "error"): _of_ill(study, first), **_gradients(model, study, options, gradient_share)}
    for other, share in zip(others, shares, strict=True):
        variant = other.levels == options.calibration.levels
        again = _of_ill(study, fit_calibration(model, measured, other, share, last_maps=variant))
        if variant:
            by_kind[other.encoding, other.signal] = again
        else:
            by_levels[other.levels] = again
    by_variant = {
        name: _quality(study, *by_kind[one.encoding, one.signal], inside, last_map=one.last_map)
        for name, one in _asked(options).items()
    }

    tables = [
        mse_curves(study),
        sam(study, heard),
        lesion_size(study),
        strength(study),
        end_step(heard),
        threshold(study),
        levels({count: _quality(study, *found, inside) for count, found in sorted(by_levels.items())}),
        variants(by_variant),
        detector(study),
        _gallery_table(study, slices),
    ]
    return Ablations(tables, _gallery(study, slices, heard), _settings(model, study, options))


# ---- slices and passes -----------------------------------------------------------------------------------------------


def measured_slices(cohort: Cohort, options: CalibrationConfig) -> tuple[Cohort, np.ndarray, np.ndarray]:
    """The cohort without scans that nobody drew lesions in, its labelled rows, and their lesions."""
    truth = Truth(cohort)
    measured = replace(cohort, splits=np.where(truth.known, cohort.splits, ""))
    if not len(measured.rows(options.split)):
        raise EvaluationError(
            f"{cohort.path}: no scan of its {options.split!r} split has a lesion mask, and ablations are measured "
            "with them; choose another --split, or prepare the cohort with masks"
        )
    rows = labelled_rows(measured, options.split, options.most, options.seed)
    n_unhealthy, lesions = int((cohort.labels[rows] == UNHEALTHY).sum()), truth.masks(rows)
    if n_unhealthy in (0, len(rows)) or not lesions.any():
        raise EvaluationError(
            f"{cohort.path}: need both classes and a lesion, got {len(rows) - n_unhealthy} healthy and {n_unhealthy} "
            f"unhealthy slices, {int(lesions.any(axis=(1, 2)).sum())} with a lesion drawn, in the {options.split!r} "
            "split; choose another --split, or a larger --most"
        )
    return measured, rows, lesions


def _asked(options: Options) -> dict[str, Variant]:
    return {name: COMPARED[name] for name in options.variants}


def _other_passes(options: Options) -> list[CalibrationConfig]:
    """Calibrations with other numbers of levels, and with the other encoding."""
    main = options.calibration
    counts = sorted(set(options.levels_tried) - {main.levels})
    encodings = sorted({one.encoding for one in _asked(options).values()} - {main.encoding})
    return [
        *(replace(main, levels=count) for count in counts),
        *(replace(main, encoding=encoding) for encoding in encodings),
    ]


def _gradients(
    model: TrainedModel, study: Study, options: Options, on_progress: Progress
) -> dict[tuple[str, str], tuple[Evidence, Calibration]]:
    """Evidence of slices with a lesion by the gradients' signals, all in one pass: what is calibrated is known."""
    signals = sorted({one.signal for one in _asked(options).values()} - {"error"})
    if not signals:
        return {}
    rows, calibration = study.rows[study.ill], study.calibrated.calibration
    batch = options.calibration.batch
    evidence = gather_evidence(
        model.predict,
        lambda some: study.cohort.pixels(rows[some]),
        slice_seeds(study.cohort.indices[rows], options.calibration.seed),
        EvidenceRequest(calibration.settings, [calibration.strength], model.device, batch, tuple(signals)),
        on_progress,
    )
    return {("ddim", signal): (evidence.with_signal(signal), calibration.for_signal(signal)) for signal in signals}


def _of_ill(study: Study, calibrated: FittedCalibration) -> tuple[Evidence, Calibration]:
    """Evidence at the chosen strength, of slices with a lesion."""
    at_chosen = calibrated.evidence.at(calibrated.calibration.strength)
    return at_chosen.map(lambda tensor: tensor[study.ill]), calibrated.calibration


def _shares(
    model: TrainedModel,
    options: Options,
    passes: Sequence[CalibrationConfig],
    rows: np.ndarray,
    lesions: np.ndarray,
    on_progress: Listener,
) -> list[Progress]:
    """One bar over all passes. Also where numbers of levels that cannot be are refused, before any time is spent."""
    wanted = [options.calibration, *passes]
    main, *others = (len(one.settings(model.channels(one.score)).levels) for one in wanted)
    n_ill = int(lesions.any(axis=(1, 2)).sum())
    batches = [math.ceil(count / options.calibration.batch) for count in (len(rows), n_ill)]
    gradients = any(one.signal != "error" for one in _asked(options).values())
    sizes = [batches[0] * main, batches[1] * main, gradients * batches[1] * main]
    sizes += [batches[0] * count for count in others]
    starts, total = accumulate([0, *sizes[:-1]]), sum(sizes)

    def share(start: int, size: int) -> Progress:
        """The second pass may climb further than was counted; its part of the bar stays as it is."""
        return lambda _task, done, of, _note="": on_progress(start + int(size * done // of), total)

    return [share(start, size) for start, size in zip(starts, sizes, strict=True)]


def _second_pass_slices(study: Study, inside: np.ndarray, options: Options) -> Slices:
    ill, climbed = study.ill, np.array(study.calibrated.calibration.settings.levels)
    shares = np.arange(1, GALLERY_LEVELS + 1) / GALLERY_LEVELS
    spread = climbed[np.maximum(np.round(shares * len(climbed)).astype(int) - 1, 0)]
    asked = np.array(options.gallery_levels or spread)
    nearest = climbed[np.abs(climbed[None] - asked[:, None]).argmin(axis=1)]
    return Slices(
        rows=study.rows[ill],
        lesions=study.lesions[ill],
        foreground=inside,
        end_step=study.decisions.end_step[ill],
        quantile=study.decisions.quantile[ill],
        shown=_chosen(study.lesions[ill].sum(axis=(1, 2)), study.cohort.scans[study.rows[ill]]),
        shown_at=tuple(int(level) for level in np.unique(nearest)),
    )


def _chosen(sizes: np.ndarray, scans: np.ndarray) -> tuple[int, ...]:
    """The largest lesion and some smaller ones, of different scans while there are any."""
    by_size, shown = np.argsort(sizes, kind="stable"), list[int]()
    for place in np.linspace(1, 0.25, min(GALLERY_SLICES, len(sizes))) * (len(sizes) - 1):
        nearest = by_size[np.argsort(np.abs(np.arange(len(sizes)) - place), kind="stable")]
        left = [int(number) for number in nearest if number not in shown]
        shown.append(next((number for number in left if scans[number] not in scans[shown]), left[0]))
    return tuple(shown)


def _foreground(cohort: Cohort, rows: np.ndarray) -> np.ndarray:
    parts = [foreground(cohort.pixels(rows[at : at + AT_ONCE])) for at in range(0, len(rows), AT_ONCE)]
    return np.concatenate(parts)


def _quality(
    study: Study, evidence: Evidence, calibration: Calibration, inside: np.ndarray, *, last_map: bool = False
) -> tuple[float, float]:
    """Unhealthy DICE and AUPRC."""
    decided = decide(evidence, calibration, replace(UNGATED, last_map=last_map))
    ranked = average_precision(decided.maps[inside], study.lesions[study.ill][inside])
    return study.unhealthy_dice(decided.drawn), ranked


# ---- the gallery, and what decides all numbers -----------------------------------------------------------------------


def _gallery_table(study: Study, slices: Slices) -> Ablation:
    shown = list(slices.shown)
    rows = slices.rows[shown]
    sizes = slices.lesions[shown].sum(axis=(1, 2))
    says = (
        "S_t and the gradient (e_h - e_0)^2 of a few slices, with the input and the drawn lesion; each tile has its "
        "own scale, and the last column is at the slice's own end step."
    )
    table = table_rows(study.cohort.scans[rows], study.cohort.indices[rows], sizes, slices.end_step[shown])
    return Ablation("gallery", says, ("scan", "slice", "pixels", "end_step"), table)


def _gallery(study: Study, slices: Slices, heard: Heard) -> Gallery:
    shown, table = list(slices.shown), _gallery_table(study, slices)
    channel = study.calibrated.calibration.settings.channels[0]
    captions = [f"{scan}, slice {index}: lesion of {size} pixels, t_e = {end}" for scan, index, size, end in table.rows]
    pixels = study.cohort.pixels(slices.rows[shown])[:, channel]
    return Gallery(pixels, slices.lesions[shown], captions, slices.shown_at, heard.tiles)


def _settings(model: TrainedModel, study: Study, options: Options) -> dict[str, Any]:
    calibration, manifest = study.calibrated.calibration, study.cohort.manifest
    return {
        "anofpdm": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "device": str(model.device),
        "precision": model.predict.precision,
        "model": str(model.folder),
        "model_sha256": model.sha256,
        "cohort": str(study.cohort.path),
        "cohort_sha256": {name: manifest[name] for name in ("preparation_sha256", "slices_sha256")},
        "options": asdict(options),
        "scored": [model.modalities[channel] for channel in calibration.settings.channels],
        "levels": list(calibration.settings.levels),
        "healthy_slices": calibration.n_healthy,
        "unhealthy_slices": calibration.n_unhealthy,
        "slices_with_a_lesion": len(study.ill),
        "patients": calibration.n_patients,
        "strength": calibration.strength,
        "best_strength": calibration.best_strength,
        "cut": calibration.cut,
        "divergence_max": calibration.divergence_max,
        "healthy_threshold": calibration.with_context(0.0).healthy_threshold,
        "default_detector": calibration.detector,
        "seen_by": "calibration: image-level labels of this split only; masks: these numbers only",
    }
