"""Prepare a cohort: read each scan once, in worker processes, and write its slices to disk."""

import contextlib
import hashlib
import json
import warnings
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np

from anofpdm import __version__
from anofpdm.cohorts.contact_sheet import draw_contact_sheet
from anofpdm.cohorts.plan import Plan
from anofpdm.cohorts.raw_scans import RawOptions, SubjectScan, read_subject
from anofpdm.cohorts.slice_labels import is_unhealthy_scan, label_notes, slice_labels
from anofpdm.cohorts.store import Cohort, cohort_tables, read_cohort
from anofpdm.cohorts.subjects import Subject
from anofpdm.cohorts.writer import ALL_FILES, JOURNAL, MANIFEST, RAW_FOLDER, SHEET, Manifest, ScanEntry, StoreWriter
from anofpdm.errors import AnoFPDMError, CohortError, ScanError, ScanWarning
from anofpdm.options import Raw, Template
from anofpdm.scans import AxialPlanes, mask_slices, scan_slices
from anofpdm.scans.expects import ScanExpectation
from anofpdm.scans.slices import LEAST_FOREGROUND
from anofpdm.util.artifacts import encode, to_plain
from anofpdm.util.files import folder_lock, remove_temporary_files, write_atomically
from anofpdm.util.progress import Progress, silent
from anofpdm.util.workers import worker_pool

TASK = "Preparing scans"
LEAST_MEASURED = 4  # scans; the mean of fewer is less exact than the template itself


@dataclass
class Report:
    failed: dict[str, str] = field(default_factory=dict)  # scan to reason
    warnings: dict[str, list[str]] = field(default_factory=dict)
    n_resumed: int = 0  # scans prepared by earlier runs


# Entry, pixels [n, C, size, size] float16, and masks [n, size, size] bool if there are any; or why it failed.
Result = tuple[ScanEntry, np.ndarray, np.ndarray | None] | AnoFPDMError


def prepare(
    plan: Plan,
    out: Path,
    workers: int = 1,
    *,
    strict: bool = False,
    overwrite: bool = False,
    pool: Executor | None = None,
    on_progress: Progress = silent,
) -> Report:
    """Prepare the scans of `plan` that `out` does not hold yet. An existing worker pool may be passed."""
    _check_out(out)
    if plan.labels is not None and plan.raw.template is not Template.NONE and plan.raw.raw is not Raw.NEVER:
        raise CohortError(
            f"{plan.labels.path}: its labels are of slices of the scans, which are others after registration to "
            f"{plan.raw.template}; give --raw never if the scans are in that space, or leave out --template"
        )
    with folder_lock(out), contextlib.nullcontext(pool) if pool else worker_pool(workers) as pool:
        remove_temporary_files(out)
        for name in ALL_FILES if overwrite else ():
            (out / name).unlink(missing_ok=True)
        writer = StoreWriter(out, plan.settings)
        complete = False
        try:
            _check_unchanged(plan, writer.entries)
            results = _results(plan, writer.entries, (out / RAW_FOLDER).resolve(), pool, workers)
            report = _prepare_missing(plan, writer, results, strict, on_progress)
            if not writer.entries:
                reason = next(iter(report.failed.values()), "no scan found")
                raise CohortError(f"{plan.source}: no scan could be prepared; first reason: {reason}")
            complete = True
        finally:
            writer.close(complete=complete)
        _finish(plan, out, writer.entries, report)
    return report


def _try_prepare(
    subject: Subject, *, source: Path, size: int, raw: RawOptions, raw_folder: Path, measured: frozenset[str]
) -> Result:
    """`raw_folder` keeps the preparation of raw studies; `measured` are scans to find in template space."""
    try:
        entry, pixels, masks, subject_scan = _prepare_scan(subject, source, size, raw, raw_folder)
        if subject.name in measured:
            entry = replace(entry, position=subject_scan.position())
        return entry, pixels, masks
    except AnoFPDMError as problem:
        return problem
    except OSError as problem:
        return ScanError(f"{subject.name}: {problem}")
    except MemoryError:
        return ScanError(f"{subject.name}: out of memory; try --workers 1")


