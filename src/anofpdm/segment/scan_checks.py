"""Warnings on a scan that can be segmented, but whose mask may be wrong: parts that are missing, other contrasts than
given, and what differs from the scans that the model was calibrated or trained on. Of warnings with one cause, one.
"""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from anofpdm.calibration.fit_calibration import foreground_share
from anofpdm.cohorts.layouts import folder
from anofpdm.errors import ScanError, ScanWarning
from anofpdm.method.decision import Decisions
from anofpdm.raw.mixed_up import compare_slices, same_contrast, warn_mixed_up
from anofpdm.raw.study import Study
from anofpdm.scans import AxialPlanes, Scan
from anofpdm.scans.findings import Finding
from anofpdm.scans.plausible import shows_air, warn_cut_top, warn_empty_planes
from anofpdm.scans.slices import ScanSlices
from anofpdm.student.typical import describe_scan

if TYPE_CHECKING:
    from anofpdm.segment.model import Model

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


def check_shape(scan: Scan, where: object) -> None:
    thin = [axis for axis in range(3) if scan.grid.shape[axis] == 1]
    if thin and thin != [scan.grid.axial_axis]:
        raise ScanError(f"{where}: a single slice that is not axial; slices are segmented axially, give a 3D scan")


def check_parts(scan: Scan, study: Study | None, where: object) -> None:
    """Empty slices, and a brain cut off at the top; of a raw study, the series themselves were checked."""
    if study is not None:
        return
    warn_empty_planes(scan.volumes, scan.grid, where)
    if shows_air(scan.volumes):
        warn_cut_top(np.logical_or.reduce([volume > 0 for volume in scan.volumes]), scan.grid, where)


def check_kind(
    model: "Model", slices: ScanSlices, scan: Scan, study: Study | None, files: Mapping[str, str | Path]
) -> None:
    """Foreground, contrasts and likeness to the training scans."""
    where = files[scan.modalities[0]]
    planes = AxialPlanes(scan.grid, model.size)
    views_mm = planes.pixel_mm * model.size, model.expects.field_of_view_mm
    share = foreground_share(slices.pixels)
    explained = warn_unusual_foreground(share, model.foreground, views_mm, where)
    stripped = not model.expects.skull and share <= model.foreground[1] + FOREGROUND_TOLERANCE
    if study is None and stripped:
        contrasts = compare_slices(slices.pixels, scan.modalities, (planes.pixel_mm, planes.spacing_mm))
        explained |= warn_mixed_up(contrasts, files)
    if not explained:
        _check_likeness(model, slices.pixels, scan.modalities, where)


def _check_likeness(model: "Model", pixels: np.ndarray, modalities: tuple[str, ...], where: object) -> None:
    """By the modalities that the scan has."""
    typical = model.student.typical if model.student else None
    if typical is None:
        return
    given = tuple(name for name in typical.modalities if name in modalities)
    numbers = describe_scan(pixels[:, [modalities.index(name) for name in given]])
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


def without_estimate(decisions: Decisions) -> Decisions:
    """Where the images contradict their names, an estimate from the probabilities would be too high."""
    return replace(decisions, estimated_dice=np.full_like(decisions.estimated_dice, np.nan))


def warn_large_lesion(
    findings: Sequence[Finding], scan: Scan, study: Study | None, files: Mapping[str, str | Path]
) -> None:
    voxel_ml = abs(np.linalg.det(scan.grid.affine[:3, :3])) / 1000
    brain = study.brain if study else np.logical_or.reduce([volume > 0 for volume in scan.volumes])
    share = sum(one.volume_ml for one in findings) / min(float(brain.sum()) * voxel_ml, USUAL_BRAIN_ML)
    if share > LARGEST_LESION:
        warnings.warn(
            f"{files[scan.modalities[0]]}: the lesion mask is {share:.0%} of the brain, more than nearly any lesion. "
            "Do not rely on it; check the scan, its modalities and its voxel size",
            ScanWarning,
            stacklevel=2,
        )
