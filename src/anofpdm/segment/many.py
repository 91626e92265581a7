"""Segment many scans, over several processes if wanted. Results that are complete already are kept; those of another
model, other options or another input are refused."""

import contextlib
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from anofpdm import __version__
from anofpdm.cohorts.subjects import Subject
from anofpdm.errors import AnoFPDMError, ConfigError, OutputError, ScanError, ScanWarning
from anofpdm.raw.cache import StudyCache, discard
from anofpdm.segment import outputs
from anofpdm.segment.earlier import EarlierResult
from anofpdm.segment.engines import TASK
from anofpdm.segment.inputs import Target
from anofpdm.segment.one_scan import name_series, request_for, segment_target
from anofpdm.segment.request import SegmentRequest
from anofpdm.segment.result import Segmentation
from anofpdm.util.distributed import World
from anofpdm.util.files import folder_lock, remove_temporary_files, translate_write_errors, write_atomically
from anofpdm.util.memory import REMEDY, is_out_of_memory
from anofpdm.util.progress import Progress, silent

BIDS_DATASET = {
    "Name": "Lesion masks by AnoFPDM",
    "BIDSVersion": "1.9.0",
    "DatasetType": "derivative",
    "GeneratedBy": [{"Name": "anofpdm", "Version": __version__}],
}


@dataclass(frozen=True)
class OutputOptions:
    """Optional files; mask, anomaly map, tables and summary are always written."""

    overview: bool = True
    report: bool = True
    dicom: bool = False  # for scans that are DICOM
    seg_nrrd: bool = False
    label_table: bool = False

    def files(self, *, is_dicom: bool) -> tuple[str, ...]:
        """Files without which a result is incomplete."""
        optional = {outputs.OVERVIEW: self.overview, outputs.REPORT: self.report}
        optional |= {outputs.SEG_NRRD: self.seg_nrrd, outputs.LABEL_TABLE: self.label_table}
        optional |= dict.fromkeys((outputs.DICOM_SEG, outputs.DICOM_CAPTURE), self.dicom and is_dicom)
        return (outputs.MASK, outputs.ANOMALY_MAP, *(file for file, wanted in optional.items() if wanted))


@dataclass
class RunReport:
    segmented: dict[str, float] = field(default_factory=dict)  # scan to lesion volume in ml
    skipped: dict[str, float] = field(default_factory=dict)  # complete results of an earlier run
    failed: dict[str, str] = field(default_factory=dict)  # scan to reason
    refused: list[str] = field(default_factory=list)  # those of `failed` whose folder has a result of something else
    warnings: dict[str, list[str]] = field(default_factory=dict)
    missing: dict[str, tuple[str, ...]] = field(default_factory=dict)  # scan to the optional modalities that it lacks


