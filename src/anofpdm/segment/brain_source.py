"""The brain of a scan as the user gives it: a mask file, or a skull-stripping command."""

import shlex
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anofpdm.errors import ConfigError, ScanError
from anofpdm.scans import Scan, read_volume
from anofpdm.scans.grid import check_same_grid
from anofpdm.scans.nifti import Volume
from anofpdm.util.files import file_sha256


@dataclass(frozen=True)
class BrainSource:
    mask: Path | None = None
    command: str | None = None  # with {input} and {output}; neither mask nor command: the scan is used as it is

    def __post_init__(self) -> None:
        if self.mask is not None and self.command is not None:
            raise ConfigError("--brain-mask and --skull-strip exclude each other; give one of them")

    @property
    def given(self) -> bool:
        return self.mask is not None or self.command is not None

    def description(self) -> str | None:
        """For the settings in summary.json."""
        if self.command is not None:
            return f"command {self.command}"
        return None if self.mask is None else f"sha256 {file_sha256(self.mask)}"

    def apply(self, scan: Scan, image: Path) -> Scan:
        """Set voxels outside the brain to 0. `image` is the file of the first modality."""
        if not self.given:
            return scan
        brain = read_volume(self.mask, allow_constant=True) if self.mask is not None else self.run(image)
        check_same_grid(scan.grid, image, brain.grid, brain.path)
        inside = brain.voxels > 0
        for name, volume in zip(scan.modalities, scan.volumes, strict=True):
            if not (volume[inside] > 0).any():
                raise ScanError(
                    f"{brain.path}: the {name} image is empty inside this brain mask; is it another scan's?"
                )
        return Scan(scan.modalities, tuple(np.where(inside, volume, 0) for volume in scan.volumes), scan.grid)

    def run(self, image: Path) -> Volume:
        """Output of the user's command; voxels above 0 are brain."""
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "brain.nii.gz"
            words = [word.replace("{input}", str(image)).replace("{output}", str(output)) for word in self._words()]
            try:
                done = subprocess.run(words, capture_output=True, text=True, errors="replace", check=False)
            except OSError as problem:
                raise ScanError(f"--skull-strip: {words[0]} could not be started ({problem.strerror})") from None
            if done.returncode or not output.is_file():
                last_line = (done.stderr or done.stdout).strip().splitlines()[-1:] or ["no output on the terminal"]
                reason = f"ended with code {done.returncode}" if done.returncode else "wrote no output"
                raise ScanError(f"--skull-strip: {words[0]} {reason} for {image}: {last_line[0]}")
            return read_volume(output, allow_constant=True)

    def _words(self) -> list[str]:
        command = self.command or ""
        if "{input}" not in command or "{output}" not in command:
            raise ScanError(f"--skull-strip {command!r}: it must contain {{input}} and {{output}}")
        try:
            return shlex.split(command)
        except ValueError as problem:
            raise ScanError(f"--skull-strip {command!r}: cannot be parsed ({problem}); close its quotes") from None
