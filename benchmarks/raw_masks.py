"""Masks of disturbed studies (raw_disturbed.py), compared with those of the scan as it was."""

import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from raw_disturbed import (
    Disturbance,
    draw_disturbance,
    read_heads,
    write_aligned,
    write_disturbed,
    write_returned,
)

from anofpdm.cohorts.subjects import Subject
from anofpdm.raw.cache import StudyCache
from anofpdm.raw.geometry import apply, resample
from anofpdm.raw.register import Head, register_affine, register_rigid
from anofpdm.raw.study import PlacedSeries, Study
from anofpdm.raw.template import load_template
from anofpdm.scans import read_volume
from anofpdm.scans.expects import MNI152
from anofpdm.scans.grid import Grid
from anofpdm.segment.model import Model
from anofpdm.segment.result import Segmentation
from anofpdm.segment.segment_scan import study_options


@dataclass(frozen=True)
class DisturbedScores:
    """Of one study: DICE, and the mean error of each registration."""

    undisturbed: float  # to the prediction of the scan as it was
    perfect: float  # to the prediction with perfect registration
    perfect_undisturbed: float  # of these two
    reference_before: float  # of the undisturbed prediction to the reference mask; NaN without one
    reference_after: float
    errors_mm: Mapping[str, float]


@dataclass(frozen=True)
class Undisturbed:
    heads: Mapping[str, Head]
    prediction: Segmentation
    reference: np.ndarray | None  # lesion mask on the grid of the prediction

    @classmethod
    def of_scan(cls, model: Model, subject: Subject) -> "Undisturbed":
        heads = read_heads({name: Path(path) for name, path in subject.images.items()})
        reference = read_volume(subject.masks[0]).voxels > 0 if subject.masks else None
        return cls(heads, model.segment(subject.images, raw="never"), reference)

    def residual_mm(self, template: str | None, names: Collection[str]) -> dict[str, float]:
        """Mean distance by which registration moves series of the scan, which its publishers have registered."""
        (_, reference), *others = self.heads.items()
        moved = {name: register_rigid(reference, head).matrix for name, head in others if name in names}
        if template is not None:
            moved[template] = register_affine(load_template(), reference).matrix
        return {name: float(distances_mm(matrix, np.eye(4), reference).mean()) for name, matrix in moved.items()}


def disturb_once(model: Model, scan: Undisturbed, rng: np.random.Generator) -> DisturbedScores:
    needed = model.request().modalities
    names = tuple(dict.fromkeys((*needed, *scan.heads)))  # the reference first; a movement is drawn for each
    reference = names[0]
    disturbance = draw_disturbance(names, scan.heads[reference].centre_mm, rng)
    with tempfile.TemporaryDirectory() as name:
        raw = Path(name, "raw")
        raw.mkdir()
        files = write_disturbed({series: scan.heads[series] for series in needed}, disturbance, raw)
        options = study_options(model.request())
        study = Study(files, options, StudyCache(raw / "preparation")).prepare()
        after = model.segment(files, raw="always", raw_run=StudyCache(raw / "preparation"))
    there = np.linalg.inv(disturbance.movements[reference])

    def moved(mask: np.ndarray) -> np.ndarray:
        return np.asarray(resample(mask, scan.prediction.grid, after.grid, there) >= 0.5)

    before, perfect = moved(scan.prediction.mask), predict_perfect(model, scan, disturbance, reference)
    errors = {series.name: placement_error(series, disturbance, scan.heads[reference]) for series in study.series[1:]}
    if options.expects.template is not None:
        error = distances_mm(study.scan_to_reference, disturbance.movements[reference], scan.heads[reference])
        errors[MNI152] = float(error.mean())
    truth = None if scan.reference is None else moved(scan.reference)
    return DisturbedScores(
        undisturbed=dice(after.mask, before),
        perfect=dice(after.mask, perfect),
        perfect_undisturbed=dice(perfect, before),
        reference_before=np.nan if truth is None else dice(before, truth),
        reference_after=np.nan if truth is None else dice(after.mask, truth),
        errors_mm=errors,
    )


def predict_perfect(model: Model, scan: Undisturbed, disturbance: Disturbance, reference: str) -> np.ndarray:
    """Mask on the grid of the disturbed reference, of series at their true positions and perfectly stripped. A model in
    template space sees them where the scan was."""
    there, slice_mm = np.eye(4), study_options(model.request()).slice_mm
    with tempfile.TemporaryDirectory() as name:
        if model.scans.expects.template is None:
            used = {series: scan.heads[series] for series in model.request().modalities}
            files = write_aligned(used, disturbance, reference, Path(name), slice_mm)
        else:
            files = write_returned(scan.heads, disturbance, Path(name))
            there = np.linalg.inv(disturbance.movements[reference])
        result = model.segment(files, raw="never")
    return np.asarray(resample(result.mask, result.grid, disturbance.grids[reference], there) >= 0.5)


def placement_error(series: PlacedSeries, disturbance: Disturbance, reference: Head) -> float:
    """Mean over the brain, in millimetres."""
    first = next(iter(disturbance.movements))
    moved = Head(
        reference.voxels,
        reference.brain,
        Grid.from_affine(reference.grid.shape, disturbance.movements[first] @ reference.grid.affine),
    )
    return float(distances_mm(series.matrix, disturbance.true_matrix(first, series.name), moved).mean())


def dice(a: np.ndarray, b: np.ndarray) -> float:
    total = a.sum() + b.sum()
    return float(2 * (a & b).sum() / total) if total else 1.0


def distances_mm(matrix: np.ndarray, other: np.ndarray, head: Head) -> np.ndarray:
    """Between transformed positions inside the brain."""
    points = apply(head.grid.affine, np.argwhere(head.brain)[::20])
    return np.asarray(np.linalg.norm(apply(matrix, points) - apply(other, points), axis=1))
