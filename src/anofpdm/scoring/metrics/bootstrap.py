"""Scores of a set of slices or scans with 95% intervals from a bootstrap over patients.

Slices of one patient are similar, so resampling slices would give intervals that are too narrow. The same seed
resamples the same patients: intervals of two methods on one set are paired. Samples in which the number is undefined
are left out; with fewer than two patients both ends are NaN.
"""

from dataclasses import dataclass

import numpy as np

from anofpdm.scoring.metrics.pixels import check_patients

REPEATS, SEED = 1000, 0

Interval = tuple[float, float]


@dataclass(frozen=True)
class Estimate:
    value: float  # exact; NaN where it is undefined
    interval: Interval


def mean_estimate(values: np.ndarray, patients: np.ndarray) -> Estimate:
    """Both [N]; NaN values are left out."""
    defined = ~np.isnan(values)
    return ratio_estimate(np.where(defined, values, 0), defined, patients)


def ratio_estimate(tops: np.ndarray, bottoms: np.ndarray, patients: np.ndarray) -> Estimate:
    """Of sum(tops) / sum(bottoms), [N] each, such as pooled precision, recall and lesion-wise F1."""
    check_patients(patients, len(tops))
    names, place = np.unique(patients, return_inverse=True)
    times = resample_patients(len(names))  # [R, P]
    top, bottom = (times @ np.bincount(place, values, len(names)) for values in (tops, bottoms))  # [R]
    total, resampled = bottoms.sum(), np.where(bottom > 0, top / np.where(bottom > 0, bottom, 1), np.nan)
    return Estimate(float(tops.sum() / total) if total else float("nan"), interval_of(resampled))


def resample_patients(n_patients: int) -> np.ndarray:
    """How often each patient occurs in each sample of P patients with replacement, [R, P]."""
    if n_patients < 2:
        return np.zeros((REPEATS, n_patients), dtype=int)
    return np.random.default_rng(SEED).multinomial(n_patients, np.full(n_patients, 1 / n_patients), size=REPEATS)


def interval_of(values: np.ndarray) -> Interval:
    """Of 95% of the values of all samples."""
    defined = values[~np.isnan(values)]
    if not len(defined):
        return float("nan"), float("nan")
    low, high = np.quantile(defined, (0.025, 0.975))
    return float(low), float(high)
