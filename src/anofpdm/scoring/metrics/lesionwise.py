"""Scores per lesion of 3D masks: lesion-wise DICE and HD95 (BraTS), lesion F1 (ISLES, ATLAS), panoptic quality."""

import functools
import math
from dataclasses import dataclass

import numpy as np

from anofpdm.errors import EvaluationError
from anofpdm.scoring.metrics.components import Components, dilate, find_components
from anofpdm.scoring.metrics.surfaces import Distances, Spacing, Surface, find_nearest, hausdorff, measure_distances

PENALTY_MM = 374.0  # HD95 of what has no counterpart, as in BraTS: the diagonal of its images, rounded up
MAX_PAIRS = 2 * 10**7  # of components: noise rather than masks
MATCH_IOU = 0.5  # panoptic quality: components match above this; no component can then match two


@dataclass(frozen=True)
class LesionRule:
    """What counts as one lesion, as in the BraTS 2023 challenge on gliomas."""

    dilations: int = 3  # of the true mask, by 18 neighbours: parts whose dilations touch are one lesion
    ignored_mm3: float = 50.0  # true lesions up to this volume are not scored


BRATS = LesionRule()


@dataclass(frozen=True)
class Lesion:
    """A true lesion, or a predicted component that is near none."""

    kind: str  # found, missed or false
    volume_ml: float  # of the lesion, or of the false component
    predicted_ml: float  # of the predicted components matched to it
    dice: float
    hd95_mm: float
    counted: bool  # False: too small to be scored
    centre: tuple[float, float, float]  # of its surface, voxel index


@dataclass(frozen=True)
class LabelledMask:
    """A mask with a margin of background, and its parts."""

    mask: np.ndarray  # bool [i, j, k]
    components: Components
    surface: Surface

    @property
    def part_of_element(self) -> np.ndarray:
        """[elements], the component of each surface element. All voxels of a cell touch, so there is one."""
        return self.components.label_at(self.surface.voxels)


@dataclass(frozen=True)
class MaskPair:
    """The margin is one voxel wider than the dilations of the rule."""

    predicted: LabelledMask
    truth: LabelledMask
    spacing: Spacing

    @functools.cached_property
    def overlaps(self) -> np.ndarray:
        """[predicted components, true components], voxels in both."""
        ours, theirs = self.predicted.components, self.truth.components
        inside = ours.labels_inside(self.truth.mask), theirs.labels_inside(self.predicted.mask)
        return _count_pairs(*inside, (ours.count, theirs.count))

    @functools.cached_property
    def distances(self) -> tuple[Distances, Distances] | None:
        """From the predicted surface to the true one, and back; None if a mask is empty."""
        ours, theirs = self.predicted.surface, self.truth.surface
        if not len(ours.cells) or not len(theirs.cells):
            return None
        return measure_distances(ours, theirs, self.spacing), measure_distances(theirs, ours, self.spacing)


# ---- ISLES, ATLAS, panoptic quality ----------------------------------------------------------------------------------


def lesion_f1(overlaps: np.ndarray) -> float:
    """A lesion is found, and a predicted component is right, if they share a voxel with the other mask."""
    detected, false = int(overlaps.any(axis=0).sum()), int((~overlaps.any(axis=1)).sum())
    total = detected + overlaps.shape[1] + false
    return 2 * detected / total if total else 1.0


def panoptic_quality(overlaps: np.ndarray, predicted_sizes: np.ndarray, truth_sizes: np.ndarray) -> float:
    """Sum of the IoU of matched components over the mean of the numbers of predicted and true components."""
    n_components = sum(overlaps.shape)
    iou = overlaps / np.maximum(predicted_sizes[:, None] + truth_sizes - overlaps, 1)
    return float(2 * iou[iou > MATCH_IOU].sum() / n_components) if n_components else 1.0


# ---- BraTS -----------------------------------------------------------------------------------------------------------


def find_lesions(pair: MaskPair, rule: LesionRule) -> list[Lesion]:
    """True lesions, then false components."""
    predicted, truth = pair.predicted.components, pair.truth.components
    dilated = dilate(pair.truth.mask, rule.dilations)
    near = find_components(dilated)  # its components are the lesions, dilated
    touching = predicted.labels_inside(dilated), near.labels_inside(pair.predicted.mask)
    matches = _count_pairs(*touching, (predicted.count, near.count)) > 0  # [component, lesion]
    one_voxel = np.zeros(truth.count, dtype=int)  # of each true component
    one_voxel[truth.labels] = truth.voxels
    measure = _LesionMeasurement(pair, rule, near.label_at(one_voxel), near.count)
    lesions = [measure.lesion(number, np.flatnonzero(column)) for number, column in enumerate(matches.T)]
    return lesions + [measure.false_component(int(number)) for number in np.flatnonzero(~matches.any(axis=1))]


