"""Labels of slices from labels of whole scans: which slices of an unhealthy scan have a lesion?

Suspected slices are a mixture: some look like slices labelled healthy, the others have a lesion. The share of suspected
slices above a threshold minus that of healthy ones is Youden's index of the threshold, times the share of slices with a
lesion. So the threshold with the largest difference is the best one, although no slice with a lesion need be known.
Slices that are known to have one count among the suspected.
"""

import numpy as np

from anofpdm.labels import HEALTHY, UNHEALTHY


def estimate_labels(scores: np.ndarray, labels: np.ndarray, suspected: np.ndarray, scans: np.ndarray) -> np.ndarray:
    """Labels [n], those of suspected slices from scores [n] that are higher for slices with a lesion. A scan none of
    whose slices would be unhealthy keeps its highest one."""
    cut = best_threshold(scores[suspected | (labels == UNHEALTHY)], scores[labels == HEALTHY])
    estimated = np.where(suspected, np.where(scores >= cut, UNHEALTHY, HEALTHY), labels)
    for scan in np.unique(scans[suspected]):
        if not (estimated[scans == scan] == UNHEALTHY).any():
            rows = np.flatnonzero(suspected & (scans == scan))
            estimated[rows[np.argmax(scores[rows])]] = UNHEALTHY
    return estimated


def best_threshold(others: np.ndarray, healthy: np.ndarray) -> float:
    """The score with the largest share of the other slices at or above it, minus that of healthy ones."""
    cuts = np.unique(np.concatenate([others, healthy]))
    above = [1 - np.searchsorted(np.sort(scores), cuts) / len(scores) for scores in (others, healthy)]
    return float(cuts[np.argmax(above[0] - above[1])])
