"""A scan before it is segmented: its brain, by a mask file or the user's skull-stripping command, and warnings.

Warnings are about scans that can be segmented but differ from those that the model was calibrated or trained on.
"""

import contextlib
import hashlib
import shlex
import subprocess
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anofpdm.errors import ConfigError, ScanError, ScanWarning
from anofpdm.scans import Scan, read_volume
from anofpdm.scans.grid import check_same_grid

WIDE_VIEW = 1.05  # times the field of view in training
FOREGROUND_TOLERANCE = 0.08  # fraction of the pixels, beyond the range seen in calibration


@dataclass(frozen=True)
class BrainSource:
    mask: str | Path | None = None
    command: str | None = None  # with {input} and {output}; neither mask nor command: the scan is used as it is

    def __post_init__(self) -> None:
        if self.mask is not None and self.command is not None:
            raise ConfigError("--brain-mask and --skull-strip exclude each other; give one of them")

    def description(self) -> str | None:
        """For the settings in summary.json."""
        if self.command is not None:
            return f"command {self.command}"
        return None if self.mask is None else f"sha256 {file_sha256(self.mask)}"

    def apply(self, scan: Scan, image: Path) -> Scan:
        """Set voxels outside the brain to 0. `image` is the file of the first modality."""
        if self.command is not None:
            with tempfile.TemporaryDirectory() as folder:
                return apply_mask(scan, image, strip_skull(self.command, image, Path(folder)))
        return scan if self.mask is None else apply_mask(scan, image, Path(self.mask))


def apply_mask(scan: Scan, image: Path, mask: Path) -> Scan:
    brain = read_volume(mask, allow_constant=True)
    check_same_grid(scan.grid, image, brain.grid, brain.path)
    inside = brain.voxels > 0
    for name, volume in zip(scan.modalities, scan.volumes, strict=True):
        if not (volume[inside] > 0).any():
            raise ScanError(f"{brain.path}: the {name} image is empty inside this brain mask; is it another scan's?")
    return Scan(scan.modalities, tuple(np.where(inside, volume, 0) for volume in scan.volumes), scan.grid)


def strip_skull(command: str, image: Path, folder: Path) -> Path:
    """Run the user's command; voxels of its output above 0 are brain."""
    output = folder / "brain.nii.gz"
    if "{input}" not in command or "{output}" not in command:
        raise ScanError(f"--skull-strip {command!r}: it must contain {{input}} and {{output}}")
    try:
        words = shlex.split(command)
    except ValueError as problem:
        raise ScanError(f"--skull-strip {command!r}: cannot be parsed ({problem}); close its quotes") from None
    words = [word.replace("{input}", str(image)).replace("{output}", str(output)) for word in words]
    try:
        done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
    except OSError as problem:
        raise ScanError(f"--skull-strip: {words[0]} could not be started ({problem.strerror})") from None
    if done.returncode or not output.is_file():
        last_line = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output on the terminal"]
        reason = f"ended with code {done.returncode}" if done.returncode else "wrote no output"
        raise ScanError(f"--skull-strip: {words[0]} {reason} for {image}: {last_line[0]}")
    return output


def file_sha256(path: str | Path) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


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


def warn_unusual_foreground(
    fraction: float, calibrated: tuple[float, float], views_mm: tuple[float, float], where: object
) -> None:
    """`views_mm`: fields of view of the slices, and of those in training."""
    (low, high), (view_mm, expected_mm) = calibrated, views_mm
    if fraction > high + FOREGROUND_TOLERANCE:
        hint = "is it skull-stripped? If the model's scans were, give --brain-mask or --skull-strip"
    elif fraction < low - FOREGROUND_TOLERANCE:
        hint = "is it cropped, or another kind of scan?"
        if view_mm > WIDE_VIEW * expected_mm:
            hint = f"its slices show {view_mm:.0f} mm, in training {expected_mm:.0f} mm; --raw always crops them"
    else:
        return
    warnings.warn(
        f"{where}: {fraction:.0%} of its slices is foreground, in calibration it was {low:.0%} to {high:.0%}; {hint}",
        ScanWarning,
        stacklevel=2,
    )


def warn_unlike_training(different: str, distance: float, limit: float, where: object) -> None:
    warnings.warn(
        f"{where}: unlike the scans in training (distance {distance:.1f}, limit {limit:.1f}). What differs most is "
        f"{different}. Do not rely on its mask; check that these are the scans and modalities the model is for",
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
