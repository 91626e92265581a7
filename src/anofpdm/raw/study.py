"""A clinical study, series by series, to one grid: brains extracted, registered to a reference, resampled once."""

import contextlib
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from anofpdm.errors import ConfigError, ScanError
from anofpdm.raw.brain import BrainFinder
from anofpdm.raw.cache import StudyCache
from anofpdm.raw.contrast import CONTRASTS, Likelihoods, compare_contrasts, measure_contrast
from anofpdm.raw.geometry import apply, coverage, encode_transform, resample, rotation_degrees, working_grid
from anofpdm.raw.mixed_up import warn_mixed_up
from anofpdm.raw.register import Head, Registration, register_affine, register_rigid
from anofpdm.raw.series_pictures import draw_series
from anofpdm.raw.study_checks import check_brain, check_registration, check_series, check_template
from anofpdm.raw.template import load_template, overlap_with, scan_position
from anofpdm.raw.thick import divide_slices, resample_series
from anofpdm.scans.expects import MNI152, ScanExpectation
from anofpdm.scans.grid import Grid
from anofpdm.scans.nifti import read_volume, write_nifti
from anofpdm.scans.plausible import warn_cut_top
from anofpdm.scans.slices import Scan
from anofpdm.util.artifacts import convert, to_plain
from anofpdm.util.files import file_sha256, write_atomically

REFERENCE_WEIGHT = 1.5  # in the vote over brain masks: decides between two series


@dataclass(frozen=True)
class StudyOptions:
    expects: ScanExpectation = field(default_factory=ScanExpectation)
    slice_mm: float | None = None  # slices more than 1.5 times as thick are divided; None: none
    trust_header: bool = False  # sizes that no head has are not refused


@dataclass
class Stage:
    """The brain of a series, or its registration."""

    reused: bool = False  # whether an earlier run computed it
    summary: str = ""  # for the user
    picture: Callable[[], bytes] | None = None  # drawn where a check fails


@dataclass(frozen=True)
class PlacedSeries:
    name: str
    grid: Grid  # its own
    matrix: np.ndarray  # [4, 4], millimetres of the reference to its millimetres


