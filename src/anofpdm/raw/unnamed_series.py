"""Series whose names do not give their contrast, assigned to modalities by their images."""

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from anofpdm.errors import ScanError
from anofpdm.raw.brain import BrainFinder
from anofpdm.raw.contrast import SURE, assign_series, compare_contrasts, describe_series, measure_contrast
from anofpdm.raw.register import Head
from anofpdm.raw.series_header import check_header
from anofpdm.scans.modalities import InputModalities
from anofpdm.scans.nifti import Volume

MOST_SERIES = 12  # of one study


def assign_volumes(
    volumes: Mapping[str, Volume], modalities: InputModalities, known: Sequence[str], remedy: str
) -> tuple[dict[str, str], dict[str, bytes]]:
    """Modality to series, and extracted brains (BrainFinder). ScanError where the images do not give the needed
    modalities; `remedy` is then for the user. As many optional ones are assigned as the images give.

    `known`: contrasts that other series of the study have by their names.
    """
    find_brain, likelihoods = BrainFinder(), {}
    for name, volume in volumes.items():
        check_header(volume.grid, volume.path)
        head = Head(volume.voxels.astype(np.float32), find_brain(volume), volume.grid)
        likelihoods[name] = compare_contrasts(measure_contrast(head))
    for count in range(len(modalities.optional), -1, -1):
        for optional in itertools.combinations(modalities.optional, count):
            assigned, probability = assign_series(likelihoods, (*modalities.needed, *optional), known)
            if probability >= SURE:
                return assigned, find_brain.extracted
    what = ", ".join(modalities.needed)
    raise ScanError(f"neither names nor images give {what} (by the images, {describe_series(likelihoods)}); {remedy}")
