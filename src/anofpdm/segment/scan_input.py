"""A scan before it is segmented: its brain, by a mask file or the user's skull-stripping command, and its warnings."""

import contextlib
import hashlib
import shlex
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from anofpdm.errors import ConfigError, ContrastWarning, ScanError, ScanWarning
from anofpdm.scans import Scan, read_volume
from anofpdm.scans.grid import check_same_grid


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


@dataclass
class RecordedWarnings:
    """Scan warnings that were given so far."""

    texts: list[str] = field(default_factory=list)
    contradicted: bool = False  # an image is another contrast than it was given as

    @contextlib.contextmanager
    def record(self) -> Iterator[None]:
        """Collect scan warnings, each text once, then issue all warnings again."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ScanWarning)
            yield
        of_scan = [one for one in caught if issubclass(one.category, ScanWarning)]
        self.texts = list(dict.fromkeys([*self.texts, *(str(one.message) for one in of_scan)]))
        self.contradicted |= any(issubclass(one.category, ContrastWarning) for one in of_scan)
        for one in caught:
            warnings.warn(one.message, one.category, stacklevel=4)