def _prepare_scan(
    subject: Subject, source: Path, size: int, raw: RawOptions, raw_folder: Path
) -> tuple[ScanEntry, np.ndarray, np.ndarray | None, SubjectScan]:
    """Read one scan and cut it into network slices."""
    if subject.problem:
        raise ScanError(f"{subject.name}: {subject.problem}")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ScanWarning)
        subject_scan = read_subject(subject, raw, raw_folder / subject.name)
        slices = scan_slices(subject_scan.scan, size, np.float16)
        planes = AxialPlanes(subject_scan.scan.grid, size)
        masks = mask_slices(subject_scan.lesions(subject), planes, slices.indices) if subject.masks else None
    if not len(slices.indices):
        raise ScanError(
            f"{subject.name}: no axial slice has {LEAST_FOREGROUND:.1%} of its area above 0; check the scan"
        )
    entry = ScanEntry(
        scan=subject.name,
        patient=subject.patient,
        split="",  # set when it is added to the cohort
        sources=_fingerprints(subject, source),
        n_native=planes.shape[0],
        indices=slices.indices.tolist(),
        lesion=None if masks is None else [bool(mask.any()) for mask in masks],
        pixel_mm=planes.pixel_mm,
        spacing_mm=planes.spacing_mm,
        sha256=hashlib.sha256(slices.pixels.data).hexdigest(),
        warnings=[str(warning.message) for warning in caught],
        skull=subject_scan.skull,
    )
    return entry, slices.pixels, masks, subject_scan


def _prepare_missing(
    plan: Plan, writer: StoreWriter, results: Iterator[tuple[Subject, Result]], strict: bool, on_progress: Progress
) -> Report:
    report = Report(n_resumed=len(writer.entries))
    on_progress(TASK, report.n_resumed, len(plan.subjects))
    for number, (subject, result) in enumerate(results, start=1):
        if not isinstance(result, AnoFPDMError):
            try:
                entry, pixels, masks = result
                slice_labels(plan, entry)
                # A patient stays in its split when scans are added to the folder: a model may have been trained on it.
                earlier = (entry.split for entry in writer.entries if entry.patient == subject.patient)
                writer.append(replace(entry, split=str(next(earlier, plan.split[subject.patient]))), pixels, masks)
            except CohortError as problem:
                result = problem
        if isinstance(result, AnoFPDMError):
            report.failed[subject.name] = str(result)
            if strict:
                raise result
        on_progress(TASK, report.n_resumed + number, len(plan.subjects))
    return report


def _results(
    plan: Plan, entries: list[ScanEntry], raw_folder: Path, pool: Executor | None, workers: int
) -> Iterator[tuple[Subject, Result]]:
    """Scans not prepared yet, in their order, whatever the number of workers; few are in memory at a time."""
    run = partial(
        _try_prepare,
        source=plan.source,
        size=plan.size,
        raw=plan.raw,
        raw_folder=raw_folder,
        measured=plan.measured,
    )
    done = {entry.scan for entry in entries}
    missing = (subject for subject in plan.subjects if subject.name not in done)
    if pool is None:
        yield from ((subject, run(subject)) for subject in missing)
        return
    pending = deque((subject, pool.submit(run, subject)) for subject in islice(missing, 2 * workers))
    while pending:
        subject, future = pending.popleft()
        yield subject, future.result()
        pending.extend((subject, pool.submit(run, subject)) for subject in islice(missing, 1))


