"""Synthetic lesions with exact masks, for `student_ideas.py`. Not a command.

A healthy slice is noised; inside a region the diffusion model removes the noise with the label UNHEALTHY, and the rest
is held to the slice at every level. Regions are pseudo-labels of other patients.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from scipy import ndimage
from torch import Tensor

from anofpdm.labels import HEALTHY, NULL, UNHEALTHY
from anofpdm.method.context import SlicePositions
from anofpdm.method.guidance import PredictNoise, noise_pair
from anofpdm.network.schedule import NoiseSchedule

if TYPE_CHECKING:
    from student_ideas import Study

TOP, STEPS, STRENGTH = 600, 30, 3.0  # noise level to start from, levels, guidance towards UNHEALTHY
BATCH = 50
NEAR = 0.1  # of the height of a brain: how far away a region may come from
CHANGED = 0.1  # of values in -1 to 1, smoothed: where a pixel counts as lesion


@dataclass(frozen=True)
class Synthetic:
    """Slices that replace healthy ones."""

    rows: np.ndarray  # [m], within the training part
    pixels: np.ndarray  # [m, C, H, W], all modalities of the model
    targets: np.ndarray  # uint8 [m, H, W]


def make_synthetic(study: "Study", targets: np.ndarray, count: int, seed: int = 0) -> Synthetic:
    """Small lesions are drawn as often as large ones: by the logarithm of their area."""
    rng, part = np.random.default_rng(seed), study.train_part
    healthy = np.flatnonzero(part.labels == HEALTHY)
    areas = (targets > 127).sum(axis=(1, 2))
    donors = np.flatnonzero(areas > 0)
    rows = rng.choice(healthy, count, replace=count > len(healthy))
    heights, chance = relative_heights(part.positions), 1 / log_density(areas[donors])
    chosen = []
    for row in rows:
        near = chance * (np.abs(heights[donors] - heights[row]) < NEAR)
        near = near if near.any() else chance
        chosen.append(rng.choice(donors, p=near / near.sum()))
    regions = targets[np.array(chosen)] > 127
    device, schedule = study.teacher.model.device, NoiseSchedule.linear()
    pixels = part.pixels(study.teacher.model.modalities)
    made = []
    for start in range(0, count, BATCH):
        some = slice(start, start + BATCH)
        x0 = torch.from_numpy(pixels(rows[some])).float().to(device)
        region = torch.from_numpy(regions[some]).to(device)[:, None] & (x0 > -0.95).any(1, keepdim=True)
        generator = torch.Generator().manual_seed(seed * 1_000_003 + start)
        noise = torch.randn(x0.shape, generator=generator).to(device)
        made.append(inpaint(study.teacher.model.predict, x0, region, noise, schedule).cpu().numpy())
    after = np.concatenate(made)
    found = np.stack([changed(*one) for one in zip(pixels(rows), after, regions, strict=True)])
    return Synthetic(rows, after, np.where(found, 255, 0).astype(np.uint8))


def relative_heights(positions: SlicePositions) -> np.ndarray:
    """[n]: 0 at the lowest slice of a scan, 1 at the highest."""
    heights = np.zeros(len(positions.scans))
    for scan in np.unique(positions.scans):
        own = positions.scans == scan
        low, high = positions.heights_mm[own].min(), positions.heights_mm[own].max()
        heights[own] = (positions.heights_mm[own] - low) / max(high - low, 1e-6)
    return heights


def log_density(areas: np.ndarray) -> np.ndarray:
    """[n]: how many have about the same area."""
    bins = np.floor(2 * np.log2(areas)).astype(int)
    return np.bincount(bins)[bins].astype(float)


@torch.no_grad()
def inpaint(predict: PredictNoise, x0: Tensor, region: Tensor, noise: Tensor, schedule: NoiseSchedule) -> Tensor:
    """x0 [N, C, H, W], region bool [N, 1, H, W] -> slices with a lesion inside the region."""
    levels = np.linspace(TOP - 1, 0, STEPS).round().astype(int).tolist()
    predict_pair = noise_pair(predict, (UNHEALTHY, NULL))
    x = schedule.add_noise(x0, levels[0], noise)
    for t, t_next in zip(levels, [*levels[1:], -1], strict=True):
        unhealthy, unguided = predict_pair(x, t)
        clean = schedule.clean(x, (1 + STRENGTH) * unhealthy - STRENGTH * unguided, t).clamp(-1, 1)
        clean = torch.where(region, clean, x0)
        if t_next < 0:
            return clean
        x = schedule.ddim_step(x, clean, t, t_next)
        x = torch.where(region, x, schedule.add_noise(x0, t_next, noise))
    return x


def changed(before: np.ndarray, after: np.ndarray, region: np.ndarray) -> np.ndarray:
    """[H, W]: pixels of the region that differ, without holes."""
    difference = ndimage.gaussian_filter(np.abs(after - before).max(axis=0), 1.0)
    result: np.ndarray = ndimage.binary_fill_holes(region & (difference > CHANGED)) & region
    return result
