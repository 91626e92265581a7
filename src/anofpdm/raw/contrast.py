"""Which contrast a series has, by its image: FLAIR, T1, T1 with contrast agent, or T2.

Brightness in the brain, relative to its median, is measured in white and grey matter (where an average brain has them,
once the boxes around both brains coincide), around the ventricles, below the surface and over all. Each contrast is a
normal distribution of these eleven numbers. Series of one study have different contrasts, so that all of them are
decided together; what is not clear is refused. Fitted by benchmarks/contrast.py.
"""

import itertools
import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from scipy import ndimage

from anofpdm.errors import ScanError
from anofpdm.raw.geometry import apply, average_blocks
from anofpdm.raw.register import Head
from anofpdm.raw.template import load_template, load_tissues
from anofpdm.scans.grid import Grid

CONTRASTS = ("flair", "t1", "t1ce", "t2")
DISTRIBUTIONS = Path(__file__).with_name("contrast.json")
BLOCK_MM = 2.0
EDGE_MM = 3.0  # below the surface of the brain mask, which differs most between methods
SHELLS_MM = ((3.0, 7.0), (7.0, 12.0))  # below the surface
QUANTILES = (0.25, 0.75, 0.95, 0.99)
MIDDLE_QUANTILES = (0.05, 0.5, 0.95)  # fluid in the ventricles is the darkest or the brightest there
MIDDLE_MM = ((-35.0, 35.0), (-50.0, 35.0), (-10.0, 35.0))  # around the lateral ventricles, in MNI space
LEAST_TISSUE = 0.75  # probability
DARKEST = 0.02  # of the median; smaller values would dominate the logarithms
LEAST_VOXELS = 500
FAINT = 0.06  # of the maximum; below it, traces of resampling and compression around a stripped brain
UNUSUAL = 40.0  # squared Mahalanobis distance of a series that is rather none of these contrasts
TOO_FEW = "too few voxels of the brain are above 0"
SURE = 0.95  # least probability of an assignment

Likelihoods = Mapping[str, float]  # logarithm, by contrast


def measure_contrast(head: Head) -> np.ndarray:
    """[11], logarithms of brightness relative to the median; independent of the scale of the values."""
    voxels, grid = average_blocks(head.voxels, head.grid, BLOCK_MM)
    depth = _depth(average_blocks(head.brain, head.grid, BLOCK_MM)[0] >= 0.5, grid)
    return _measure([voxels], (depth > EDGE_MM) & (voxels > 0), depth, grid)[0]


def measure_stripped(volumes: Sequence[np.ndarray], grid: Grid) -> list[np.ndarray]:
    """[11] of each series of a stripped brain; the series share a grid, and where its voxels are is computed once."""
    averaged = [average_blocks(volume, grid, BLOCK_MM) for volume in volumes]
    images, grid = [image for image, _ in averaged], averaged[0][1]
    brain = np.logical_or.reduce([image > FAINT * image.max() for image in images])
    depth = _depth(ndimage.binary_fill_holes(ndimage.binary_opening(brain)), grid)
    return _measure(images, depth > EDGE_MM, depth, grid)


def _measure(images: Sequence[np.ndarray], inside: np.ndarray, depth: np.ndarray, grid: Grid) -> list[np.ndarray]:
    if not inside.any():
        raise ScanError(TOO_FEW)
    positions = _to_template(apply(grid.affine, np.argwhere(inside)))
    to_voxels, tissues, _ = _template_tissues()
    voxels = apply(to_voxels, positions).T
    regions = [ndimage.map_coordinates(tissue, voxels, order=1, output=np.float32) > LEAST_TISSUE for tissue in tissues]
    regions += [(depth[inside] > first) & (depth[inside] <= last) for first, last in SHELLS_MM]
    low, high = np.transpose(MIDDLE_MM)
    regions.append(((positions > low) & (positions < high)).all(axis=1))
    return [_describe(image[inside], np.stack(regions)) for image in images]


def _describe(values: np.ndarray, regions: np.ndarray) -> np.ndarray:
    """Of values [n] in regions [5, n]: white and grey matter, shells, the middle."""
    above = values > 0
    if above.sum() < LEAST_VOXELS:
        raise ScanError(TOO_FEW)
    values, regions = values[above] / np.median(values[above]), regions[:, above]
    *parts, middle = (values[region] for region in regions)
    measured = [
        *(np.median(part) if len(part) else 1.0 for part in parts),
        *np.quantile(middle if len(middle) else values, MIDDLE_QUANTILES),
        *np.quantile(values, QUANTILES),
    ]
    return np.log(np.maximum(measured, DARKEST))


