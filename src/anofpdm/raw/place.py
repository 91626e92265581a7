"""One series of a study: its brain, and its position relative to the reference, both checked.

Where a check fails, a picture of what was found is kept and named in the message.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from anofpdm.errors import ConfigError, ScanError
from anofpdm.raw.contrast import CONTRASTS, Likelihoods, compare_contrasts, measure_contrast
from anofpdm.raw.geometry import apply, rotation_degrees
from anofpdm.raw.register import Head, Registration
from anofpdm.raw.series_pictures import draw_brain, draw_registration
from anofpdm.raw.study_checks import Agreement, check_brain, check_registration, check_template, measure_agreement
from anofpdm.raw.template import MNI152, load_template, overlap_with, scan_position
from anofpdm.scans.grid import Grid
from anofpdm.scans.nifti import Volume, read_volume

BRAIN, REGISTRATION, TEMPLATE = "brain", "registration", "template"  # stages


class StudyTools(Protocol):
    """Where brains and registrations come from: computed, or stored by an earlier run."""

    @property
    def reused(self) -> set[tuple[str, str]]:
        """Stages and series whose result came from an earlier run."""

    def brain_of(self, name: str, volume: Volume) -> np.ndarray:
        """bool [i, j, k]."""

    def register(self, name: str, reference: Head, series: Head) -> Registration: ...

    def register_to_template(self, template: Head, reference: Head) -> Registration: ...

    def report(self, line: str) -> None:
        """A line for the user: which stage took how long."""

    def advance(self, done: int, total: int, note: str) -> None:
        """Number of finished stages, and what is being done now."""

    def save_failure(self, name: str, picture: bytes) -> Path | None:
        """Keep a picture of a series that failed a check."""


@dataclass(frozen=True)
class PlacedSeries:
    name: str
    path: Path
    grid: Grid  # its own
    matrix: np.ndarray  # [4, 4], millimetres of the reference to its millimetres
    brain_ml: float
    registration: Registration | None = None  # None: it is the reference
    agreement: Agreement | None = None
    moved_mm: float = 0.0  # by registration, in the centre of the reference's brain
    seconds: Mapping[str, float] = field(default_factory=dict)  # by stage


@dataclass(frozen=True)
class TemplatePosition:
    """Where the space of the template lies in the study."""

    name: str
    head: Head
    matrix: np.ndarray  # [4, 4], millimetres of the scan in that space to millimetres of the reference
    registration: Registration
    overlap: float  # DICE of the brains
    seconds: float = 0.0


@dataclass
class Placement:
    """Places the series of a study one after the other; counts stages."""

    tools: StudyTools
    stages: int  # in total
    done: int = 0
    seconds: dict[tuple[str, str], float] = field(default_factory=dict)  # by stage and series
    contrasts: dict[str, Likelihoods] = field(default_factory=dict)  # by series, where they can be measured

    def find_brain(self, name: str, path: Path) -> Head:
        """The series with its brain."""
        with self._timed(BRAIN, name, f"brain of {name}"):
            volume = read_volume(path)
            voxels = volume.voxels.astype(np.float32)
            nothing = np.zeros(voxels.shape, dtype=bool)
            with self._picture(name, lambda: draw_brain(f"{name}: no brain found", Head(voxels, nothing, volume.grid))):
                head = Head(voxels, self.tools.brain_of(name, volume), volume.grid)
            with self._picture(name, lambda: draw_brain(f"{name}. Blue: brain of {head.volume_ml:.0f} ml", head)):
                check_brain(head, path)
            self._compare(name, head)
        self._report(BRAIN, name, f"brain of {head.volume_ml:.0f} ml")
        return head

    def _compare(self, name: str, head: Head) -> None:
        """With the known contrasts."""
        with contextlib.suppress(ScanError, ConfigError):  # too few voxels, or nilearn is not installed
            if name in CONTRASTS:
                self.contrasts[name] = compare_contrasts(measure_contrast(head))

    def reference(self, name: str, path: Path, head: Head) -> PlacedSeries:
        seconds = {BRAIN: self.seconds[BRAIN, name]}
        return PlacedSeries(name, path, head.grid, np.eye(4), head.volume_ml, seconds=seconds)

    def place(self, name: str, path: Path, series: Head, head: Head, reference: PlacedSeries) -> PlacedSeries:
        with self._timed(REGISTRATION, name, f"registration of {name}"):
            found = self.tools.register(name, head, series)
            agreement = measure_agreement(head, series.brain, series.grid, found.matrix)
            title = f"{name}, registered. Orange: edges of {reference.name}. Blue: its brain. Red: brain of {name}"
            with self._picture(name, lambda: draw_registration(title, head, series, found.matrix)):
                check_registration(found, agreement, path, reference.path)
        moved_mm = np.linalg.norm(apply(found.matrix, head.centre_mm) - head.centre_mm)
        moved = f"moved by {moved_mm:.1f} mm and {rotation_degrees(found.matrix):.1f} degrees"
        position = "position in the header kept" if found.kept else moved
        what = f"registered to {reference.name}, {position}, brain masks agree by {agreement.dice:.2f}"
        self._report(REGISTRATION, name, what)
        seconds = {stage: self.seconds[stage, name] for stage in (BRAIN, REGISTRATION)}
        return PlacedSeries(
            name, path, series.grid, found.matrix, series.volume_ml, found, agreement, float(moved_mm), seconds
        )

    def place_template(
        self, reference: PlacedSeries, head: Head, template_affine: Sequence[float] | None = None
    ) -> TemplatePosition:
        with self._timed(TEMPLATE, reference.name, f"registration to {MNI152}"):
            template = load_template()
            found = self.tools.register_to_template(template, head)
            overlap = overlap_with(template, head.brain, head.grid, found.matrix)
            title = f"{reference.name}, registered. Orange: edges of {MNI152}. Blue: its brain. Red: brain"
            with self._picture(reference.name, lambda: draw_registration(title, template, head, found.matrix)):
                check_template(found, overlap, reference.path)
        position = "already in its space" if found.kept else "affine"
        self._report(TEMPLATE, reference.name, f"registered to {MNI152}, {position}, brains overlap by {overlap:.2f}")
        seconds = self.seconds[TEMPLATE, reference.name]
        return TemplatePosition(MNI152, template, scan_position(found, template_affine), found, overlap, seconds)

    @contextlib.contextmanager
    def _timed(self, stage: str, name: str, note: str) -> Iterator[None]:
        self.tools.advance(self.done, self.stages, note)
        start = time.perf_counter()
        yield
        self.seconds[stage, name] = time.perf_counter() - start
        self.done += 1
        self.tools.advance(self.done, self.stages, note)

    def _report(self, stage: str, name: str, what: str) -> None:
        reused = ", reused" if (stage, name) in self.tools.reused else ""
        self.tools.report(f"{name}: {what}{reused}, {self.seconds[stage, name]:.1f} s")

    @contextlib.contextmanager
    def _picture(self, name: str, draw: Callable[[], bytes]) -> Iterator[None]:
        try:
            yield
        except ScanError as problem:
            path = self.tools.save_failure(name, draw())
            raise ScanError(str(problem) if path is None else f"{problem} (picture: {path})") from None
