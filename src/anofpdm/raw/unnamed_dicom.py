"""Series of a DICOM study whose names do not give their contrast, chosen by their images."""

from collections.abc import Callable, Mapping, Sequence

from anofpdm.errors import ConfigError, ScanError
from anofpdm.raw.series_header import check_header
from anofpdm.scans.dicom.match import UNNAMED, find_candidates, guess
from anofpdm.scans.dicom.series import Series
from anofpdm.scans.found_brains import Assignment
from anofpdm.scans.modalities import InputModalities
from anofpdm.scans.nifti import Volume


def choose_by_image(
    series: Sequence[Series], modalities: InputModalities, override: Mapping[str, str], read: Callable[[Series], Volume]
) -> Assignment:
    """UIDs for modalities that no series has by its name; ScanError where the images do not tell either.

    Images are compared only where a needed modality is missing.
    """
    given = {name: word for name, word in override.items() if name in modalities.names}
    candidates = find_candidates(series, modalities.names, given)
    missing = modalities.without([name for name, found in candidates.items() if found])
    taken = [one for found in candidates.values() for one in found]
    unnamed = [one for one in series if _is_unnamed(one) and not any(one is other for other in taken)]
    from anofpdm.raw.unnamed_series import MOST_SERIES, assign_volumes

    if not 0 < len(missing.needed) <= len(unnamed) <= MOST_SERIES:
        return Assignment()
    known = {*given, *(name for one in series if (name := guess(one.label).modality) is not None)}
    remedy = f"choose with {' '.join(f'--series {name}=NUMBER' for name in missing.needed)} (--preview lists all)"
    try:
        volumes = {one.label.uid: read(one) for one in unnamed}
        return assign_volumes(volumes, missing, tuple(known), remedy)
    except ConfigError:  # deepbet is not installed: the names alone decide
        return Assignment()
    except ScanError as problem:
        text = str(problem)
        for one in unnamed:
            text = text.replace(one.label.uid, str(one.label))
        raise ScanError(text) from None


def _is_unnamed(one: Series) -> bool:
    if one.problem is not None or guess(one.label).reason != UNNAMED:
        return False
    try:
        check_header(one.grid, one.label)
    except ScanError:  # a localiser or a slab
        return False
    return True
