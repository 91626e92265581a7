"""Segment many scans, over several processes if wanted. Results that are complete already are kept; those of another
model, other options or another input are refused."""

import contextlib
import json
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from anofpdm import __version__
from anofpdm.errors import AnoFPDMError, ConfigError, OutputError, ScanError, ScanWarning
from anofpdm.raw.cache import StudyCache, discard
from anofpdm.report.summary import Summary
from anofpdm.segment import outputs
from anofpdm.segment.earlier import describe_conflict, describe_versions
from anofpdm.segment.engines import TASK
from anofpdm.segment.inputs import Target
from anofpdm.segment.outputs import ResultFiles
from anofpdm.segment.request import SegmentRequest
from anofpdm.segment.result import Segmentation
from anofpdm.segment.segment_scan import request_for, segment_scan
from anofpdm.util.distributed import World
from anofpdm.util.files import folder_lock, remove_temporary_files, translate_write_errors, write_atomically
from anofpdm.util.memory import REMEDY, is_out_of_memory
from anofpdm.util.progress import Progress, silent

BIDS_DERIVATIVE = {  # dataset_description.json
    "Name": "Lesion masks by AnoFPDM",
    "BIDSVersion": "1.9.0",
    "DatasetType": "derivative",
    "GeneratedBy": [{"Name": "anofpdm", "Version": __version__, "Description": "Lesion masks in brain MRI"}],
}
DEFAULT_FILES = (outputs.OVERVIEW, outputs.REPORT)  # besides those that are always written


@dataclass
class RunReport:
    segmented: dict[str, Summary] = field(default_factory=dict)  # by scan
    skipped: dict[str, Summary] = field(default_factory=dict)  # complete results of an earlier run
    failed: dict[str, str] = field(default_factory=dict)  # scan to reason
    refused: dict[str, str] = field(default_factory=dict)  # of `failed`: the folder has a result of something else
    warnings: dict[str, list[str]] = field(default_factory=dict)

    def add(self, other: "RunReport") -> None:
        for name, entries in vars(other).items():
            getattr(self, name).update(entries)


