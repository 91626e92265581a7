"""Warnings on a scan that can be segmented, but whose mask may be wrong: parts that are missing, other contrasts than
given, and what differs from the scans that the model was calibrated or trained on. Of warnings with one cause, one.
"""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from anofpdm.cohorts.layouts import folder
from anofpdm.cohorts.store import foreground
from anofpdm.errors import ScanWarning
from anofpdm.raw.mixed_up import compare_slices, same_contrast, warn_mixed_up
from anofpdm.scans.findings import Finding
from anofpdm.scans.plausible import shows_air, warn_cut_top, warn_empty_planes
from anofpdm.segment.engines import EngineSlices
from anofpdm.segment.read_scan import ReadScan
from anofpdm.segment.request import KnownScans, SegmentRequest
from anofpdm.student.typical import TypicalScans, describe_scan

WIDE_VIEW = 1.05  # times the field of view in training
FOREGROUND_TOLERANCE = 0.08  # fraction of the pixels, beyond the range seen in calibration
LARGEST_LESION = 1 / 3  # of the brain
USUAL_BRAIN_ML = 1500.0  # where the foreground is more than a brain


def check_names(files: Mapping[str, str | Path]) -> None:
    """Warn about files that are named as another modality than they are given as."""
    for given, path in files.items():
        images = folder.find_subjects([Path(path)])[0].images if Path(path).is_file() else {}
        for named in images:
            if named != folder.UNNAMED and given in folder.NAMES.values() and not same_contrast(given, named):
                text = f"{path}: given as {given}, but its name is that of a {named} image"
                warnings.warn(f"{text}; check that no files are mixed up", ScanWarning, stacklevel=2)


def check_slices(read: ReadScan, slices: EngineSlices, request: SegmentRequest) -> None:
    """Parts that are missing, foreground, contrasts, likeness to the training scans, distance of the slices."""
    if read.study is None:  # of a raw study, the series themselves were checked
        warn_empty_planes(read.scan.volumes, read.scan.grid, read.where)
        if shows_air(read.scan.volumes):
            brain = np.logical_or.reduce([volume > 0 for volume in read.scan.volumes])
            warn_cut_top(brain, read.scan.grid, read.where)
    check_kind(read, slices, request.scans)
    warn_unusual_spacing(slices.spacing_mm, request.engine.neighbours_mm, read.where)


def check_kind(read: ReadScan, slices: EngineSlices, known: KnownScans) -> None:
    """Foreground, contrasts and likeness to the training scans."""
    planes = read.planes
    views_mm = planes.pixel_mm * known.size, known.expects.field_of_view_mm
    share = float(foreground(slices.pixels).mean())
    explained = warn_unusual_foreground(share, known.foreground, views_mm, read.where)
    stripped = not known.expects.skull and share <= known.foreground[1] + FOREGROUND_TOLERANCE
    if read.study is None and stripped:
        contrasts = compare_slices(slices.pixels, slices.modalities, (planes.pixel_mm, planes.spacing_mm))
        explained |= warn_mixed_up(contrasts, read.files)
    if not explained and known.typical is not None:
        _check_likeness(known.typical, slices, read.where)


def _check_likeness(typical: TypicalScans, slices: EngineSlices, where: object) -> None:
    """By the modalities that the scan has."""
    given = tuple(name for name in typical.modalities if name in slices.modalities)
    numbers = describe_scan(slices.channels(given).pixels)
    if different := typical.unusual(numbers, given):
        distance, limit = typical.distance(numbers, given), typical.limit_for(given)
        warnings.warn(
            f"{where}: unlike the scans in training (distance {distance:.1f}, limit {limit:.1f}). What differs most is "
            f"{different}. Do not rely on its mask; check that these are the scans and modalities the model is for",
            ScanWarning,
            stacklevel=2,
        )


def warn_unusual_foreground(
    fraction: float, calibrated: tuple[float, float], views_mm: tuple[float, float], where: object
) -> bool:
    """`views_mm`: fields of view of the slices, and of those in training. Returns whether it warned."""
    (low, high), (view_mm, expected_mm) = calibrated, views_mm
    if fraction > high + FOREGROUND_TOLERANCE:
        hint = "is it skull-stripped? If the model's scans were, give --brain-mask or --skull-strip"
    elif fraction < low - FOREGROUND_TOLERANCE:
        hint = "is it cropped, or another kind of scan?"
        if view_mm > WIDE_VIEW * expected_mm:
            hint = f"its slices show {view_mm:.0f} mm, in training {expected_mm:.0f} mm; --raw always crops them"
    else:
        return False
    warnings.warn(
        f"{where}: {fraction:.0%} of its slices is foreground, in calibration it was {low:.0%} to {high:.0%}; {hint}",
        ScanWarning,
        stacklevel=2,
    )
    return True


def warn_unusual_spacing(spacing_mm: float, neighbours_mm: Sequence[float], where: object) -> None:
    """Warn where no slice lies near any of the offsets at which the student network was trained with neighbours."""
    distances = [abs(mm - round(mm / spacing_mm) * spacing_mm) / abs(mm) for mm in neighbours_mm]
    if distances and min(distances) > 0.5:
        warnings.warn(
            f"{where}: its slices are {spacing_mm:g} mm apart, but the student was trained with neighbours at "
            f"{', '.join(f'{mm:g}' for mm in neighbours_mm)} mm; it processes each slice alone. "
            "Masks may be worse; compare with --engine diffusion",
            ScanWarning,
            stacklevel=2,
        )


def warn_large_lesion(read: ReadScan, findings: Sequence[Finding]) -> None:
    share = sum(finding.volume_ml for finding in findings) / min(read.brain_ml, USUAL_BRAIN_ML)
    if share > LARGEST_LESION:
        warnings.warn(
            f"{read.where}: the lesion mask is {share:.0%} of the brain, more than nearly any lesion. "
            "Do not rely on it; check the scan, its modalities and its voxel size",
            ScanWarning,
            stacklevel=2,
        )
