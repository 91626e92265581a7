"""Scan in, mask out. The file to read first.

A scan is cut into axial slices. Each slice is carried up through the noise levels of a diffusion model that was trained
with image-level labels, and at each level the model is asked twice what the slice looked like: if it were healthy, and
without saying so (method/evidence.py). How the two answers part tells whether something is wrong
(method/detection.py); where the slice differs from its healthy version tells what (method/mask.py). Map and mask go
back onto the scan's own grid. A student, where the model has one, draws what it learned from such masks in one look.
"""

import contextlib
import hashlib
import json
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anofpdm import __version__
from anofpdm.calibration.files import load_calibration
from anofpdm.calibration.fit import foreground_share
from anofpdm.errors import ConfigError, ModelError, ScanError, ScanWarning
from anofpdm.method.calibration import Calibration
from anofpdm.method.context import SlicePositions
from anofpdm.method.decision import OURS, Decisions, DecisionSettings, decide, fit_for
from anofpdm.method.evidence import Evidence
from anofpdm.method.many_slices import EvidenceRequest, batch_for, gather_evidence, slice_seeds
from anofpdm.network.predictor import TrainedModel, load_trained
from anofpdm.report.display import Curves, DisplayData
from anofpdm.report.explanation import Explain, add_evidence, normalize_explain, rows_to_explain, warn_missing_slices
from anofpdm.report.findings import Finding, find_lesions
from anofpdm.report.overview import draw_overview
from anofpdm.report.page import render_report
from anofpdm.scans import AxialPlanes, Grid, Scan, ScanSlices, read_scan, read_volume, scan_slices, write_nifti
from anofpdm.scans.grid import check_same_grid
from anofpdm.segment.outputs import ANOMALY_MAP, FINDINGS, MASK, OVERVIEW, REPORT, SLICES, SUMMARY
from anofpdm.student.model import Student, load_student
from anofpdm.util.distributed import resolve_device
from anofpdm.util.files import encode_csv, translate_write_errors, write_atomically

ENGINES = ("auto", "diffusion", "student")
UNLIKE = 0.08  # share of foreground beyond what calibration saw: then a scan is unlike the cohort
Listener = Callable[[int, int], None]
Files = Mapping[str, str | Path]


def load(folder: str | Path, device: str | torch.device = "auto", precision: str = "auto") -> "Model":
    """A trained and calibrated model, ready to segment."""
    trained = load_trained(Path(folder), resolve_device(device), precision)
    calibration, digest = load_calibration(trained)
    try:
        student, problem = load_student(trained.folder, trained.sha256, trained.device), ""
    except ModelError as found:
        student, problem = None, str(found)  # the diffusion model can be used all the same
    return Model(trained, calibration, digest, student, problem)