def _depth(brain: np.ndarray, grid: Grid) -> np.ndarray:
    """Millimetres below the surface of the brain."""
    return np.asarray(ndimage.distance_transform_edt(np.pad(brain, 1), grid.spacing_mm)[1:-1, 1:-1, 1:-1])


@cache
def _template_tissues() -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray], np.ndarray]:
    """Of MNI space: the transform to voxels [4, 4], probabilities of white and grey matter, the box of the brain."""
    brain, (grey, white) = load_template(2), load_tissues(2)
    inside = _depth(brain.brain, brain.grid) > EDGE_MM
    return np.linalg.inv(brain.grid.affine), (white, grey), _box(apply(brain.grid.affine, np.argwhere(inside)))


def _box(positions: np.ndarray) -> np.ndarray:
    """[2, 3]"""
    return np.asarray(np.percentile(positions, [1, 99], axis=0))


def _to_template(positions: np.ndarray) -> np.ndarray:
    """Positions in a brain, by its box, in the template. The lower end of a brain depends on the field of view."""
    (low, high), (there_low, there_high) = _box(positions), _template_tissues()[2]
    scale = (there_high - there_low) / (high - low)
    scale[2] = (scale[0] + scale[1]) / 2
    moved: np.ndarray = there_high - scale * (high - positions)
    return moved


@cache
def _distributions() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Mean [11] and covariance [11, 11] of each contrast."""
    stored = json.loads(DISTRIBUTIONS.read_text())
    return {name: (np.array(numbers["mean"]), np.array(numbers["covariance"])) for name, numbers in stored.items()}


def compare_contrasts(measured: np.ndarray) -> dict[str, float]:
    """Log likelihood of each contrast, relative to the highest density of the widest one."""
    spreads = {name: np.linalg.slogdet(covariance)[1] for name, (_, covariance) in _distributions().items()}
    likelihoods = {}
    for name, (mean, covariance) in _distributions().items():
        distance = (measured - mean) @ np.linalg.solve(covariance, measured - mean)
        likelihoods[name] = float(-0.5 * (distance + spreads[name] - max(spreads.values())))
    return likelihoods


def assign_series(
    series: Mapping[str, Likelihoods], modalities: Sequence[str], known: Sequence[str] = ()
) -> tuple[dict[str, str], float]:
    """The most probable series of these modalities, by modality, and how probable it is among all assignments that
    include them; 0 where they cannot all be there, or an assignment without one of them is more probable.

    Every series has another contrast, or none of them; `known` are contrasts that other series of the study have. The
    user's choice of the model is evidence that its modalities are there, except for a series alone.
    """
    every = enumerate_assignments(series, [name for name in CONTRASTS if name not in known])
    complete = [(given, score) for given, score in every if set(modalities) <= set(given)]
    if not complete:
        return {}, 0.0
    scores: dict[tuple[str, ...], float] = {}
    for given, score in complete:
        choice = tuple(given[name] for name in modalities)
        scores[choice] = float(np.logaddexp(scores.get(choice, -np.inf), score))
    best = max(scores, key=scores.__getitem__)
    total = np.logaddexp.reduce([score for _, score in (every if len(series) == 1 else complete)])
    plausible = max(score for _, score in complete) >= max(score for _, score in every)
    return dict(zip(modalities, best, strict=True)), float(np.exp(scores[best] - total)) if plausible else 0.0


def enumerate_assignments(
    series: Mapping[str, Likelihoods], contrasts: Sequence[str] = CONTRASTS
) -> list[tuple[dict[str, str], float]]:
    """Contrast to series, each at most once, and its log likelihood; the other series have none of these contrasts."""
    every = []
    for chosen in itertools.product((None, *series), repeat=len(contrasts)):
        given = {contrast: name for contrast, name in zip(contrasts, chosen, strict=True) if name is not None}
        if len(set(given.values())) == len(given):
            score = sum(series[name][contrast] for contrast, name in given.items())
            every.append((given, score - 0.5 * UNUSUAL * (len(series) - len(given))))
    return every


def describe_series(series: Mapping[str, Likelihoods]) -> str:
    """For messages: what each series looks most like, taken alone."""
    described = []
    for name, likelihoods in series.items():
        total = np.logaddexp.reduce(list(likelihoods.values()))
        ranked = sorted(likelihoods, key=lambda contrast: -likelihoods[contrast])
        likely = [contrast for contrast in ranked if np.exp(likelihoods[contrast] - total) > 1 - SURE]
        unusual = likelihoods[ranked[0]] < -0.5 * UNUSUAL
        described.append(f"{name}: {'none of them' if unusual else ' or '.join(likely)}")
    return ", ".join(described)