@dataclass(frozen=True)
class BatchSegmentation:
    """Many scans, one request."""

    request: SegmentRequest
    targets: Sequence[Target]
    out: Path
    # Optional ones: mask, anomaly map, tables and summary are always written. DICOM_SEG stands for all DICOM files.
    files: Collection[str] = DEFAULT_FILES
    strict: bool = False  # stop at the first scan that fails
    report_stage: Callable[[str], None] = discard  # receives a line per stage of a raw study
    preparations: Path | None = None  # folder for prepared raw studies, shared by runs; None: in the folder of the scan
    shared: bool = False  # other runs write results of other scans into `out` at the same time
    overwrite: bool = False  # replace results of another model, other options or another input
    remedy: str = "give another --out, or --overwrite"  # where such a result is refused

    def __post_init__(self) -> None:
        if outputs.DICOM_SEG in self.files and not any(target.study is not None for target in self.targets):
            raise ConfigError("--dicom: none of these scans is DICOM; omit it")
        mask = self.request.brain.mask
        if mask is not None and len(self.targets) > 1:
            raise ConfigError(f"--brain-mask is for one scan, and {len(self.targets)} are given; use --skull-strip")
        if mask is not None and not mask.is_file():
            raise ConfigError(f"--brain-mask {mask}: no such file; check the path")

    def run(self, world: World | None = None, progress: Progress = silent) -> RunReport:
        """The processes share the scans, and all get the report. A scan that fails is reported, and the others
        continue."""
        world, report = world or World(), RunReport()
        self.out.mkdir(parents=True, exist_ok=True)
        with folder_lock(self.out, needed=world.is_main, shared=self.shared):
            if world.is_main:
                self._prepare_folder()
            share = self._run_share(list(self.targets)[world.rank :: world.count], progress)
        for part in world.all_gather(share):
            report.add(part)
        return report

    def _prepare_folder(self) -> None:
        if not self.shared:
            remove_temporary_files(self.out)
        path = self.out / outputs.BIDS_DESCRIPTION
        if any(target.bids for target in self.targets) and not path.is_file():
            write_atomically(path, json.dumps(BIDS_DERIVATIVE, indent=2).encode())

    def _run_share(self, targets: Sequence[Target], progress: Progress) -> RunReport:
        report = RunReport()
        for number, target in enumerate(targets):
            name = target.subject.name
            update = _scan_progress(progress, number, len(targets), name)
            with self._record_failure(target, report), warnings.catch_warnings():
                warnings.simplefilter("ignore", ScanWarning)  # they are in the report
                if target.subject.problem:
                    raise ScanError(f"{name}: {target.subject.problem}")
                with target.open() as opened:
                    if not self._is_complete(opened, report):
                        self._segment(opened, report, update)
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

    def _is_complete(self, target: Target, report: RunReport) -> bool:
        """Whether an earlier run made this result. Refuses one of something else."""
        result, request, subject = result_files(target, self.out), self.request, target.subject
        settings = request_for(target, request).settings()
        try:
            earlier = Summary.read(result.path(outputs.SUMMARY))
            conflict = describe_conflict(earlier, request.model_name, settings, subject.images)
        except (OSError, ValueError):  # no summary or a damaged one, or an image that cannot be read: made again
            return False
        if conflict:
            if self.overwrite:
                return False
            report.refused[subject.name] = f"{result.folder} {conflict}; {self.remedy}"
            raise ConfigError(report.refused[subject.name])
        note = describe_versions(earlier, settings)
        wanted = [file for file in self.files if target.study is not None or file != outputs.DICOM_SEG]
        files = map(result.path, (outputs.MASK, outputs.ANOMALY_MAP, *wanted))
        if (note and self.overwrite) or not all(file.is_file() for file in files):
            return False
        report.skipped[subject.name] = earlier
        if note:
            report.warnings[subject.name] = [note]
        return True

    def _segment(self, target: Target, report: RunReport, progress: Progress) -> None:
        scan, files = target.subject.name, result_files(target, self.out)

        def report_line(line: str) -> None:
            self.report_stage(f"{scan}: {target.name_series(line)}")

        for line in target.notes:
            report_line(line)
        prepared = files.folder / outputs.PREPARATION if self.preparations is None else self.preparations / scan
        result = segment_scan(target, self.request, progress, StudyCache(prepared, report_line))
        with translate_write_errors(files.folder):
            files.folder.mkdir(parents=True, exist_ok=True)
        with folder_lock(files.folder, needed=self.shared):
            self._save(target, result, files)
        report.segmented[scan] = result.summary
        if result.summary.warnings:
            report.warnings[scan] = result.summary.warnings

    def _save(self, target: Target, result: Segmentation, files: ResultFiles) -> None:
        folder, stem, title = files.folder, files.stem, target.subject.name
        remove_temporary_files(folder)
        picture, report = outputs.OVERVIEW in self.files, outputs.REPORT in self.files
        result.save(folder, stem, picture=picture, report=report, title=title)
        if outputs.SEG_NRRD in self.files:
            result.save_seg_nrrd(folder, stem)
        if outputs.LABEL_TABLE in self.files:
            result.save_label_table(folder, stem)
        if target.study is not None and outputs.DICOM_SEG in self.files:  # last: if it fails, the NIfTI files exist
            result.save_dicom(target.study, folder, title, stem)


def _scan_progress(progress: Progress, number: int, count: int, name: str) -> Progress:
    """Progress of one scan, as a part of all; the bar shows the name of the scan."""

    def update(task: str, done: float, total: float, note: str = "") -> None:  # noqa: ARG001
        progress(TASK, number + (done / total if total else 0), count, f"{name}: {note}" if note else name)

    return update


def result_files(target: Target, out: Path) -> ResultFiles:
    """Of a scan, in the folder of all."""
    name = target.subject.name
    return ResultFiles(out.joinpath(*name.split("_"), "anat"), name) if target.bids else ResultFiles(out / name)
