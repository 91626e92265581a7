"""Warnings about a scan that can be segmented but differs from those that the model was calibrated or trained on."""

import contextlib
import warnings
from collections.abc import Iterator, Sequence

from anofpdm.errors import ScanWarning

FOREGROUND_TOLERANCE = 0.08  # fraction of the pixels, beyond the range seen in calibration


@contextlib.contextmanager
def record_warnings() -> Iterator[list[str]]:
    """Collect the texts of scan warnings, then issue all warnings again."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ScanWarning)
        yield texts
    texts += [str(one.message) for one in caught if issubclass(one.category, ScanWarning)]
    for one in caught:
        warnings.warn(one.message, one.category, stacklevel=4)


def warn_unusual_foreground(fraction: float, calibrated: tuple[float, float], where: object) -> None:
    low, high = calibrated
    if fraction > high + FOREGROUND_TOLERANCE:
        hint = "is it skull-stripped? If the model's scans were, give --brain-mask or --skull-strip"
    elif fraction < low - FOREGROUND_TOLERANCE:
        hint = "is it cropped, or another kind of scan?"
    else:
        return
    warnings.warn(
        f"{where}: {fraction:.0%} of its slices is foreground, in calibration it was {low:.0%} to {high:.0%}; {hint}",
        ScanWarning,
        stacklevel=2,
    )


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
