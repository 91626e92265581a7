"""Whether a scan is like those that the model was trained on.

A scan is described by some numbers: the outline of its foreground, and for each modality its intensities, its outer rim
and where it is bright. The training scans give their mean and covariance. A scan further from the mean, by Mahalanobis
distance, than nearly all training scans is reported as unusual, with the group of numbers that differs most.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import ndimage

from anofpdm.cohorts.store import Cohort
from anofpdm.method.mask import AT_SIDE
from anofpdm.student.student_network import BACKGROUND
from anofpdm.util.sets import subsets
from anofpdm.util.workers import map_in_threads

SLICES = 12  # per scan, from the part of the head where slices are large
LARGE = 0.4  # of the largest slice's area
EDGE, RIM, INNER = 2, 6, 12  # pixels from the outside, for a side of 128
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
BLOCKS = 4  # along a side of the bounding box
SHRINK = 0.1  # of the covariance towards a multiple of the identity
CLIP = 6.0  # robust standard deviations, in the covariance
FOLDS = 5
EXCEEDED = 0.03  # fraction of held-out training scans beyond the limit
MIN_SCANS = 20  # fewer give no covariance

OUTLINE, OUTLINE_NUMBERS = "outline", 6
PARTS = {"intensities": len(QUANTILES) + 2, "rim": 2, "layout": BLOCKS * BLOCKS // 2}  # numbers per modality
MEANING = {
    OUTLINE: "the outline of its foreground: field of view, orientation, cropping, or skull",
    "intensities": "the intensities of {modality}: another sequence, or another scaling",
    "rim": "the outer rim of {modality}: a skull that is there, or was removed",
    "layout": "where {modality} is bright: orientation, another sequence, or a very large lesion",
}


def describe_scan(pixels: np.ndarray) -> np.ndarray:
    """[n, C, H, W] in [-1, 1] -> [6 + 17 C] numbers."""
    areas = (pixels > BACKGROUND).any(axis=1).sum(axis=(1, 2))
    large = np.flatnonzero(areas >= LARGE * areas.max())
    chosen = pixels[large[np.linspace(0, len(large) - 1, min(SLICES, len(large))).astype(int)]]
    images = (chosen.astype(np.float32) + 1) / 2
    foreground = (chosen > BACKGROUND).any(axis=1)  # [n, H, W]
    boxes = [ndimage.find_objects(mask.astype(int))[0] for mask in foreground]
    depth = np.stack([ndimage.distance_transform_edt(mask) for mask in foreground]) * AT_SIDE / pixels.shape[-1]
    modalities = (_describe_modality(image, foreground, depth, boxes) for image in images.swapaxes(0, 1))
    return np.concatenate([_describe_outline(foreground, boxes), *modalities])


def _describe_outline(foreground: np.ndarray, boxes: Sequence[tuple[slice, slice]]) -> np.ndarray:
    side, areas = foreground.shape[-1], foreground.sum(axis=(1, 2))
    crops = [mask[box] for mask, box in zip(foreground, boxes, strict=True)]
    heights, widths = np.array([crop.shape for crop in crops]).T
    front = [crop[: len(crop) // 2].sum() for crop in crops]
    columns = (heights / side, widths / side, heights / widths, areas / (heights * widths), front / areas)
    return np.array([*(np.median(column) for column in columns), areas.mean() / side**2])


def _describe_modality(
    image: np.ndarray, foreground: np.ndarray, depth: np.ndarray, boxes: Sequence[tuple[slice, slice]]
) -> np.ndarray:
    """Of image [n, H, W] in 0 to 1; in the order of PARTS. The outermost pixels, which are partly outside, and noise in
    single pixels depend on resampling and compression: neither the rim nor the sharpness contains them."""
    values = image[foreground]
    parts = (image[(depth > EDGE) & (depth <= RIM)], image[depth > INNER])
    rim, inner = (part if part.size else values for part in parts)
    steps = np.abs(np.diff(_halve(image), axis=2))[_halve(depth)[:, :, 1:] > INNER]
    sharpness = steps.mean() / (values.std() + 1e-6) if steps.size else 0.0
    intensities = [*np.quantile(values, QUANTILES), sharpness, values.std() / (values.mean() + 1e-6)]
    layout = np.median([_block_means(plane[box]) for plane, box in zip(image, boxes, strict=True)], axis=0)
    return np.array([*intensities, np.median(rim) - np.median(inner), rim.std(), *layout / (layout.mean() + 1e-6)])


def _halve(images: np.ndarray) -> np.ndarray:
    """[n, H, W] -> [n, H / 2, W / 2]: means of 2 x 2 pixels."""
    return (images[:, ::2, ::2] + images[:, 1::2, ::2] + images[:, ::2, 1::2] + images[:, 1::2, 1::2]) / 4


def _block_means(image: np.ndarray) -> np.ndarray:
    """Means of 4 x 4 blocks, of the left and right side together: 4 x 2 numbers."""
    rows, columns = (np.linspace(0, count - 1, 4 * BLOCKS).astype(int) for count in image.shape)
    sampled = image[np.ix_(rows, columns)].reshape(BLOCKS, 4, BLOCKS, 4).mean(axis=(1, 3))
    return ((sampled + sampled[:, ::-1]) / 2)[:, : BLOCKS // 2].ravel()


@dataclass(frozen=True)
class TypicalScans:
    """Training scans, as mean and covariance of their numbers."""

    modalities: tuple[str, ...]
    limits: Mapping[str, float]  # of the distance, by the modalities that a scan has: fewer terms, and a wider spread
    centre: np.ndarray  # [D]
    scale: np.ndarray  # [D]
    covariance: np.ndarray  # [D, D] of the standardised numbers

    def __post_init__(self) -> None:
        arrays, count = self.arrays().values(), len(_groups(self.modalities))
        if [array.shape for array in arrays] != [(count,), (count,), (count, count)]:
            raise ValueError(f"typical scans: numbers of wrong shapes for {len(self.modalities)} modalities")
        if not all(np.isfinite(array).all() for array in arrays) or not (self.scale > 0).all():
            raise ValueError("typical scans: numbers must be finite, and scales above 0")

    def arrays(self) -> dict[str, np.ndarray]:
        return {name: getattr(self, name) for name in ("centre", "scale", "covariance")}

    def distance(self, numbers: np.ndarray, given: Sequence[str], group: str = "") -> float:
        """Of a scan with these modalities: 1 is the mean distance of training scans. `group`: of those numbers only."""
        groups = _groups(given)
        own = (groups == group) | (group == "")
        at = np.flatnonzero(np.isin(_groups(self.modalities), groups[own]))
        away = (numbers[own] - self.centre[at]) / self.scale[at]
        return float(np.sqrt(away @ np.linalg.solve(self.covariance[np.ix_(at, at)], away) / len(at)))

    def unusual(self, numbers: np.ndarray, given: Sequence[str]) -> str | None:
        """How far a scan is from those in training, and what differs most, in words; None if it is like them."""
        distance, limit = self.distance(numbers, given), self.limits[",".join(given)]
        if distance <= limit:
            return None
        most = max(_groups(given).tolist(), key=lambda group: self.distance(numbers, given, group))
        part, _, modality = most.partition(" ")
        different = MEANING[part].format(modality=modality.upper())
        return f"(distance {distance:.1f}, limit {limit:.1f}). What differs most is {different}"


def _groups(modalities: Sequence[str]) -> np.ndarray:
    """[D]: the group that each number belongs to. Modalities are in the order of the model."""
    parts = [f"{part} {name}" for name in modalities for part, count in PARTS.items() for _ in range(count)]
    return np.array([OUTLINE] * OUTLINE_NUMBERS + parts)


def fit_typical(numbers: np.ndarray, modalities: tuple[str, ...], optional: Sequence[str] = ()) -> TypicalScans | None:
    """[scans, D]. A limit is exceeded by few of the scans, each compared with the others; one for every set of optional
    modalities that a scan may have. None for too few scans."""
    if len(numbers) < MIN_SCANS:
        return None
    fold = np.random.default_rng(0).permutation(len(numbers)) % FOLDS
    fitted = [_fit(numbers[fold != number], modalities) for number in range(FOLDS)]
    limits = {}
    for missing in subsets(optional):
        given = tuple(name for name in modalities if name not in missing)
        some = numbers[:, np.isin(_groups(modalities), _groups(given))]  # the outline is nearly the same in all
        held_out = [fitted[number].distance(scan, given) for number, scan in zip(fold, some, strict=True)]
        limits[",".join(given)] = min(float(np.quantile(held_out, 1 - EXCEEDED)), 1e9)
    return replace(_fit(numbers, modalities), limits=limits)


def _fit(numbers: np.ndarray, modalities: tuple[str, ...]) -> TypicalScans:
    """Without a limit."""
    median = np.median(numbers, axis=0)
    robust = 1.4826 * np.median(np.abs(numbers - median), axis=0)
    scale = np.maximum(robust, numbers.std(axis=0) / 4) + 1e-3  # an outline has few distinct values: robust may be 0
    standard = np.clip((numbers - median) / scale, -CLIP, CLIP)
    covariance = np.cov(standard.T)
    even = np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    centre = median + scale * standard.mean(axis=0)
    return TypicalScans(modalities, {}, centre, scale, (1 - SHRINK) * covariance + SHRINK * even)


def describe_cohort(cohort: Cohort, rows: np.ndarray, modalities: Sequence[str]) -> np.ndarray:
    """[scans, D] of the scans of these rows."""
    channels = [cohort.modalities.index(name) for name in modalities]
    scans = (rows[cohort.scans[rows] == scan] for scan in dict.fromkeys(cohort.scans[rows].tolist()))
    described = map_in_threads(lambda of_scan: describe_scan(cohort.pixels(of_scan)[:, channels]), scans)
    return np.stack(list(described))
