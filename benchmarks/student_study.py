"""A student trained on given targets and scored on a split: what studies of the student share. Not a command."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from anofpdm.calibration.fit_calibration import slice_positions
from anofpdm.cohorts import Cohort
from anofpdm.method.context import SlicePositions
from anofpdm.method.mask import SMALLEST, mask, smallest_pixels
from anofpdm.scoring.metrics.lesions import dice_by_size
from anofpdm.scoring.metrics.pixels import confusion, dice, mean_defined, volume_dice
from anofpdm.scoring.truth import Truth
from anofpdm.student.decide import (
    CLEAR,
    StudentCalibration,
    StudentDecision,
    drop_unlinked,
    kth_largest,
    lower_thresholds,
    map_scans,
    smooth,
)
from anofpdm.student.fit_detector import fit_student_calibration
from anofpdm.student.predict import predict_passes
from anofpdm.student.student_network import (
    Pixels,
    StudentConfig,
    StudentNet,
    cohort_pixels,
    default_neighbours_mm,
    neighbour_rows,
)
from anofpdm.student.targets import PseudoLabels
from anofpdm.student.train_student import StudentTrainingConfig, train_student

SCORES = ("unhealthy", "mixed", "volume", "precision", "recall", "accuracy")


@dataclass(frozen=True)
class Part:
    """Slices of one split, and their masks for scores."""

    cohort: Cohort
    rows: np.ndarray

    @property
    def positions(self) -> SlicePositions:
        return slice_positions(self.cohort, self.rows)

    @property
    def labels(self) -> np.ndarray:
        return self.cohort.labels[self.rows]

    @property
    def patients(self) -> np.ndarray:
        return self.cohort.patients[self.rows]

    def pixels(self, modalities: Sequence[str]) -> Pixels:
        return cohort_pixels(self.cohort, self.rows, modalities)

    def truth(self) -> np.ndarray:
        return Truth(self.cohort).masks(self.rows)


@dataclass(frozen=True)
class Recipe:
    """How a student is trained."""

    modalities: tuple[str, ...]
    training: StudentTrainingConfig
    width: int = 32


def train(recipe: Recipe, part: Part, targets: np.ndarray, device: torch.device) -> StudentNet:
    """On targets uint8 [n, H, W], of the slices of this part."""
    size = int(part.cohort.slices.shape[-1])
    config = StudentConfig(recipe.modalities, size, default_neighbours_mm(part.positions), recipe.width)
    neighbours = neighbour_rows(part.positions, config.neighbours_mm)
    data = PseudoLabels(part.pixels(recipe.modalities), targets, neighbours, part.labels)
    return train_student(config, data, recipe.training, device)


@dataclass(frozen=True)
class Outputs:
    """Of one or several students, averaged."""

    pixel_logits: np.ndarray  # [n, H, W]
    slice_logits: np.ndarray  # [n]
    calibration: StudentCalibration

    @classmethod
    def of(cls, network: StudentNet, part: Part, calibrate_on: Part, device: torch.device) -> "Outputs":
        names = network.config.modalities
        calibration = fit_student_calibration(
            network,
            calibrate_on.pixels(names),
            calibrate_on.labels,
            calibrate_on.patients,
            calibrate_on.positions,
            device,
            calibrate_on.cohort.suspected[calibrate_on.rows],
        )
        passes, slice_passes = predict_passes(network, part.pixels(names), part.positions, device)
        return cls(passes.mean(axis=1), slice_passes.mean(axis=1), calibration)


@dataclass(frozen=True)
class Drawing:
    """How masks follow from logits."""

    cut: float = 0.0  # logit
    smallest: int = SMALLEST
    at_least: bool = True  # draw at least as many pixels as the smallest component has
    linked: bool = True  # keep smaller components that continue a lesion of an adjacent slice


class Drawn(NamedTuple):
    drawn: np.ndarray  # masks [n, H, W] before detection
    masks: np.ndarray  # empty where nothing is detected
    detected: np.ndarray  # [n]


class Smoothed(NamedTuple):
    """Outputs smoothed across slices: what masks are drawn from."""

    logits: np.ndarray  # [n, H, W], minus the threshold of faint lesions
    scores: np.ndarray  # [n], of the detector
    positions: SlicePositions

    @classmethod
    def of(cls, outputs: Outputs, positions: SlicePositions) -> "Smoothed":
        calibration = outputs.calibration
        decision = StudentDecision(calibration, outputs.pixel_logits.shape[-1])

        def of_scan(*tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            logits = smooth(tensors[0], tensors[2], calibration.context_mm)
            return logits - lower_thresholds(logits, calibration.faint_span), decision.score(*tensors)

        lowered, scores = map_scans(of_scan, positions, outputs.pixel_logits, outputs.slice_logits)
        return cls(lowered, scores, positions)

    def draw(self, drawing: Drawing) -> Drawn:
        logits, scores = self.logits - drawing.cut, self.scores
        limit = smallest_pixels(logits.shape[1:], drawing.smallest)
        lowest = kth_largest(torch.from_numpy(logits), limit + 1).numpy()
        cuts = np.minimum(0, lowest) if drawing.at_least else np.zeros(len(logits))
        if drawing.linked:

            def of_scan(above: torch.Tensor, _heights_mm: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
                return drop_unlinked(above, limit)

            drawn, has_large = map_scans(of_scan, self.positions, mask(logits, cuts, 0))
            shown = (scores >= 0) & (has_large | (scores >= CLEAR))
            return Drawn(drawn, drawn & shown[:, None, None], scores >= 0)
        drawn = mask(logits, cuts, drawing.smallest)
        return Drawn(drawn, drawn & (scores >= 0)[:, None, None], scores >= 0)


def draw(outputs: Outputs, positions: SlicePositions, drawing: Drawing) -> Drawn:
    return Smoothed.of(outputs, positions).draw(drawing)


def score(result: Drawn, truth: np.ndarray, patients: np.ndarray) -> dict[str, float]:
    """In percent; by size: DICE of unhealthy slices."""
    (drawn, masks, detected), unhealthy = result, truth.any(axis=(1, 2))
    pixels = confusion(drawn[unhealthy], truth[unhealthy])
    numbers = {
        "unhealthy": dice(drawn, truth)[unhealthy].mean(),
        "mixed": dice(masks, truth).mean(),
        "volume": mean_defined(volume_dice(masks, truth, patients)),
        "precision": pixels.precision,
        "recall": pixels.recall,
        "accuracy": (detected == unhealthy).mean(),
        **{size.name: size.dice for size in dice_by_size(drawn, truth)},
    }
    return {name: 100 * float(value) for name, value in numbers.items()}


def print_head(columns: Sequence[str]) -> None:
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}", flush=True)
