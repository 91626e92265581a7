"""Changes of targets, losses and augmentation that `student_ideas.py` tries. Not a command."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from scipy import ndimage
from scipy.special import expit
from torch import Tensor

from anofpdm.labels import HEALTHY, NULL
from anofpdm.student import training as student_training
from anofpdm.student.batches import StudentBatch
from anofpdm.student.model import predict_slices

if TYPE_CHECKING:
    from student_ideas import Study
    from student_study import Recipe

Targets = np.ndarray  # uint8 [n, H, W]: probability of lesion times 255


# ---- targets ---------------------------------------------------------------------------------------------------------

BAND, RING = 3, 8  # pixels: how far an edge moves; how far normal brain is looked for
LARGE = 200  # pixels of a lesion whose edges are moved
FRACTION, SOFTNESS = 0.5, 0.15  # of the way from normal brain to lesion


def move_edges(study: "Study", targets: Targets, _recipe: "Recipe") -> Targets:
    """The edge of each large lesion goes where the image is half way between lesion and normal brain."""
    pixels, result = study.train_part.pixels(study.scored), targets.copy()
    for row in np.flatnonzero((targets > 127).any(axis=(1, 2))):
        result[row] = moved_edge(targets[row], pixels(np.array([row]))[0])
    return result


def moved_edge(target: np.ndarray, image: np.ndarray) -> np.ndarray:
    """target uint8 [H, W], image [C, H, W] in -1 to 1."""
    brain, moved = (image > -0.95).any(axis=0), target.astype(np.float64) / 255
    components, count = ndimage.label(target > 127, np.ones((3, 3)))
    for number in range(1, count + 1):
        lesion = components == number
        if lesion.sum() < LARGE:
            continue
        outside = ndimage.distance_transform_edt(~lesion)
        inside = ndimage.distance_transform_edt(lesion)
        normal = brain & (outside > BAND) & (outside <= RING) & (components == 0)
        core = inside > BAND
        if normal.sum() < 20 or core.sum() < 20:
            continue
        levels = [(np.median(channel[normal]), np.median(channel[core]), channel) for channel in image]
        contrast = sum(abs(high - low) for low, high, _ in levels)
        if contrast < 0.1:
            continue
        way = (
            sum(np.sign(high - low) * (channel - low) for low, high, channel in levels) / contrast
        )  # 0 normal, 1 lesion
        band = brain & ((outside <= BAND) & (outside > 0) | lesion & (inside <= BAND))
        band &= (components == 0) | lesion
        moved[band] = expit((ndimage.gaussian_filter(way, 0.5)[band] - FRACTION) / SOFTNESS)
    return np.round(255 * moved).astype(np.uint8)


def fill_holes(_study: "Study", targets: Targets, _recipe: "Recipe") -> Targets:
    """Dark cores inside bright rims."""
    result = targets.copy()
    for row in np.flatnonzero((targets > 127).any(axis=(1, 2))):
        lesion = targets[row] > 127
        closed = ndimage.binary_fill_holes(ndimage.binary_closing(lesion, np.ones((3, 3)), iterations=2))
        result[row][closed & ~lesion] = 200
    return result


def hard(_study: "Study", targets: Targets, _recipe: "Recipe") -> Targets:
    return np.where(targets > 127, 255, 0).astype(np.uint8)


def several_seeds(study: "Study", targets: Targets, _recipe: "Recipe") -> Targets:
    parts = [targets, *(study.pseudo_labels(seed) for seed in (1, 2))]
    mean: np.ndarray = np.mean([part.astype(np.float32) for part in parts], axis=0)
    return np.round(mean).astype(np.uint8)


def cross_fitted(share: float, folds: int = 4) -> Callable[["Study", Targets, "Recipe"], Targets]:
    """Each patient's pseudo-labels, corrected by a student that was trained on other patients."""

    def correct(study: "Study", targets: Targets, recipe: "Recipe") -> Targets:
        part, result = study.train_part, targets.astype(np.float32)
        names = np.random.default_rng(0).permutation(np.unique(part.patients))
        fold = {name: number % folds for number, name in enumerate(names)}
        of_row = np.array([fold[name] for name in part.patients])
        for number in range(folds):
            others, own = np.flatnonzero(of_row != number), np.flatnonzero(of_row == number)
            network = study.train(recipe, targets[others], replace(part, rows=part.rows[others]))
            held = replace(part, rows=part.rows[own])
            device = study.teacher.model.device
            logits, _ = predict_slices(network, held.pixels(recipe.modalities), held.positions, device)
            result[own] = (1 - share) * result[own] + share * 255 * expit(logits)
        result[part.labels == HEALTHY] = 0
        return np.round(result).astype(np.uint8)

    return correct


# ---- training --------------------------------------------------------------------------------------------------------


def loss_by_slice(logits: Tensor, mask: Tensor) -> Tensor:
    """DICE of each slice with a lesion, not of the batch: small lesions count as much as large ones."""
    probability = logits.sigmoid()
    overlap = 2 * (probability * mask).sum((1, 2)) / (probability.sum((1, 2)) + mask.sum((1, 2))).clamp(min=1)
    lesion = (mask.amax((1, 2)) > 0.5).float()
    by_slice = ((1 - overlap) * lesion).sum() / lesion.sum().clamp(min=1)
    return 0.5 * student_mask_loss(logits, mask) + 0.5 * (F.binary_cross_entropy_with_logits(logits, mask) + by_slice)


def loss_by_area(logits: Tensor, mask: Tensor) -> Tensor:
    """Pixels of small lesions weigh more in the cross entropy: by one over the root of the slice's lesion area."""
    area = (mask > 0.5).float().sum((1, 2), keepdim=True)
    weight = 1 + (mask > 0.5).float() * 20 / area.clamp(min=25).sqrt()
    entropy = F.binary_cross_entropy_with_logits(logits, mask, weight=weight)
    return student_mask_loss(logits, mask) - F.binary_cross_entropy_with_logits(logits, mask) + entropy


student_mask_loss, student_augment = student_training.mask_loss, StudentBatch.augment


def paste_lesions(batch: StudentBatch) -> tuple[Tensor, Tensor]:
    """Lesions of other slices of the batch, blended into half of the slices without one."""
    x, mask = student_augment(batch)
    donor, lesion = x.roll(1, 0), mask.roll(1, 0)
    brain = (x > -0.95).float().amax(1)  # [n, H, W]
    free = (mask.amax((1, 2)) < 0.05) & (batch.chances[:, 0] > 0)  # slices without a lesion
    wide = F.avg_pool2d(F.max_pool2d((lesion > 0.5).float()[:, None], 3, 1, 1), 3, 1, 1)[:, 0]
    alpha = wide * brain * free[:, None, None].float()

    def level(image: Tensor, where: Tensor) -> Tensor:
        return (image * where[:, None]).sum((2, 3)) / where.sum((1, 2)).clamp(min=1)[:, None]  # [n, C]

    shift = level(x, brain) - level(donor, (donor > -0.95).float().amax(1))
    pasted = (donor + shift[:, :, None, None]).clamp(-1, 1)
    blended = x + alpha[:, None] * (pasted - x)
    batch.labels.masked_fill_(free & (lesion.amax((1, 2)) > 0.5), NULL)
    return blended, torch.where(free[:, None, None], lesion * brain, mask)