@dataclass(frozen=True)
class Model:
    trained: TrainedModel
    calibration: Calibration
    calibration_sha256: str
    student: Student | None = None
    student_problem: str = ""  # why one that is there cannot be used

    def segment(
        self,
        files: Files,  # modality to NIfTI file
        *,
        engine: str = "auto",  # the student where there is one
        brain_mask: str | Path | None = None,
        brain_from: str | None = None,  # the command that made it; none given: the file counts
        choices: DecisionSettings | None = None,
        seed: int | None = None,  # of the noise; none given: the calibration's
        batch: int | None = None,  # slices at a time; none given: as suits the device
        explain: Explain = None,  # slices of which the report of a student's masks shows the diffusion model's curves
        on_progress: Listener = lambda _done, _total: None,
    ) -> "Segmentation":
        start = time.perf_counter()
        choices, seed = choices or self.usual_choices, self.calibration.seed if seed is None else seed
        engine, explain = self.engine(engine), normalize_explain(explain)
        if engine == "diffusion":
            fit_for(self.calibration, choices)  # complains before any time is spent
            explain = None  # it explains every slice as it is
        needed = self.modalities(engine, explained=explain is not None)
        with _warnings_kept() as warned:
            scan = self._read(files, needed, brain_mask)
            slices, planes = scan_slices(scan, self.trained.size), AxialPlanes(scan.grid, self.trained.size)
            self._look_at(slices, files)
            self._look_at_spacing(planes.spacing_mm, engine, files)
            warn_missing_slices(explain, slices.indices, next(iter(files.values())))
        places = SlicePositions(np.zeros(len(slices.indices)), slices.indices * planes.spacing_mm)
        batch, curves = batch or batch_for(self.trained.device), None
        if student := self._student(engine):
            seen = [needed.index(name) for name in student.config.modalities]
            begin = on_progress if explain is None else partial(_tenths, on_progress, 0, 1)
            decisions = student.decide(
                lambda rows: slices.pixels[rows][:, seen],
                places,
                lambda task, done, total, note="": begin(int(done), int(total)),  # noqa: ARG005
            )
        else:
            evidence = self._ask(slices, seed, batch, on_progress)
            decisions, curves = decide(evidence, self.calibration, choices, places), Curves.from_evidence(evidence)
        anomaly_map = planes.to_native(decisions.maps, slices.indices)
        mask = planes.to_native(decisions.masks, slices.indices) >= 0.5
        findings = find_lesions(mask, anomaly_map, scan.grid.affine)
        if explain is not None:
            rows = rows_to_explain(explain, findings, slices.indices, scan.grid)
            end = partial(_tenths, on_progress, 1, 9)
            decisions, curves = self._explained(slices, rows, decisions, seed, batch, end)
        return Segmentation(
            mask=mask,
            anomaly_map=anomaly_map,
            grid=scan.grid,
            slices=slice_table(decisions, slices.indices, planes.pixel_mm),
            findings=findings,
            decisions=decisions,
            summary={
                "settings": self.settings(choices, seed, brain_from or brain_said(brain_mask), engine, explain),
                "inputs": {name: _file_said(files[name]) for name in needed},
                "warnings": warned,
                "seconds": round(time.perf_counter() - start, 2),
            },
            display=self._display(slices, needed, planes, curves, choices, engine),
        )

    @property
    def usual_choices(self) -> DecisionSettings:
        return replace(OURS, context_mm=self.calibration.context_mm)

    def engine(self, asked: str = "auto") -> str:
        """What draws the masks."""
        if asked not in ENGINES:
            raise ConfigError(f"unknown engine {asked!r}; choose one of {', '.join(ENGINES)}")
        if asked != "diffusion" and self.student_problem:
            raise ModelError(f"{self.student_problem}; or add --engine diffusion")
        if asked == "student" and self.student is None:
            raise ConfigError(f"{self.trained.folder} has no student; teach it one with `anofpdm distill`")
        return asked if asked != "auto" else "diffusion" if self.student is None else "student"

    def modalities(self, engine: str = "auto", *, explained: bool = False) -> tuple[str, ...]:
        """That are needed of a scan."""
        student = self._student(engine)
        return student.config.modalities if student and not explained else self.trained.modalities

    def _student(self, engine: str) -> Student | None:
        return self.student if self.engine(engine) == "student" else None

    def settings(
        self, choices: DecisionSettings, seed: int, brain: str | None, engine: str = "auto", explain: Explain = None
    ) -> dict[str, Any]:
        """All that decides what comes out, besides the scan. Numbers hold only among results that share it."""
        calibration = self.calibration
        said = {
            "anofpdm": __version__,
            "torch": torch.__version__,
            "engine": self.engine(engine),
            "model_sha256": self.trained.sha256,
            "brain_mask": brain,
        }
        if student := self._student(engine):
            by_student = {**said, "student_sha256": student.sha256, "student": student.calibration.to_dict()}
            if explain is None:
                return by_student
            return {
                **by_student,
                "explained": explain if isinstance(explain, str) else list(explain),
                "calibration_sha256": self.calibration_sha256,
                "precision": self.trained.predict.precision,
                "seed": seed,
            }
        return {
            **said,
            "calibration_sha256": self.calibration_sha256,
            "precision": self.trained.predict.precision,
            "strength": calibration.strength,
            "strength_by": calibration.strength_by,
            "signal": calibration.settings.signal,
            "detector": calibration.detector if choices.detector == "calibrated" else choices.detector,
            "scored": [self.trained.modalities[channel] for channel in calibration.settings.channels],
            "levels": len(calibration.settings.levels),
            "highest_level": calibration.settings.levels[-1],
            "choices": asdict(choices),
            "seed": seed,
        }

    def _look_at_spacing(self, spacing_mm: float, engine: str, files: Files) -> None:
        """A word where the student finds none of the neighbours that it learned with."""
        student = self._student(engine)
        offsets = student.config.neighbours_mm if student else ()
        away = [abs(offset - round(offset / spacing_mm) * spacing_mm) / abs(offset) for offset in offsets]
        if away and min(away) > 0.5:
            warnings.warn(
                f"{next(iter(files.values()))}: its slices lie {spacing_mm:g} mm apart, and the student learned with "
                f"neighbours at {', '.join(f'{offset:g}' for offset in offsets)} mm: it sees each slice alone; "
                "masks may be worse, compare with --engine diffusion",
                ScanWarning,
                stacklevel=2,
            )

    def _read(self, files: Files, modalities: tuple[str, ...], brain_mask: str | Path | None) -> Scan:
        missing = [name for name in modalities if name not in files]
        if missing:
            needs, given = ", ".join(modalities), ", ".join(files) or "nothing"
            raise ScanError(f"no {' or '.join(missing)} given; the model needs {needs} of every scan, and got {given}")
        scan = read_scan({name: Path(files[name]) for name in modalities})
        if brain_mask is None:
            return scan
        brain = read_volume(Path(brain_mask), allow_constant=True)
        check_same_grid(scan.grid, Path(files[modalities[0]]), brain.grid, brain.path)
        inside = brain.voxels > 0
        for name, volume in zip(scan.modalities, scan.volumes, strict=True):
            if not (volume[inside] > 0).any():
                raise ScanError(
                    f"{brain.path}: nothing of the {name} lies inside this brain mask; is it another scan's?"
                )
        return Scan(scan.modalities, tuple(np.where(inside, volume, 0) for volume in scan.volumes), scan.grid)

    def _look_at(self, slices: ScanSlices, files: Files) -> None:
        """A word where the scan is unlike the ones that the model was calibrated on."""
        where = next(iter(files.values()))
        if not len(slices.indices):
            raise ScanError(f"{where}: no axial slice holds enough foreground; is it a head?")
        share, (low, high) = foreground_share(slices.pixels), self.calibration.foreground
        if share > high + UNLIKE:
            hint = "is it skull-stripped? If the model's scans were, give --brain-mask or --skull-strip"
        elif share < low - UNLIKE:
            hint = "is it cropped, or another kind of scan?"
        else:
            return
        warnings.warn(
            f"{where}: {share:.0%} of its slices is foreground, in calibration it was {low:.0%} to {high:.0%}; {hint}",
            ScanWarning,
            stacklevel=2,
        )

    def _ask(self, slices: ScanSlices, seed: int, batch: int, on_progress: Listener) -> Evidence:
        return gather_evidence(
            self.trained.predict,
            lambda rows: slices.pixels[rows],
            slice_seeds(slices.indices, seed),
            EvidenceRequest(self.calibration.settings, [self.calibration.strength], self.trained.device, batch),
            lambda _task, done, total, _note="": on_progress(done, total),
        )

    def _explained(
        self,
        slices: ScanSlices,
        rows: np.ndarray,
        decisions: Decisions,
        seed: int,
        batch: int,
        on_progress: Listener,
    ) -> tuple[Decisions, Curves | None]:
        """A student's decisions, and beside them what the diffusion model says of some slices."""
        if not len(rows):
            return decisions, None
        some = replace(slices, pixels=slices.pixels[rows], indices=slices.indices[rows])
        evidence = self._ask(some, seed, batch, on_progress)
        return add_evidence(decisions, rows, evidence), Curves.from_evidence(evidence).expand(rows, len(slices.indices))

    def _display(
        self,
        slices: ScanSlices,
        modalities: tuple[str, ...],
        planes: AxialPlanes,
        curves: Curves | None,
        choices: DecisionSettings,
        engine: str,
    ) -> DisplayData:
        if student := self._student(engine):
            scored, by_healthy = [modalities.index(name) for name in student.config.modalities], 0.5
        else:
            scored = list(self.calibration.settings.channels)
            by_healthy = fit_for(self.calibration, choices).healthy_threshold or 0.0
        return DisplayData(
            pixels=slices.pixels[:, scored].astype(np.float16),
            indices=slices.indices,
            pixel_mm=planes.pixel_mm,
            modalities=tuple(modalities[channel] for channel in scored),
            cosine_cut=self.calibration.cut,
            healthy_level=by_healthy,
            curves=curves,
            engine=engine,
        )


