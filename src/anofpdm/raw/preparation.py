"""Brains and registrations of a study, computed once and kept in a folder, together with the registered series.

A later run, with another model or other series of the same study, reuses the stages that still apply.
"""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from anofpdm.errors import AnoFPDMError
from anofpdm.raw.cache import Key, StageStore, file_sha256
from anofpdm.raw.geometry import decode_transform, encode_transform, rotation_degrees
from anofpdm.raw.place import BRAIN, REGISTRATION, TEMPLATE, PlacedSeries, TemplatePosition
from anofpdm.raw.register import Head, Registration, register_rigid
from anofpdm.raw.study import Study, StudyOptions, prepare_study
from anofpdm.raw.template import MNI152, register_affine
from anofpdm.scans.nifti import Volume, read_volume, write_nifti
from anofpdm.util.files import write_atomically
from anofpdm.util.progress import Progress, silent

TASK = "Preparing"
FindBrain = Callable[[Volume], np.ndarray]


def discard(line: str) -> None:
    """Reports nothing."""


@dataclass
class Preparation:
    """The tools of `prepare_study`; they store what they compute."""

    find_brain: FindBrain
    method: str  # of finding brains; stored stages of another one are not used
    folder: Path | None = None  # None: nothing is kept
    report: Callable[[str], None] = discard
    progress: Progress = silent
    keep_series: bool = True  # also the registered series; else only what is slow to compute again, and pictures
    sha256: dict[str, str] = field(default_factory=dict)  # by name of the series, the reference first
    reused: set[tuple[str, str]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._store = None if self.folder is None else StageStore(self.folder)

    def prepare(self, files: Mapping[str, Path], options: StudyOptions | None = None) -> Study:
        """Prepare a study and write everything to the folder. Other runs that use the folder wait meanwhile."""
        self.sha256.clear()
        self.reused.clear()
        with self._locked():
            return self.save_study(prepare_study(files, self, options))

    def _locked(self) -> contextlib.AbstractContextManager[None]:
        if self._store is None:
            return contextlib.nullcontext()
        return self._store.locked(lambda: self.report(f"waiting for another run that writes to {self.folder}"))

    def advance(self, done: int, total: int, note: str) -> None:
        self.progress(TASK, done, total, note)

    def brain_of(self, name: str, volume: Volume) -> np.ndarray:
        self.sha256[name] = file_sha256(volume.path)
        file, key = f"brain_{name}.nii.gz", {"series": [self.sha256[name]], "method": self.method}
        stored = self._stored_brain(file, key, volume)
        if stored is not None:
            self.reused.add((BRAIN, name))
            return stored
        brain = self.find_brain(volume)
        if self._store is not None:
            write_nifti(self._store.path(file), brain.astype(np.uint8), volume.grid)
            self._store.record(file, key)
        return brain

    def _stored_brain(self, file: str, key: Key, volume: Volume) -> np.ndarray | None:
        if self._store is None or self._store.find(file, key) is None:
            return None
        try:
            stored = read_volume(self._store.folder / file, allow_constant=True)
        except AnoFPDMError:
            return None
        return np.asarray(stored.voxels > 0) if stored.grid.shape == volume.grid.shape else None

    def register(self, name: str, reference: Head, series: Head) -> Registration:
        first = next(iter(self.sha256))
        key = {"series": [self.sha256[first], self.sha256[name]], "method": self.method}
        stage = (REGISTRATION, name)
        return self._registered(transform_file(name, first), key, stage, lambda: register_rigid(reference, series))

    def register_to_template(self, template: Head, reference: Head) -> Registration:
        first = next(iter(self.sha256))
        file, key = transform_file(MNI152, first), {"series": [self.sha256[first]], "method": self.method}
        return self._registered(file, key, (TEMPLATE, first), lambda: register_affine(template, reference))

    def _registered(
        self, file: str, key: Key, stage: tuple[str, str], compute: Callable[[], Registration]
    ) -> Registration:
        """Stored by an earlier run, or computed and stored."""
        stored = self._stored_registration(file, key)
        if stored is not None:
            self.reused.add(stage)
            return stored
        found = compute()
        if self._store is not None:
            write_atomically(self._store.path(file), encode_transform(found.matrix))
            self._store.record(file, key, registration=_numbers(found))
        return found

    def _stored_registration(self, file: str, key: Key) -> Registration | None:
        stage = None if self._store is None else self._store.find(file, key)
        if self._store is None or stage is None:
            return None
        try:
            matrix = decode_transform((self._store.folder / file).read_text(), file)
            return Registration(matrix, **stage["registration"])
        except (AnoFPDMError, OSError, ValueError, KeyError, TypeError):
            return None

    def save_failure(self, name: str, picture: bytes) -> Path | None:
        if self._store is None:
            return None
        path = self._store.path(f"failed_{name}.png")
        write_atomically(path, picture)
        return path

    def save_study(self, study: Study) -> Study:
        """Write the registered series, the brain mask by vote, pictures and, last, the manifest. Returns the study
        with its record."""
        record = self._describe(study)
        if self._store is not None:
            folder = self._store.path("")
            for old in folder.glob("failed_*.png"):  # of an earlier run
                old.unlink(missing_ok=True)
            for name, volume in zip(study.scan.modalities, study.scan.volumes, strict=True) if self.keep_series else ():
                write_nifti(folder / f"{name}.nii.gz", volume, study.scan.grid)
            if self.keep_series:
                write_nifti(folder / "brain.nii.gz", study.brain.astype(np.uint8), study.scan.grid)
            for name, picture in study.pictures.items():
                write_atomically(folder / f"{name}.png", picture)
            self._store.update(study=record)
        return replace(study, record=record)

    def _describe(self, study: Study) -> dict[str, Any]:
        voxel_ml = abs(np.linalg.det(study.scan.grid.affine[:3, :3])) / 1000
        seconds = sum(sum(one.seconds.values()) for one in study.series)
        seconds += 0 if study.template is None else study.template.seconds
        return {
            "folder": None if self.folder is None else str(self.folder),
            "reference": study.reference.name,
            "template": None if study.template is None else _describe_template(study.template),
            "brain_extraction": self.method,
            "brain_ml": round(float(study.brain.sum() * voxel_ml), 1),
            "spacing_mm": [round(float(edge), 4) for edge in study.scan.grid.spacing_mm],  # as the network sees it
            "seconds": round(seconds, 1),
            "series": {one.name: self._describe_series(one, study.reference) for one in study.series},
        }

    def _describe_series(self, one: PlacedSeries, reference: PlacedSeries) -> dict[str, Any]:
        described: dict[str, Any] = {
            "file": one.path.name,
            "sha256": self.sha256[one.name],
            "shape": list(one.grid.shape),
            "spacing_mm": [round(float(edge), 4) for edge in one.grid.spacing_mm],
            "brain_ml": round(one.brain_ml, 1),
            "seconds": {stage: round(seconds, 1) for stage, seconds in one.seconds.items()},
            "reused": sorted(stage for stage, name in self.reused if name == one.name),
        }
        if one.registration is not None and one.agreement is not None:
            described["registration"] = {
                "transform": transform_file(one.name, reference.name),
                "matrix": one.matrix.tolist(),  # millimetres (RAS+) of the reference to millimetres of the series
                "moved_mm": round(one.moved_mm, 2),
                "rotated_degrees": round(rotation_degrees(one.matrix), 2),
                **_numbers(one.registration),
            }
            described["agreement"] = asdict(one.agreement)
        return described


def _describe_template(template: TemplatePosition) -> dict[str, Any]:
    return {
        "name": template.name,
        "matrix": template.matrix.tolist(),  # millimetres (RAS+) of the scan in its space to those of the reference
        "overlap": template.overlap,
        "seconds": round(template.seconds, 1),
        **_numbers(template.registration),
    }


def transform_file(name: str, reference: str) -> str:
    return f"{name}_to_{reference}.txt"


def _numbers(found: Registration) -> dict[str, Any]:
    return {name: value for name, value in asdict(found).items() if name != "matrix"}