@dataclass(frozen=True)
class BatchSegmentation:
    """Many scans, one request."""

    request: SegmentRequest
    targets: Sequence[Target]
    out: Path
    outputs: OutputOptions = OutputOptions()
    strict: bool = False  # stop at the first scan that fails
    report_stage: Callable[[str], None] = discard  # receives a line per stage of a raw study
    preparations: Path | None = None  # folder for prepared raw studies, shared by runs; None: in the folder of the scan
    shared: bool = False  # other runs write results of other scans into `out` at the same time
    overwrite: bool = False  # replace results of another model, other options or another input
    remedy: str = "give another --out, or --overwrite"  # where such a result is refused

    def __post_init__(self) -> None:
        if self.outputs.dicom and not any(target.study is not None for target in self.targets):
            raise ConfigError("--dicom: none of these scans is DICOM; omit it")
        mask = self.request.brain.mask
        if mask is not None and len(self.targets) > 1:
            raise ConfigError(f"--brain-mask is for one scan, and {len(self.targets)} are given; use --skull-strip")
        if mask is not None and not Path(mask).is_file():
            raise ConfigError(f"--brain-mask {mask}: no such file; check the path")

    def run(self, world: World | None = None, progress: Progress = silent) -> RunReport:
        """Segment this process's share of the scans. A scan that fails is reported, and the others continue."""
        world = world or World()
        self.out.mkdir(parents=True, exist_ok=True)
        with folder_lock(self.out, needed=world.is_main, shared=self.shared):
            if world.is_main:
                self._prepare_folder()
            return self._run_share(list(self.targets)[world.rank :: world.count], progress)

    def _prepare_folder(self) -> None:
        if not self.shared:
            remove_temporary_files(self.out)
        description = json.dumps(BIDS_DATASET, indent=2).encode()
        path = self.out / outputs.BIDS_DESCRIPTION
        if any(target.bids for target in self.targets) and not path.is_file():
            write_atomically(path, description)

    def _run_share(self, targets: Sequence[Target], progress: Progress) -> RunReport:
        report = RunReport()
        for target in targets:  # before any is segmented
            with self._record_failure(target, report), contextlib.suppress(OSError):  # reading it fails again, below
                self._is_complete(target, None if target.study else target.subject.images, report)
        for number, target in enumerate(targets):
            name = target.subject.name
            update = _progress_of_one(progress, number, len(targets), name)
            if name not in report.failed and name not in report.skipped:
                with self._record_failure(target, report), warnings.catch_warnings():
                    warnings.simplefilter("ignore", ScanWarning)  # they are in the report
                    self._run_one(target, report, update)
            update(TASK, 1, 1)
        return report

    @contextlib.contextmanager
    def _record_failure(self, target: Target, report: RunReport) -> Iterator[None]:
        try:
            yield
        except OutputError:
            raise  # the disk is full for the next scan, too
        except (AnoFPDMError, OSError) as problem:
            report.failed[target.subject.name] = str(problem)
            if self.strict:
                raise
        except (MemoryError, RuntimeError) as problem:
            if self.strict or not is_out_of_memory(problem):
                raise
            report.failed[target.subject.name] = f"not enough memory; {REMEDY}"

    def _is_complete(self, target: Target, images: Mapping[str, Path] | None, report: RunReport) -> bool:
        """Whether an earlier run made this result. Refuses one of something else. Without images, never complete."""
        if target.subject.problem:
            return False
        folder, name = result_location(target, self.out)
        request, scan = request_for(target, self.request), target.subject
        earlier, settings = EarlierResult.read(folder, name), request.settings()
        if earlier is None:
            return False
        if conflict := earlier.conflict(request.model_name, settings, images):
            if self.overwrite:
                return False
            report.refused.append(scan.name)
            raise ConfigError(f"{folder} {conflict}; {self.remedy}")
        note = earlier.version_note(settings)
        files = self.outputs.files(is_dicom=target.study is not None)
        if images is None or (note and self.overwrite) or not all((folder / name(file)).is_file() for file in files):
            return False
        report.skipped[scan.name] = earlier.volume_ml
        if missing := request.inputs.missing(images):
            report.missing[scan.name] = missing
        if note:
            report.warnings[scan.name] = [note]
        return True

    def _run_one(self, target: Target, report: RunReport, progress: Progress) -> None:
        if target.subject.problem:
            raise ScanError(f"{target.subject.name}: {target.subject.problem}")
        with target.open() as subject:
            try:
                if target.study is None or not self._is_complete(target, subject.images, report):
                    self._segment(target, subject, report, progress)
            except ScanError as problem:
                raise ScanError(name_series(str(problem), target, subject)) from None

    def _segment(self, target: Target, subject: Subject, report: RunReport, progress: Progress) -> None:
        """`subject` has NIfTI files, also where the target is DICOM."""
        (folder, name), request = result_location(target, self.out), request_for(target, self.request)
        if missing := request.inputs.missing(subject.images):
            report.missing[subject.name] = missing

        def report_line(line: str) -> None:
            self.report_stage(f"{subject.name}: {name_series(line, target, subject)}")

        for line in target.notes:
            report_line(line)
        prepared = folder / outputs.PREPARATION if self.preparations is None else self.preparations / subject.name
        result = segment_target(target, subject, request, progress, StudyCache(prepared, report_line))
        with folder_lock(_created(folder), needed=self.shared):
            self._save(target, result, folder, name)
        report.segmented[subject.name] = result.volume_ml
        if result.summary["warnings"]:
            report.warnings[subject.name] = result.summary["warnings"]

    def _save(self, target: Target, result: Segmentation, folder: Path, name: Callable[[str], str]) -> None:
        title = target.subject.name
        remove_temporary_files(folder)
        for file in (outputs.SEG_NRRD, outputs.DICOM_SEG, outputs.DICOM_CAPTURE):  # of an earlier run's mask
            (folder / name(file)).unlink(missing_ok=True)
        result.save(folder, name, picture=self.outputs.overview, report=self.outputs.report, title=title)
        if self.outputs.seg_nrrd:
            result.save_seg_nrrd(folder, name)
        if self.outputs.label_table:
            result.save_label_table(folder, name)
        if target.study is not None and self.outputs.dicom:  # last: if it fails, the NIfTI files exist
            result.save_dicom(target.study, folder, title, name)


def _created(folder: Path) -> Path:
    with translate_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def _progress_of_one(progress: Progress, number: int, count: int, name: str) -> Progress:
    """Progress of one scan, as a part of all; the bar shows the name of the scan."""

    def update(task: str, done: float, total: float, note: str = "") -> None:  # noqa: ARG001
        progress(TASK, number + (done / total if total else 0), count, f"{name}: {note}" if note else name)

    return update


def result_location(target: Target, out: Path) -> tuple[Path, Callable[[str], str]]:
    """Folder for a scan's results, and the function that names its files there."""
    name = target.subject.name
    if not target.bids:
        return out / name, str
    return out.joinpath(*name.split("_"), "anat"), lambda file: name + outputs.bids_suffix(file)
