"""Warnings on a scan that can be segmented, but whose mask may be wrong: parts that are missing, other contrasts than
given, and what differs from the scans that the model was calibrated or trained on. Of warnings with one cause, one.
"""

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from anofpdm.cohorts.layouts import folder
from anofpdm.cohorts.store import foreground
from anofpdm.cohorts.subjects import MASK
from anofpdm.errors import ScanWarning
from anofpdm.raw.mixed_up import compare_slices, same_contrast, warn_mixed_up
from anofpdm.scans.findings import Finding
from anofpdm.scans.plausible import shows_air, warn_cut_top, warn_empty_planes
from anofpdm.scans.slices import foreground_of
from anofpdm.segment.engines import EngineSlices
from anofpdm.segment.request import SegmentRequest
from anofpdm.student.typical import TypicalScans, describe_scan

if TYPE_CHECKING:
    from anofpdm.segment.segment_scan import ReadScan

WIDE_VIEW = 1.05  # times the field of view in training
LARGEST_LESION = 1 / 3  # of the brain
USUAL_BRAIN_ML = 1500.0  # where the foreground is more than a brain


@contextlib.contextmanager
def record_warnings() -> Iterator[list[ScanWarning]]:
    """The scan warnings of the block, complete at its end, when all its warnings are issued again."""
    recorded: list[ScanWarning] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ScanWarning)
        yield recorded
    for warning in caught:
        if isinstance(warning.message, ScanWarning):
            recorded.append(warning.message)
        warnings.warn(warning.message, warning.category, stacklevel=4)


def check_scan(scan: "ReadScan", slices: EngineSlices, findings: Sequence[Finding], request: SegmentRequest) -> None:
    """Names of files, parts that are missing, foreground, contrasts, likeness to the training scans, distance of the
    slices, size of the lesions."""
    _check_names(scan.files)
    if scan.study is None:  # of a raw study, the series themselves were checked
        volumes, grid = scan.scan.volumes, scan.scan.grid
        warn_empty_planes(volumes, grid, scan.where)
        if shows_air(volumes):
            warn_cut_top(foreground_of(volumes), grid, scan.where)
    _check_kind(scan, slices, request)
    warn_unusual_spacing(slices.spacing_mm, request.engine.neighbours_mm, scan.where)
    share = sum(finding.volume_ml for finding in findings) / min(scan.brain_ml, USUAL_BRAIN_ML)
    if share > LARGEST_LESION:
        _warn(
            f"{scan.where}: the lesion mask is {share:.0%} of the brain, more than nearly any lesion. "
            "Do not rely on it; check the scan, its modalities and its voxel size"
        )


def _warn(text: str) -> None:
    warnings.warn(text, ScanWarning, stacklevel=3)


def _check_names(files: Mapping[str, Path]) -> None:
    """Files that are named as another modality than they are given as."""
    for given, path in files.items():
        _, named = folder.parse_name(path)
        known = given in folder.NAMES.values() and named not in (folder.UNNAMED, MASK)
        if known and not same_contrast(given, named):
            problem = f"given as {given}, but its name is that of a {named} image"
            _warn(f"{path}: {problem}; check that no files are mixed up")


def _check_kind(scan: "ReadScan", slices: EngineSlices, request: SegmentRequest) -> None:
    """Foreground, contrasts and likeness to the training scans."""
    planes, known, share = scan.planes, request.scans, float(foreground(slices.pixels).mean())
    low, high = known.usual_foreground
    if unusual := not low <= share <= high:
        view_mm, expected_mm = planes.pixel_mm * known.size, known.expects.field_of_view_mm
        hint = "is it cropped, or another kind of scan?"
        if share > high:
            hint = "is it skull-stripped? If the model's scans were, give --brain-mask or --skull-strip"
        elif view_mm > WIDE_VIEW * expected_mm:
            hint = f"its slices show {view_mm:.0f} mm, in training {expected_mm:.0f} mm; --raw always crops them"
        calibrated = " to ".join(f"{limit:.0%}" for limit in known.foreground)
        _warn(f"{scan.where}: {share:.0%} of its slices is foreground, in calibration it was {calibrated}; {hint}")
    mixed_up = False
    if scan.study is None and not known.expects.skull and share <= high:
        contrasts = compare_slices(slices.pixels, slices.modalities, (planes.pixel_mm, planes.spacing_mm))
        mixed_up = warn_mixed_up(contrasts, scan.files)
    if known.typical is not None and not unusual and not mixed_up:
        _check_likeness(known.typical, slices, scan.where)


def _check_likeness(typical: TypicalScans, slices: EngineSlices, where: Path) -> None:
    """By the modalities that the scan has."""
    given = tuple(name for name in typical.modalities if name in slices.modalities)
    if different := typical.unusual(describe_scan(slices.channels(given).pixels), given):
        _warn(
            f"{where}: unlike the scans in training {different}. Do not rely on its mask; check that these are the "
            "scans and modalities the model is for"
        )


def warn_unusual_spacing(spacing_mm: float, neighbours_mm: Sequence[float], where: object) -> None:
    """Warn if no slice lies near any of the offsets at which the student network was trained with neighbours."""
    distances = [abs(mm - round(mm / spacing_mm) * spacing_mm) / abs(mm) for mm in neighbours_mm]
    if distances and min(distances) > 0.5:
        _warn(
            f"{where}: its slices are {spacing_mm:g} mm apart, but the student was trained with neighbours at "
            f"{', '.join(f'{mm:g}' for mm in neighbours_mm)} mm; it processes each slice alone. "
            "Masks may be worse; compare with --engine diffusion"
        )
