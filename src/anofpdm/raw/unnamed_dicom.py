"""Series of a DICOM study whose names do not give their contrast, chosen by their images."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from anofpdm.errors import ScanError
from anofpdm.raw.brain import BrainFinder
from anofpdm.raw.unnamed_series import assign_by_image
from anofpdm.scans.dicom.match import UNNAMED, find_candidates, guess
from anofpdm.scans.dicom.read import read_series
from anofpdm.scans.dicom.series import Series
from anofpdm.scans.modalities import InputModalities
from anofpdm.scans.plausible import check_header


def choose_by_image(
    find_brain: BrainFinder,
    path: Path,
    series: Sequence[Series],
    modalities: InputModalities,
    override: Mapping[str, str],
) -> dict[str, str]:
    """UIDs of DICOM series for modalities that no series has by its name."""
    given = {name: word for name, word in override.items() if name in modalities.names}
    candidates = find_candidates(series, modalities.names, given)
    missing = modalities.without([name for name, named in candidates.items() if named])
    taken = [scan for named in candidates.values() for scan in named]
    unnamed = {scan.label.uid: scan for scan in series if _is_unnamed(scan) and scan not in taken}
    known = {*given, *(name for scan in series if (name := guess(scan.label).modality) is not None)}
    remedy = f"choose with {' '.join(f'--series {name}=NUMBER' for name in missing.needed)} (--preview lists all)"
    readers = {uid: partial(read_series, path, scan) for uid, scan in unnamed.items()}
    try:
        return assign_by_image(find_brain, readers, missing, tuple(known), remedy)
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