@dataclass
class Study:
    """The series of a study. Every brain and transform is computed once, checked and kept in the cache. Where a check
    fails, a picture is kept, and named in the message."""

    files: Mapping[str, Path]  # the first is the reference
    options: StudyOptions = StudyOptions()
    cache: StudyCache = field(default_factory=StudyCache)
    find_brain: BrainFinder = field(default_factory=BrainFinder)
    # Results of `prepare`:
    scan: Scan = field(init=False)  # the series on one grid
    brain: np.ndarray = field(init=False)  # bool, on that grid: the vote of all series
    series: tuple[PlacedSeries, ...] = field(init=False)  # the reference first
    scan_to_reference: np.ndarray = field(init=False)  # [4, 4], millimetres to millimetres
    pictures: dict[str, bytes] = field(init=False)  # PNG of each series, with brain and edges
    record: dict[str, Any] = field(init=False)  # what was done, for manifest and summary

    def prepare(self) -> "Study":
        """Other runs that use the folder of the cache wait meanwhile."""
        self.series, self.scan_to_reference = (), np.eye(4)
        self.record = {"series": {name: {} for name in self.files}, "template": None}
        self._contrasts: dict[str, Likelihoods] = {}  # by series, where they can be measured
        self._seconds: list[float] = []  # of every stage
        with self.cache.locked():
            for path in self.files.values():  # before anything is computed
                check_series(read_volume(path), trust_header=self.options.trust_header)
            self._combine()
            self._save()
        return self

    @property
    def reference(self) -> PlacedSeries:
        return self.series[0]

    @property
    def reference_to_scan(self) -> np.ndarray:
        """[4, 4], millimetres of the reference to millimetres of the scan."""
        return np.linalg.inv(self.scan_to_reference)

    def to_reference(self, volume: np.ndarray) -> np.ndarray:
        """float32 on the reference's own grid, of a volume on the grid of the scan; 0 outside."""
        return resample(volume, self.scan.grid, self.reference.grid, self.reference_to_scan)

    def from_series(self, volume: np.ndarray, series: PlacedSeries) -> np.ndarray:
        """float32 on the grid of the scan, of a volume on the grid of a series."""
        return resample(volume, series.grid, self.scan.grid, series.matrix @ self.scan_to_reference)

    def _combine(self) -> None:
        """Each series resampled once, with a vote of their brains."""
        first, *_ = self.files
        reference = self._extract(first)
        warn_cut_top(reference.brain, reference.grid, self.files[first])
        self.cache.report(f"reference: {first} ({self.files[first]})")
        grid = self._choose_grid(reference)
        volumes, paths = dict[str, np.ndarray](), dict[bytes, Path]()
        votes, weights = np.zeros((2, *grid.shape), np.float32)
        for name, path in self.files.items():
            series = reference if name == first else self._extract(name)
            if (same := paths.setdefault(hashlib.sha256(series.voxels.tobytes()).digest(), path)) != path:
                raise ScanError(f"{path}: exactly the image of {same}; give the file of each modality")
            placed = self._place(name, series, reference)
            self.series += (placed,)
            to_series = placed.matrix @ self.scan_to_reference
            volumes[name] = resample_series(series, grid, to_series)
            weight = np.float32(REFERENCE_WEIGHT if name == first else 1)
            votes += weight * resample(series.brain, series.grid, grid, to_series)
            weights += weight * (True if name == first else coverage(series.grid, grid, to_series))
        warn_mixed_up(self._contrasts, self.files)
        self.brain = votes >= 0.5 * weights  # in most of the series that cover a voxel
        if not self.brain.any():
            raise ScanError(f"{self.files[first]}: the brain mask is empty; give --brain-mask or --skull-strip")
        self._draw_pictures(volumes, grid)
        if not self.options.expects.skull:
            for volume in volumes.values():
                volume[~self.brain] = 0
        self.scan = Scan(tuple(volumes), tuple(volumes.values()), grid)

    def _draw_pictures(self, volumes: Mapping[str, np.ndarray], grid: Grid) -> None:
        """Of each series on the grid of the scan, before the skull is removed."""
        first, *others = volumes
        reference, no_brain = Head(volumes[first], self.brain, grid), np.zeros_like(self.brain)
        self.pictures = {first: draw_series(f"{first}: reference. Blue: brain mask", reference)}
        for name in others:
            title = f"{name}, registered. Orange: edges of {first}. Blue: brain mask"
            self.pictures[name] = draw_series(title, Head(volumes[name], no_brain, grid), reference)

    def _choose_grid(self, reference: Head) -> Grid:
        """Of the reference or the template, with a square around the brain."""
        expects, own = self.options.expects, reference.grid
        centred_on = reference if expects.template is None else self._place_template(reference)
        grid = working_grid(centred_on.brain, centred_on.grid, expects.field_of_view_mm, expects.centre_mm)
        if self.options.slice_mm is None:
            return grid
        divided = divide_slices(grid, self.options.slice_mm)
        if divided.slice_mm < own.slice_mm and expects.template is None:
            parts = f"slices of {own.slice_mm:.3g} mm divided into slices of {divided.slice_mm:.3g} mm"
            self.cache.report(f"{next(iter(self.files))}: {parts}")
        return divided

    def _save(self) -> None:
        """The record and, in the folder of the cache, the registered series, the brain by vote and pictures."""
        grid, folder = self.scan.grid, self.cache.folder
        self.record |= {
            "folder": None if folder is None else str(folder),
            "reference": self.reference.name,
            "brain_extraction": self.find_brain.method,
            "brain_ml": round(Head(self.brain, self.brain, grid).volume_ml, 1),
            "spacing_mm": np.round(grid.spacing_mm, 4).tolist(),  # as the network sees it
            "seconds": round(sum(self._seconds), 1),
        }
        if folder is None:
            return
        for old in folder.glob("failed_*.png"):  # of an earlier run
            old.unlink(missing_ok=True)
        if self.cache.keep_series:
            for name, volume in zip(self.scan.modalities, self.scan.volumes, strict=True):
                write_nifti(folder / f"{name}.nii.gz", volume, grid)
            write_nifti(folder / "brain.nii.gz", self.brain.astype(np.uint8), grid)
        for name, picture in self.pictures.items():
            write_atomically(folder / f"{name}.png", picture)
        self.cache.update(study=self.record)

    # ---- stages ------------------------------------------------------------------------------------------------------

    def _extract(self, name: str) -> Head:
        """A series with its brain."""
        path, record = self.files[name], self.record["series"][name]
        with self._stage(name, "brain", record) as stage:
            volume = read_volume(path)
            voxels, grid = volume.voxels.astype(np.float32), volume.grid
            record |= {"file": path.name, "sha256": file_sha256(path), "shape": list(grid.shape)}
            record["spacing_mm"] = np.round(grid.spacing_mm, 4).tolist()
            head = Head(voxels, np.zeros(voxels.shape, dtype=bool), grid)  # until its brain is found
            stage.picture = lambda: draw_series(f"{name}. Blue: brain of {head.volume_ml:.0f} ml", head)
            brain, stage.reused = self.cache.once(
                f"brain_{name}.nii.gz",
                self._key(name),
                compute=lambda: self.find_brain(volume),
                write=lambda file, brain: write_nifti(file, brain.astype(np.uint8), grid),
                read=lambda file, _: np.asarray(read_volume(file, allow_constant=True).voxels > 0),
            )
            head = Head(voxels, brain, grid)
            stage.summary = f"brain of {head.volume_ml:.0f} ml"
            check_brain(head, path)
            record["brain_ml"] = round(head.volume_ml, 1)
            with contextlib.suppress(ScanError, ConfigError):  # too few voxels, or nilearn is not installed
                if name in CONTRASTS:
                    self._contrasts[name] = compare_contrasts(measure_contrast(head))
        return head

    def _place(self, name: str, head: Head, reference: Head) -> PlacedSeries:
        first, *_ = self.files
        if name == first:
            return PlacedSeries(name, head.grid, np.eye(4))
        record = self.record["series"][name]
        with self._stage(name, "registration", record) as stage:
            registration = self._register(stage, name, lambda: register_rigid(reference, head))
            matrix = registration.matrix
            title = f"{name}, registered. Orange: edges of {first}. Blue: its brain. Red: brain of {name}"
            stage.picture = lambda: draw_series(title, head, reference, matrix)
            agreement = check_registration(registration, reference, head, (self.files[first], self.files[name]))
            moved_mm = np.linalg.norm(apply(matrix, reference.centre_mm) - reference.centre_mm)
            moved = f"moved by {moved_mm:.1f} mm and {rotation_degrees(matrix):.1f} degrees"
            position = "position in the header kept" if registration.kept else moved
            stage.summary = f"registered to {first}, {position}, brain masks agree by {agreement['dice']:.2f}"
        record["agreement"] = agreement
        record["registration"] = {
            **to_plain(registration),
            "transform": f"{name}_to_{first}.txt",
            "moved_mm": round(float(moved_mm), 2),
            "rotated_degrees": round(rotation_degrees(matrix), 2),
        }
        return PlacedSeries(name, head.grid, matrix)

    def _place_template(self, reference: Head) -> Head:
        """The template; the space of the scan becomes the one that the model expects."""
        (name, *_), template = self.files, load_template()
        record = self.record["template"] = dict[str, Any]()
        with self._stage(name, MNI152, record) as stage:
            registration = self._register(stage, MNI152, lambda: register_affine(template, reference))
            overlap = overlap_with(template, reference.brain, reference.grid, registration.matrix)
            title = f"{name}, registered. Orange: edges of {MNI152}. Blue: its brain. Red: brain"
            stage.picture = lambda: draw_series(title, reference, template, registration.matrix)
            check_template(registration, overlap, self.files[name])
            position = "already in its space" if registration.kept else "affine"
            stage.summary = f"registered to {MNI152}, {position}, brains overlap by {overlap:.2f}"
        self.scan_to_reference = scan_position(registration, self.options.expects.template_affine)
        record |= {
            **to_plain(registration),
            "name": MNI152,
            "matrix": self.scan_to_reference.tolist(),  # millimetres (RAS+) of the scan to those of the reference
            "overlap": overlap,
        }
        return template

    def _register(self, stage: Stage, name: str, compute: Callable[[], Registration]) -> Registration:
        """Of a series or the template, to the reference."""

        def write(file: Path, registration: Registration) -> dict[str, Any]:
            write_atomically(file, encode_transform(registration.matrix))
            return {"registration": to_plain(registration)}

        def read(_: Path, record: dict[str, Any]) -> Registration:
            return convert(Registration, record["registration"])

        first, *_ = self.files
        key = self._key(first) if name == MNI152 else self._key(first, name)
        registration, stage.reused = self.cache.once(f"{name}_to_{first}.txt", key, compute, write, read)
        return registration

    def _key(self, *names: str) -> dict[str, Any]:
        """What a result of these series depends on."""
        return {"series": [self.record["series"][name]["sha256"] for name in names], "method": self.find_brain.method}

    @contextlib.contextmanager
    def _stage(self, name: str, kind: str, record: dict[str, Any]) -> Iterator[Stage]:
        """`kind`: brain, registration, or the template. `record` gets its time, and whether it was reused."""
        note = f"registration to {kind}" if kind == MNI152 else f"{kind} of {name}"
        total = 2 * len(self.files) - 1 + (self.options.expects.template is not None)
        stage, start, done, cache = Stage(), time.perf_counter(), len(self._seconds), self.cache
        cache.progress("Preparing", done, total, note)
        try:
            yield stage
        except ScanError as problem:
            if stage.picture is None or cache.folder is None:
                raise
            path = cache.folder / f"failed_{name}.png"
            write_atomically(path, stage.picture())
            raise ScanError(f"{problem} (picture: {path})") from None
        seconds = time.perf_counter() - start
        self._seconds.append(seconds)
        cache.progress("Preparing", done + 1, total, note)
        cache.report(f"{name}: {stage.summary}{', reused' if stage.reused else ''}, {seconds:.1f} s")
        record.setdefault("seconds", {})[kind] = round(seconds, 1)
        record.setdefault("reused", []).extend([kind] if stage.reused else ())


def to_series(volume: np.ndarray, reference: PlacedSeries, series: PlacedSeries) -> np.ndarray:
    """float32 on the grid of a series, of a volume on the grid of the reference; linear, 0 outside."""
    return resample(volume, reference.grid, series.grid, np.linalg.inv(series.matrix))
