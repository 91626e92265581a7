"""The paper's ablations: the effect of each choice of the method, measured on slices with lesion masks.

Calibration uses image-level labels only; masks are used for scores only. Guidance, detector and threshold are varied
with the evidence of one pass of the network. End step and noise levels take a second pass, gradient maps a third, and
every other number of levels and the other encoding a pass each.
"""

import platform
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from anofpdm import __version__
from anofpdm.calibration.fit_calibration import CalibrationConfig, gather_labelled
from anofpdm.cohorts.store import Cohort
from anofpdm.errors import EvaluationError
from anofpdm.method.calibration import Calibration
from anofpdm.method.decision import decide
from anofpdm.method.evidence import Evidence, EvidenceRequest
from anofpdm.method.gather import gather_shared, slice_seeds
from anofpdm.network.predictor import TrainedModel
from anofpdm.study.ablations import ablation_tables
from anofpdm.study.ablations.ablation_tables import Ablation
from anofpdm.study.ablations.evidence_passes import NO_DETECTOR, Study, choose_levels, measured_slices
from anofpdm.study.ablations.levels import LevelMeasurements, second_pass
from anofpdm.study.comparison.calibrations import for_signal
from anofpdm.study.comparison.methods import VARIANTS, EvidenceMethod
from anofpdm.study.comparison.rankings import average_precision
from anofpdm.util.distributed import World
from anofpdm.util.progress import Progress, silent

Quality = tuple[float, float]  # unhealthy DICE, AUPRC


@dataclass(frozen=True)
class AblationConfig:
    calibration: CalibrationConfig
    levels_tried: tuple[int, ...] = (10, 20, 30, 60)
    gallery_levels: tuple[int, ...] = ()  # default: evenly spaced
    variants: tuple[str, ...] = tuple(VARIANTS)

    def __post_init__(self) -> None:
        options = self.calibration
        if (options.encoding, options.signal, options.strength_by) != ("ddim", "error", "cosine"):
            raise EvaluationError("ablations start from the paper's method: ddim, error, strength by cosine")

    def compared(self) -> dict[str, EvidenceMethod]:
        return {name: VARIANTS[name] for name in self.variants}

    def other_passes(self) -> list[CalibrationConfig]:
        """Calibrations with other numbers of levels, and with the other encoding."""
        main = self.calibration
        counts = sorted(set(self.levels_tried) - {main.levels})
        encodings = sorted({variant.encoding for variant in self.compared().values()} - {main.encoding})
        return [
            *(replace(main, levels=count) for count in counts),
            *(replace(main, encoding=encoding) for encoding in encodings),
        ]


@dataclass(frozen=True)
class Ablations:
    tables: list[Ablation]
    study: Study
    measurements: LevelMeasurements
    settings: dict[str, Any]  # everything that determines the numbers


def ablate(
    model: TrainedModel,
    cohort: Cohort,
    config: AblationConfig,
    progress: Progress = silent,
    world: World | None = None,
) -> Ablations:
    """In every process; the network's passes are shared among them."""
    world = world or World()
    measured, rows, lesions = measured_slices(cohort, config.calibration)
    for tried in (config.calibration, *config.other_passes()):
        tried.settings(model.channels(tried.score))  # impossible numbers of levels are refused before any work
    gathered = gather_labelled(model, measured, config.calibration, progress, world, last_maps=True)
    calibration = gathered.fit(config.calibration)
    decisions = decide(gathered.evidence, calibration, NO_DETECTOR)
    options, shown = config.calibration, choose_levels(calibration.settings.levels, config.gallery_levels)
    study = Study(model, options, measured, rows, lesions, gathered, calibration, decisions, shown, progress, world)
    measurements = second_pass(study)
    by_levels, by_variant = _other_passes(study, config)
    all_tables = [
        ablation_tables.mse_curves(study),
        ablation_tables.sam(study, measurements),
        ablation_tables.lesion_size(study),
        ablation_tables.strength(study),
        ablation_tables.end_step(measurements),
        ablation_tables.threshold(study),
        ablation_tables.levels(by_levels),
        ablation_tables.variants(by_variant),
        ablation_tables.detector(study),
        ablation_tables.gallery(study),
    ]
    return Ablations(all_tables, study, measurements, _settings(study, config))


# ---- passes ----------------------------------------------------------------------------------------------------------


def _other_passes(study: Study, config: AblationConfig) -> tuple[dict[int, Quality], dict[str, Quality]]:
    """Quality by number of levels, and by variant."""
    first = study.unhealthy_evidence(study.gathered, study.calibration)
    by_levels = {config.calibration.levels: first}
    by_kind = {("ddim", "error"): first, **_gradient_evidence(study, config)}
    for options in config.other_passes():
        other_encoding = options.levels == config.calibration.levels
        gathered = gather_labelled(
            study.model, study.cohort, options, study.progress, study.world, last_maps=other_encoding
        )
        evidence = study.unhealthy_evidence(gathered, gathered.fit(options))
        if other_encoding:
            by_kind[options.encoding, options.signal] = evidence
        else:
            by_levels[options.levels] = evidence
    return (
        {count: _quality(study, *evidence) for count, evidence in by_levels.items()},
        {
            name: _quality(study, *by_kind[variant.encoding, variant.signal], last_map=variant.decision.last_map)
            for name, variant in config.compared().items()
        },
    )


def _gradient_evidence(study: Study, config: AblationConfig) -> dict[tuple[str, str], tuple[Evidence, Calibration]]:
    """By encoding and signal, of slices with a lesion, in one pass. The calibration is that of the first pass."""
    signals = sorted({variant.signal for variant in config.compared().values()} - {"error"})
    if not signals:
        return {}
    rows, calibration = study.rows[study.unhealthy], study.calibration
    evidence = gather_shared(
        study.model.predict,
        lambda some: study.cohort.pixels(rows[some]),
        slice_seeds(study.cohort.indices[rows], study.options.seed),
        EvidenceRequest(
            calibration.settings, [calibration.strength], study.model.device, study.options.batch, tuple(signals)
        ),
        study.world,
        study.progress,
    )
    fitted = {signal: for_signal(calibration, signal) for signal in signals}
    return {("ddim", signal): (evidence.with_maps_of(fit.settings), fit) for signal, fit in fitted.items()}


def _quality(study: Study, evidence: Evidence, calibration: Calibration, *, last_map: bool = False) -> Quality:
    decisions = decide(evidence, calibration, replace(NO_DETECTOR, last_map=last_map))
    lesions = study.lesions[study.unhealthy][study.foreground]
    return study.unhealthy_dice(decisions.drawn), average_precision(decisions.maps[study.foreground], lesions)


def _settings(study: Study, config: AblationConfig) -> dict[str, Any]:
    model, calibration, manifest = study.model, study.calibration, study.cohort.manifest
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
        "cohort_sha256": {name: getattr(manifest, name) for name in ("preparation_sha256", "slices_sha256")},
        "options": asdict(config),
        "scored": [model.modalities[channel] for channel in calibration.settings.channels],
        "levels": list(calibration.settings.levels),
        "healthy_slices": calibration.n_healthy,
        "unhealthy_slices": calibration.n_unhealthy,
        "slices_with_a_lesion": len(study.unhealthy),
        "patients": calibration.n_patients,
        "strength": calibration.strength,
        "best_strength": calibration.best_strength,
        "cut": calibration.cut,
        "divergence_max": calibration.divergence_max,
        "healthy_threshold": calibration.with_context(0.0).healthy_threshold,
        "default_detector": calibration.detector,
        "supervision": "calibration: image-level labels of this split; lesion masks: these scores only",
    }
