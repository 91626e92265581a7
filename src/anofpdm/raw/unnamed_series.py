"""Series whose names do not give their contrast, assigned to modalities by their images."""

import itertools
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from anofpdm.errors import ConfigError, ScanError
from anofpdm.raw.brain import BrainFinder
from anofpdm.raw.contrast import SURE, Likelihoods, assign_series, compare_contrasts, describe_series, measure_contrast
from anofpdm.raw.register import Head
from anofpdm.scans.modalities import InputModalities
from anofpdm.scans.nifti import Volume
from anofpdm.scans.plausible import check_header

MOST_SERIES = 12  # of one study


def assign_by_image(
    find_brain: BrainFinder,
    series: Mapping[str, Callable[[], Volume]],
    modalities: InputModalities,
    known: Sequence[str],
    remedy: str,
) -> dict[str, str]:
    """Modality to series, of functions that read series by name; as many optional modalities as the images give.

    Empty, and nothing is read, where no modality is needed, too few or too many series are left, or deepbet is not
    installed: the names alone decide. ScanError where the images do not give the needed modalities; `remedy` is then
    for the user. `known`: contrasts that other series of the study have by their names.
    """
    if not 0 < len(modalities.needed) <= len(series) <= MOST_SERIES:
        return {}
    try:
        likelihoods = {name: _compare_image(read(), find_brain) for name, read in series.items()}
    except ConfigError:
        return {}
    if assigned := assign_modalities(likelihoods, modalities, known):
        return assigned
    what = ", ".join(modalities.needed)
    raise ScanError(f"neither names nor images give {what} (by the images, {describe_series(likelihoods)}); {remedy}")


def assign_modalities(
    series: Mapping[str, Likelihoods], modalities: InputModalities, known: Sequence[str] = ()
) -> dict[str, str]:
    """All that are needed, and as many optional ones as are clear; empty where a needed one is not."""
    for count in range(len(modalities.optional), -1, -1):
        for optional in itertools.combinations(modalities.optional, count):
            assigned, probability = assign_series(series, (*modalities.needed, *optional), known)
            if probability >= SURE:
                return assigned
    return {}


def _compare_image(volume: Volume, find_brain: BrainFinder) -> dict[str, float]:
    check_header(volume.grid, volume.path)
    head = Head(volume.voxels.astype(np.float32), find_brain(volume), volume.grid)
    return compare_contrasts(measure_contrast(head))
