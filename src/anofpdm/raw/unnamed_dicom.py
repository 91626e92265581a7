"""Series of a DICOM study whose names do not give their contrast, chosen by their images."""

from collections.abc import Callable, Mapping, Sequence

from anofpdm.errors import ConfigError, ScanError
from anofpdm.raw.series_header import check_header
from anofpdm.raw.unnamed_series import MOST_SERIES, assign_volumes
from anofpdm.scans.dicom.match import UNNAMED, find_candidates, guess
from anofpdm.scans.dicom.series import Series
from anofpdm.scans.modalities import InputModalities
from anofpdm.scans.nifti import Volume


def choose_by_image(
    series: Sequence[Series], modalities: InputModalities, override: Mapping[str, str], read: Callable[[Series], Volume]
) -> tuple[dict[str, str], dict[str, bytes]]:
    """UIDs for modalities that no series has by its name, and extracted brains.

    Images are compared only where a needed modality is missing; ScanError where they do not tell either.
    """
    given = {name: word for name, word in override.items() if name in modalities.names}
    candidates = find_candidates(series, modalities.names, given)
    missing = modalities.without([name for name, named in candidates.items() if named])
    taken = [scan for named in candidates.values() for scan in named]
    unnamed = {scan.label.uid: scan for scan in series if _is_unnamed(scan) and scan not in taken}
    if not 0 < len(missing.needed) <= len(unnamed) <= MOST_SERIES:
        return {}, {}
    known = {*given, *(name for scan in series if (name := guess(scan.label).modality) is not None)}
    remedy = f"choose with {' '.join(f'--series {name}=NUMBER' for name in missing.needed)} (--preview lists all)"
    try:
        return assign_volumes({uid: read(scan) for uid, scan in unnamed.items()}, missing, tuple(known), remedy)
    except ConfigError:  # deepbet is not installed: the names alone decide
        return {}, {}
    except ScanError as problem:
        text = str(problem)
        for uid, scan in unnamed.items():
            text = text.replace(uid, str(scan.label))
        raise ScanError(text) from None


def _is_unnamed(series: Series) -> bool:
    if series.problem is not None or guess(series.label).reason != UNNAMED:
        return False
    try:
        check_header(series.grid, series.label)
    except ScanError:  # a localiser or a slab
        return False
    return True
