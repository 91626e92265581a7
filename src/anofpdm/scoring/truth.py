"""Lesion masks. Only scoring/ and study/ may import this file; a test checks the imports."""

from collections.abc import Sequence

import numpy as np

from anofpdm.cohorts.store import Cohort, open_array
from anofpdm.cohorts.writer import MASKS
from anofpdm.errors import CohortError


class Truth:
    """Masks of a cohort's slices, by the same row numbers."""

    def __init__(self, cohort: Cohort):
        path = cohort.path / MASKS
        if not path.is_file():
            raise CohortError(
                f"{cohort.path}: has no lesion masks, and this step compares with them; prepare it with masks"
            )
        self._size = cohort.slices.shape[-1]
        self._packed = open_array(path, (len(cohort), self._size, (self._size + 7) // 8), np.uint8)
        self.available = cohort.has_mask  # [N] bool; other slices may have unmarked lesions

    def masks(self, rows: np.ndarray | Sequence[int]) -> np.ndarray:
        """[B, size, size] bool; only for rows that are `available`."""
        if not self.available[rows].all():
            raise CohortError(
                "some of these slices belong to scans without a lesion mask; leave them out of the comparison"
            )
        return np.unpackbits(self._packed[rows], axis=-1, count=self._size).astype(bool)
