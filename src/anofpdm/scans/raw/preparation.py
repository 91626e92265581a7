"""Brains and registrations of a study, computed once and kept in a folder, together with the registered series.

The manifest records the sha256 of every file that a step was computed from. A later run, with another model or other
series of the same study, reuses the steps that still apply.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from anofpdm import __version__
from anofpdm.errors import AnoFPDMError
from anofpdm.scans.nifti import Volume, read_volume, write_nifti
from anofpdm.scans.raw.geometry import decode_transform, encode_transform
from anofpdm.scans.raw.register import Head, Registration, register_rigid
from anofpdm.scans.raw.study import PlacedSeries, Study
from anofpdm.util.files import read_regular_file, translate_write_errors, write_atomically

FORMAT = 1  # incremented whenever a step is computed in another way
MANIFEST = "manifest.json"

FindBrain = Callable[[Volume], np.ndarray]


def discard(line: str) -> None:
    """Reports nothing."""


@dataclass
class Preparation:
    """The tools of `prepare_study`; they store what they compute."""

    find_brain: FindBrain
    method: str  # of finding brains; stored steps of another one are not used
    folder: Path | None = None  # None: nothing is kept
    report: Callable[[str], None] = discard
    sha256: dict[str, str] = field(default_factory=dict)  # by name of the series, the reference first

    def brain_of(self, name: str, volume: Volume) -> np.ndarray:
        self.sha256[name] = _sha256(volume.path)
        file, key = f"brain_{name}.nii.gz", {"series": [self.sha256[name]], "method": self.method}
        if self.folder is not None and self._step(file, key) is not None:
            try:
                stored = read_volume(self.folder / file, allow_constant=True)
                if stored.grid.shape == volume.grid.shape:
                    return np.asarray(stored.voxels > 0)
            except AnoFPDMError:  # damaged or removed: computed again
                pass
        brain = self.find_brain(volume)
        if self.folder is not None:
            write_nifti(self._path(file), brain.astype(np.uint8), volume.grid)
            self._record(file, key)
        return brain

    def register(self, name: str, reference: Head, series: Head) -> Registration:
        first = next(iter(self.sha256))
        file = f"{name}_to_{first}.txt"
        key = {"series": [self.sha256[first], self.sha256[name]], "method": self.method}
        step = self._step(file, key)
        if self.folder is not None and step is not None:
            try:
                matrix = decode_transform((self.folder / file).read_text(), file)
                return Registration(matrix, **step["registration"])
            except (AnoFPDMError, OSError, ValueError, KeyError, TypeError):
                pass
        found = register_rigid(reference, series)
        if self.folder is not None:
            write_atomically(self._path(file), encode_transform(found.matrix))
            self._record(file, key, registration=_numbers(found))
        return found

    def save_study(self, study: Study) -> None:
        """The registered series, the brain mask that all voted for, and the manifest, last."""
        if self.folder is None:
            return
        for name, volume in zip(study.scan.modalities, study.scan.volumes, strict=True):
            write_nifti(self._path(f"{name}.nii.gz"), volume, study.scan.grid)
        write_nifti(self._path("brain.nii.gz"), study.brain.astype(np.uint8), study.scan.grid)
        self._update(study=describe_study(study, self.sha256) | {"brain_extraction": self.method})

    def _step(self, file: str, key: dict[str, Any]) -> dict[str, Any] | None:
        """The record of a step that was computed from the same files in the same way."""
        step = self._manifest()["steps"].get(file)
        return step if isinstance(step, dict) and step.get("key") == key else None

    def _record(self, file: str, key: dict[str, Any], **more: Any) -> None:
        self._update(steps=self._manifest()["steps"] | {file: {"key": key, **more}})

    def _manifest(self) -> dict[str, Any]:
        empty = {"format": FORMAT, "anofpdm": __version__, "steps": {}}
        if self.folder is None:
            return empty
        try:
            manifest = json.loads(read_regular_file(self.folder / MANIFEST))
        except (OSError, ValueError):
            return empty
        fits = isinstance(manifest, dict) and manifest.get("format") == FORMAT
        return manifest if fits and isinstance(manifest.get("steps"), dict) else empty

    def _update(self, **parts: Any) -> None:
        write_atomically(self._path(MANIFEST), json.dumps(self._manifest() | parts, indent=2).encode())

    def _path(self, file: str) -> Path:
        assert self.folder is not None
        with translate_write_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        return self.folder / file


def describe_study(study: Study, sha256: dict[str, str]) -> dict[str, Any]:
    """For the manifest and the summary of a segmented scan."""
    return {
        "reference": study.reference.name,
        "brain_ml": round(float(study.brain.sum() * abs(np.linalg.det(study.scan.grid.affine[:3, :3])) / 1000), 1),
        "series": {one.name: {"sha256": sha256[one.name], **_describe_series(one)} for one in study.series},
    }


def _describe_series(one: PlacedSeries) -> dict[str, Any]:
    described: dict[str, Any] = {"file": one.path.name, "brain_ml": round(one.brain_ml, 1)}
    if one.registration is not None and one.agreement is not None:
        described |= {"registration": _numbers(one.registration), "agreement": asdict(one.agreement)}
    return described


def _numbers(found: Registration) -> dict[str, Any]:
    return {name: value for name, value in asdict(found).items() if name != "matrix"}


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
