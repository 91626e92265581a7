"""Changes of targets and losses that `student_ideas.py` tries. Not a command."""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch.nn.functional as F
from scipy import ndimage
from scipy.special import expit
from torch import Tensor

from anofpdm.labels import HEALTHY
from anofpdm.student import training as student_training
from anofpdm.student.model import predict_slices

if TYPE_CHECKING:
    from student_ideas import Study
    from student_study import Recipe

Targets = np.ndarray  # uint8 [n, H, W]: probability of lesion times 255


# ---- targets ---------------------------------------------------------------------------------------------------------


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


student_mask_loss = student_training.mask_loss
