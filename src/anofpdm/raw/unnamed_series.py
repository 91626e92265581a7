"""Series whose names do not give their contrast, assigned to modalities by their images."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from anofpdm.errors import ScanError
from anofpdm.raw.contrast import assign_series, compare_contrasts, describe_series, measure_contrast
from anofpdm.raw.prepare_study import BrainFinder
from anofpdm.raw.register import Head
from anofpdm.raw.series_header import check_header
from anofpdm.scans.found_brains import Assignment, FoundBrains
from anofpdm.scans.modalities import InputModalities, as_inputs
from anofpdm.scans.nifti import Volume

MOST_SERIES = 12  # of one study


def assign_volumes(
    volumes: Mapping[str, Volume], modalities: InputModalities | Sequence[str], known: Sequence[str], remedy: str
) -> Assignment:
    """ScanError where the images do not give those needed; `remedy` is then for the user. As many optional ones are
    assigned as the images give.

    `known`: contrasts that other series of the study have by their names.
    """
    wanted = as_inputs(modalities)
    find_brain = BrainFinder()
    likelihoods, brains = {}, {}
    for name, volume in volumes.items():
        check_header(volume.grid, volume.path)
        brains[name] = find_brain(volume)
        head = Head(volume.voxels.astype(np.float32), brains[name], volume.grid)
        likelihoods[name] = compare_contrasts(measure_contrast(head))
    for names in _most_first(wanted):
        found = assign_series(likelihoods, names, known)
        if found is not None and found.sure:
            chosen = found.series.values()
            return Assignment(dict(found.series), FoundBrains.of((volumes[name], brains[name]) for name in chosen))
    what = ", ".join(wanted.needed)
    raise ScanError(f"neither names nor images give {what} (by the images, {describe_series(likelihoods)}); {remedy}")


def _most_first(wanted: InputModalities) -> Iterator[tuple[str, ...]]:
    """All that are needed, with all optional ones, then with fewer."""
    for count in range(len(wanted.optional), -1, -1):
        for optional in itertools.combinations(wanted.optional, count):
            yield (*wanted.needed, *optional)
