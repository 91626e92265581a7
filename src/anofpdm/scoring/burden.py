"""Which slices with a lesion are detected, by the size of the lesion."""

from dataclasses import dataclass

import numpy as np

from anofpdm.cohorts.store import Cohort
from anofpdm.errors import CohortError
from anofpdm.scoring.truth import Truth

GROUPS = 3


@dataclass(frozen=True)
class BurdenGroup:
    """Slices with a lesion of similar area."""

    smallest_mm2: float
    largest_mm2: float
    slices: int
    detected: int


def detected_by_burden(cohort: Cohort, rows: np.ndarray, detected: np.ndarray) -> list[BurdenGroup]:
    """Thirds of the slices with a lesion, by area. Empty where no masks are known. `detected`: one entry per row."""
    known = cohort.has_mask[rows]
    rows, detected = rows[known], detected[known]
    try:
        truth = Truth(cohort)
    except CohortError:
        return []
    area = truth.masks(rows).sum(axis=(1, 2)) * cohort.pixel_mm[rows] ** 2
    order = np.argsort(area, kind="stable")
    order = order[area[order] > 0]
    return [
        BurdenGroup(float(area[part[0]]), float(area[part[-1]]), len(part), int(detected[part].sum()))
        for part in np.array_split(order, GROUPS)
        if len(part)
    ]
