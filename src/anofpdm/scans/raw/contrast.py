"""Which contrast a series has, by its image: FLAIR, T1, T1 with contrast agent, or T2.

Brightness in the brain, relative to its median, is measured below the surface, in the middle where the ventricles lie,
and over all. Each contrast is a normal distribution of these nine numbers. Series of one study have different
contrasts, so that all of them are decided together, by the probability of each assignment; one that is not clear is
refused. The distributions are fitted, and the decisions counted, by benchmarks/contrast.py.
"""

import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from scipy import ndimage

from anofpdm.errors import ScanError
from anofpdm.scans.raw.geometry import apply, average_blocks
from anofpdm.scans.raw.register import Head

CONTRASTS = ("flair", "t1", "t1ce", "t2")
DISTRIBUTIONS = Path(__file__).with_name("contrast.json")
BLOCK_MM = 2.0
EDGE_MM = 3.0  # below the surface of the brain mask, which differs most between methods
SHELLS_MM = ((3.0, 7.0), (7.0, 12.0))  # below the surface
QUANTILES = (0.25, 0.75, 0.95, 0.99)
MIDDLE_QUANTILES = (0.05, 0.5, 0.95)  # fluid in the ventricles is the darkest or the brightest there
DARKEST = 0.02  # of the median; smaller values would dominate the logarithms
LEAST_VOXELS = 500
UNUSUAL = 30.0  # squared Mahalanobis distance of a series that is rather none of these contrasts
CONFIDENCE = 0.5  # factor of log likelihoods: scanners differ by more than the scans of the fit
SURE = 0.95  # least probability of an assignment

Likelihoods = Mapping[str, float]  # logarithm, by contrast


def measure_contrast(head: Head) -> np.ndarray:
    """[9], logarithms of brightness relative to the median; independent of the scale of the values."""
    voxels, grid = average_blocks(head.voxels, head.grid, BLOCK_MM)
    brain = average_blocks(head.brain, head.grid, BLOCK_MM)[0] >= 0.5
    depth = ndimage.distance_transform_edt(np.pad(brain, 1), grid.spacing_mm)[1:-1, 1:-1, 1:-1]
    inside = (depth > EDGE_MM) & (voxels > 0)
    if inside.sum() < LEAST_VOXELS:
        raise ScanError("too few voxels of the brain are above 0")
    values = voxels[inside] / np.median(voxels[inside])
    depths = depth[inside]
    shells = [values[(depths > low) & (depths <= high)] for low, high in SHELLS_MM]
    middle = values[_in_the_middle(apply(grid.affine, np.argwhere(inside)))]
    measured = [
        *np.quantile(middle if len(middle) else values, MIDDLE_QUANTILES),
        *np.quantile(values, QUANTILES),
        *(np.median(shell) if len(shell) else 1.0 for shell in shells),
    ]
    return np.log(np.maximum(measured, DARKEST))


def _in_the_middle(positions: np.ndarray) -> np.ndarray:
    """bool [n] of positions [n, 3] in RAS+: around the lateral ventricles, by the box of the brain."""
    low, high = np.percentile(positions, [1, 99], axis=0)
    width, length, _ = high - low
    x, y = (positions[:, 0] - low[0]) / width, (positions[:, 1] - low[1]) / length
    below_top = (high[2] - positions[:, 2]) / width  # the lower end depends on the field of view
    middle: np.ndarray = (abs(x - 0.5) < 0.24) & (y > 0.31) & (y < 0.79) & (below_top > 0.3) & (below_top < 0.64)
    return middle


@cache
def _distributions() -> tuple[np.ndarray, np.ndarray]:
    """Mean of each contrast [4, 9], and the inverse of the covariance [9, 9] that they share."""
    stored = json.loads(DISTRIBUTIONS.read_text())
    means = np.array([stored["means"][name] for name in CONTRASTS])
    return means, np.linalg.inv(np.array(stored["covariance"]))


def compare_contrasts(measured: np.ndarray) -> dict[str, float]:
    """Log likelihood of each contrast, up to a constant."""
    means, precision = _distributions()
    return {
        name: float(-0.5 * CONFIDENCE * (measured - mean) @ precision @ (measured - mean))
        for name, mean in zip(CONTRASTS, means, strict=True)
    }


@dataclass(frozen=True)
class Assignment:
    series: Mapping[str, str]  # modality to series
    probability: float

    @property
    def sure(self) -> bool:
        return self.probability >= SURE


def assign_series(
    series: Mapping[str, Likelihoods], modalities: Sequence[str], known: Sequence[str] = ()
) -> Assignment | None:
    """The most probable assignment of modalities to series; None where there is none.

    Every series has another contrast, or none of them; `known` are contrasts that other series of the study have.
    """
    free = [name for name in CONTRASTS if name not in known]
    if len(series) < len(modalities) or not set(modalities) <= set(free):
        return None
    scores: dict[tuple[str | None, ...], float] = {}
    for given in _possible(free, series):
        choice = tuple(given.get(name) for name in modalities)
        scores[choice] = float(np.logaddexp(scores.get(choice, -np.inf), _log_likelihood(series, given)))
    total = np.logaddexp.reduce(list(scores.values()))
    best = max((choice for choice in scores if None not in choice), key=scores.__getitem__)
    chosen = {name: one for name, one in zip(modalities, best, strict=True) if one is not None}
    return Assignment(chosen, float(np.exp(scores[best] - total)))


def _possible(contrasts: Sequence[str], series: Collection[str]) -> Iterator[dict[str, str]]:
    """Contrast to series, each at most once."""
    for chosen in itertools.product((None, *series), repeat=len(contrasts)):
        given = {name: one for name, one in zip(contrasts, chosen, strict=True) if one is not None}
        if len(set(given.values())) == len(given):
            yield given


def _log_likelihood(series: Mapping[str, Likelihoods], given: Mapping[str, str]) -> float:
    """Of contrasts to series; the series that are not among them have another contrast."""
    others = len(series) - len(given)
    return sum(series[one][name] for name, one in given.items()) - 0.5 * CONFIDENCE * UNUSUAL * others


def describe_series(series: Mapping[str, Likelihoods]) -> str:
    """For messages: what each series looks most like, taken alone."""
    described = []
    for one, likelihoods in series.items():
        ranked = sorted(likelihoods, key=lambda name: -likelihoods[name])
        odds = np.exp(np.array([likelihoods[name] for name in ranked]) - likelihoods[ranked[0]])
        likely = [name for name, share in zip(ranked, odds / odds.sum(), strict=True) if share > 1 - SURE]
        unusual = likelihoods[ranked[0]] < -0.5 * CONFIDENCE * UNUSUAL
        described.append(f"{one}: {'none of them' if unusual else ' or '.join(likely)}")
    return ", ".join(described)