class _LesionMeasurement:
    """Scores one lesion after the other; distances of the whole surfaces are reused where they hold for the lesion."""

    def __init__(self, pair: MaskPair, rule: LesionRule, lesion_of_part: np.ndarray, count: int) -> None:
        self.pair, self.rule, self.voxel_ml = pair, rule, math.prod(pair.spacing) / 1000
        self.part_of_element = pair.predicted.part_of_element
        self.lesion_of_element = lesion_of_part[pair.truth.part_of_element]
        self.predicted_sizes = pair.predicted.components.sizes
        self.sizes = np.bincount(lesion_of_part, pair.truth.components.sizes, count)
        self.overlaps = np.zeros((len(self.predicted_sizes), count))  # [component, lesion]
        np.add.at(self.overlaps.T, lesion_of_part, pair.overlaps.T)
        self.centres = _centres(pair.truth.surface, self.lesion_of_element, count)
        self.predicted_centres = _centres(pair.predicted.surface, self.part_of_element, len(self.predicted_sizes))

    def lesion(self, number: int, matched: np.ndarray) -> Lesion:
        """`matched`: predicted components that touch the dilated lesion."""
        size, predicted = float(self.sizes[number]), float(self.predicted_sizes[matched].sum())
        return Lesion(
            kind="found" if len(matched) else "missed",
            volume_ml=size * self.voxel_ml,
            predicted_ml=predicted * self.voxel_ml,
            dice=float(2 * self.overlaps[matched, number].sum() / (size + predicted)),
            hd95_mm=self._hd95(number, matched) if len(matched) else PENALTY_MM,
            counted=size * self.voxel_ml * 1000 > self.rule.ignored_mm3,
            centre=self.centres[number],
        )

    def false_component(self, number: int) -> Lesion:
        volume = float(self.predicted_sizes[number]) * self.voxel_ml
        return Lesion("false", volume, volume, 0.0, PENALTY_MM, True, self.predicted_centres[number])

    def _hd95(self, number: int, matched: np.ndarray) -> float:
        assert self.pair.distances is not None  # both masks have voxels
        there, back = self.pair.distances
        ours = self.pair.predicted.surface, np.isin(self.part_of_element, matched)
        theirs = self.pair.truth.surface, self.lesion_of_element == number
        return hausdorff(self._restrict(there, ours, theirs), self._restrict(back, theirs, ours))

    def _restrict(
        self, whole: Distances, source: tuple[Surface, np.ndarray], target: tuple[Surface, np.ndarray]
    ) -> Distances:
        """Distances between chosen elements of two surfaces, [elements] bool each."""
        (surface, chosen), (other, allowed) = source, target
        mm = whole.mm[chosen]
        redo = ~allowed[whole.nearest[chosen]]  # the nearest element belongs to another lesion
        if redo.any():
            mm[redo] = find_nearest(surface.cells[chosen][redo], other.cells[allowed], self.pair.spacing)[0]
        return Distances(mm, whole.nearest[chosen], whole.areas[chosen])


def _centres(surface: Surface, labels: np.ndarray, count: int) -> list[tuple[float, float, float]]:
    """Mean position of the elements of each label."""
    sums = [np.bincount(labels, place, count) for place in surface.cells.T]
    i, j, k = np.array(sums) / np.maximum(np.bincount(labels, minlength=count), 1) + 0.5
    return list(zip(i.tolist(), j.tolist(), k.tolist(), strict=True))


def _count_pairs(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    """How often each pair of labels occurs, of this shape."""
    if shape[0] * shape[1] > MAX_PAIRS:
        raise EvaluationError(
            f"{shape[0]} predicted and {shape[1]} true components are too many to match; remove the smallest first"
        )
    return np.bincount(rows * shape[1] + columns, minlength=shape[0] * shape[1]).reshape(shape)


def lesion_wise(lesions: list[Lesion]) -> tuple[float, float]:
    """Mean DICE and HD95 over counted lesions and false components; 1 and 0 mm without any."""
    counted = [lesion for lesion in lesions if lesion.counted]
    if not counted:
        return 1.0, 0.0
    dices, distances = [lesion.dice for lesion in counted], [lesion.hd95_mm for lesion in counted]
    return sum(dices) / len(counted), sum(distances) / len(counted)