def _finish(plan: Plan, out: Path, entries: list[ScanEntry], report: Report) -> None:
    """Write the tables, the contact sheet, and last the manifest, which marks the cohort as complete."""
    report.warnings = {entry.scan: notes for entry in entries if (notes := entry.warnings + label_notes(plan, entry))}
    unhealthy = {entry.scan for entry in entries if is_unhealthy_scan(plan, entry)}
    tables = cohort_tables(entries, [slice_labels(plan, entry) for entry in entries], unhealthy)
    content = hashlib.sha256("".join(entry.sha256 for entry in entries).encode()).hexdigest()
    given = plan.labels is not None
    preparation = json.dumps(to_plain(plan.preparation), sort_keys=True).encode()
    manifest = Manifest(
        format=Cohort.FORMAT,
        anofpdm=__version__,
        kind=str(plan.layout),
        source=str(plan.source),
        labels="given" if given else "from masks",
        isolated_labels=("kept" if plan.keep_isolated else "left out") if given else None,
        fill_labels_mm=plan.fill_labels_mm if given else None,
        split=plan.split_from,
        preparation=plan.preparation,
        preparation_sha256=hashlib.sha256(preparation).hexdigest(),
        slices_sha256=content,
        tables_sha256={name: hashlib.sha256(table).hexdigest() for name, table in tables.items()},
        scans=len(entries),
        slices=sum(len(entry.indices) for entry in entries),
        failed=report.failed,
        warnings=report.warnings,
        expects=to_plain(_expected_scans(plan, entries)),
    )
    encoded = encode(manifest)
    if (out / MANIFEST).is_file() and (out / MANIFEST).read_bytes() == encoded and (out / SHEET).is_file():
        return  # nothing new; do not disturb readers
    (out / MANIFEST).unlink(missing_ok=True)
    for name, table in tables.items():
        write_atomically(out / name, table)
    draw_contact_sheet(read_cohort(out, manifest), out / SHEET)
    write_atomically(out / MANIFEST, encoded)


def _expected_scans(plan: Plan, entries: list[ScanEntry]) -> ScanExpectation:
    """What these scans have in common."""
    field_of_view = float(np.median([entry.pixel_mm for entry in entries])) * plan.size
    positions = [entry.position for entry in entries if entry.position is not None]
    affine = centre_mm = None
    if len(positions) >= LEAST_MEASURED:
        affine = np.mean([position["template_affine"] for position in positions], axis=0).round(6).tolist()
        centre_mm = np.median([position["centre_mm"] for position in positions], axis=0).round(3).tolist()
    return ScanExpectation(
        skull=sum(entry.skull for entry in entries) * 2 > len(entries),
        template=None if plan.raw.template is Template.NONE else str(plan.raw.template),
        field_of_view_mm=round(min(max(field_of_view, 50.0), 1000.0), 1),
        nominal_slice_mm=float(np.median([entry.spacing_mm for entry in entries])) if plan.unknown_spacing else None,
        template_affine=affine,
        centre_mm=centre_mm,
    )


def _check_out(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        raise CohortError(f"{out}: cannot be created ({problem.strerror}); choose another folder") from None
    ours = {Path(name).parts[0] for name in (*ALL_FILES, RAW_FOLDER)}
    names = {path.name for path in out.iterdir() if not path.name.startswith(".")}
    if names and JOURNAL not in names and names - ours:
        raise CohortError(f"{out}: contains other files ({sorted(names - ours)[0]}); choose an empty or new folder")


def _check_unchanged(plan: Plan, entries: list[ScanEntry]) -> None:
    """Scans prepared by an earlier run must not have changed since."""
    subjects = {subject.name: subject for subject in plan.subjects}
    for entry in entries:
        subject = subjects.get(entry.scan)
        if subject is None or _fingerprints(subject, plan.source) != entry.sources:
            what = "is missing" if subject is None else "has changed"
            raise CohortError(f"{plan.source}: {entry.scan} {what} since it was prepared; start again with --overwrite")
        if plan.split_from == "given" and plan.split[entry.patient] != entry.split:
            raise CohortError(
                f"the split file puts {entry.patient} into {plan.split[entry.patient]}, but it was prepared for "
                f"{entry.split}; start again with --overwrite"
            )


def _fingerprints(subject: Subject, source: Path) -> dict[str, tuple[str, int, int]]:
    masks = {f"mask {number}" if number > 1 else "mask": path for number, path in enumerate(subject.masks, start=1)}
    return {
        role: (path.relative_to(source).as_posix(), path.stat().st_size, path.stat().st_mtime_ns)
        for role, path in {**subject.images, **masks}.items()
    }