@contextlib.contextmanager
def _warnings_kept() -> Iterator[list[str]]:
    """What is said of a scan, told on afterwards and kept as text."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ScanWarning)
        yield texts
    texts += [str(one.message) for one in caught if issubclass(one.category, ScanWarning)]
    for one in caught:
        warnings.warn(one.message, one.category, stacklevel=4)


def _tenths(on_progress: Listener, before: int, share: int, done: int, total: int) -> None:
    """A part of the work, that is so many tenths of it."""
    on_progress(before * total + share * done, 10 * total)


@dataclass(frozen=True)
class Segmentation:
    mask: np.ndarray  # bool [i, j, k], on the scan's own grid
    anomaly_map: np.ndarray  # float32 [i, j, k]
    grid: Grid
    slices: list[dict[str, Any]]  # one row a slice
    findings: list[Finding]  # the largest first
    decisions: Decisions  # on the network's own slices
    summary: dict[str, Any]
    display: DisplayData

    @property
    def volume_ml(self) -> float:
        return float(self.mask.sum() * abs(np.linalg.det(self.grid.affine[:3, :3])) / 1000)

    def save(
        self,
        folder: str | Path,
        name: Callable[[str], str] = str,  # may rename the files
        *,
        picture: bool = True,
        report: bool = True,
        title: str | None = None,  # of picture and report; none given: the folder's name
    ) -> None:
        """Everything into `folder`, the summary last: where it is, the rest is."""
        folder = Path(folder)
        with translate_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        for file in (SUMMARY, OVERVIEW, REPORT):  # of an earlier run; the summary first
            (folder / name(file)).unlink(missing_ok=True)
        write_nifti(folder / name(MASK), self.mask.astype(np.uint8), self.grid)
        write_nifti(folder / name(ANOMALY_MAP), self.anomaly_map, self.grid)
        write_atomically(folder / name(FINDINGS), encode_csv(FINDING_COLUMNS, map(_finding_row, self.findings)))
        write_atomically(folder / name(SLICES), encode_csv(self.slices[0], (row.values() for row in self.slices)))
        title = title or folder.resolve().name
        if picture:
            write_atomically(folder / name(OVERVIEW), self.picture(title))
        if report:
            write_atomically(folder / name(REPORT), render_report(self, title))
        said = {
            "volume_ml": round(self.volume_ml, 4),
            "findings": len(self.findings),
            "slices": len(self.slices),
            "slices_detected": int(self.decisions.detected.sum()),
            **self.summary,
        }
        write_atomically(folder / name(SUMMARY), json.dumps(said, indent=2).encode())

    def picture(self, title: str) -> bytes:
        """The overview, as PNG."""
        said, display = f"{title}: {self.volume_ml:.1f} ml in {len(self.findings)} findings", self.display
        return draw_overview(display.pixels[:, 0], display.indices, self.decisions, said, display.pixel_mm)


def slice_table(decisions: Decisions, indices: np.ndarray, pixel_mm: float) -> list[dict[str, Any]]:
    areas = decisions.masks.sum(axis=(1, 2)) * pixel_mm**2
    return [
        {
            "slice": int(indices[row]),
            "detected": int(decisions.detected[row]),
            "cosine": f"{decisions.similarity[row]:.6f}",
            "log_odds": f"{decisions.log_odds[row]:.4f}",
            "end_step": int(decisions.end_step[row]),
            "divergence": f"{decisions.end_divergence[row]:.6g}",
            "quantile": f"{decisions.quantile[row]:.4f}",
            "threshold": f"{decisions.threshold[row]:.6g}",
            "area_mm2": f"{areas[row]:.1f}",
        }
        for row in range(len(indices))
    ]


FINDING_COLUMNS = ("finding", "volume_ml", "x_mm", "y_mm", "z_mm", "peak", "peak_x_mm", "peak_y_mm", "peak_z_mm")


def _finding_row(finding: Finding) -> list[str]:
    numbers = (finding.volume_ml, *finding.centre_mm, finding.peak, *finding.peak_mm)
    return [str(finding.number), *(f"{number:.4f}" for number in numbers)]


def brain_said(mask: str | Path | None) -> str | None:
    """What settings say of a brain mask."""
    return None if mask is None else f"sha256 {file_sha256(mask)}"


def _file_said(path: str | Path) -> dict[str, str]:
    return {"file": str(path), "sha256": file_sha256(path)}


def file_sha256(path: str | Path) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
