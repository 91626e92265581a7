"""Prepare a cohort: read each scan once, in worker processes, and write its slices to disk."""

import hashlib
import json
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from anofpdm import __version__
from anofpdm.choices import Raw, Template
from anofpdm.cohorts.contact_sheet import draw_contact_sheet
from anofpdm.cohorts.plan import Plan
from anofpdm.cohorts.raw_scans import RawOptions, read_subject
from anofpdm.cohorts.slice_labels import cohort_tables, label_notes, slice_labels
from anofpdm.cohorts.store import Cohort, read_cohort
from anofpdm.cohorts.subjects import Subject
from anofpdm.cohorts.writer import ALL_FILES, JOURNAL, MANIFEST, RAW_FOLDER, SHEET, Manifest, ScanEntry, StoreWriter
from anofpdm.errors import AnoFPDMError, CohortError, ScanError, ScanWarning
from anofpdm.scans import AxialPlanes, mask_slices, scan_slices
from anofpdm.scans.expects import ScanExpectation
from anofpdm.scans.slices import LEAST_FOREGROUND
from anofpdm.util.artifacts import encode, to_plain
from anofpdm.util.files import folder_lock, remove_temporary_files, translate_write_errors, write_atomically
from anofpdm.util.progress import Progress, silent
from anofpdm.util.workers import map_in_pool, worker_pool

TASK = "Preparing scans"
LEAST_MEASURED = 4  # scans; the mean of fewer is less exact than the template itself


class PreparedScan(NamedTuple):
    entry: ScanEntry  # without a split
    pixels: np.ndarray  # [n, C, size, size] float16
    masks: np.ndarray | None  # bool [n, size, size], if there are any


def prepare(
    plan: Plan,
    out: Path,
    workers: int = 1,
    *,
    strict: bool = False,
    overwrite: bool = False,
    on_progress: Progress = silent,
) -> Cohort:
    """Prepare the scans of `plan` that `out` does not hold yet. Those that fail are listed in the cohort's manifest."""
    _check_out(out)
    if plan.labels is not None and plan.raw.template is not Template.NONE and plan.raw.raw is not Raw.NEVER:
        raise CohortError(
            f"{plan.labels.path}: its labels are of slices of the scans, which are others after registration to "
            f"{plan.raw.template}; give --raw never if the scans are in that space, or leave out --template"
        )
    with folder_lock(out):
        remove_temporary_files(out)
        for name in ALL_FILES if overwrite else ():
            (out / name).unlink(missing_ok=True)
        writer = StoreWriter(out, plan.settings)
        _check_unchanged(plan, writer.entries)
        failed = _prepare_missing(plan, writer, workers, strict, on_progress)
        if not writer.entries:
            reason = next(iter(failed.values()))
            raise CohortError(f"{plan.source}: no scan could be prepared; first reason: {reason}")
        return _finish(plan, out, writer.entries, failed)


def _prepare_missing(
    plan: Plan, writer: StoreWriter, workers: int, strict: bool, on_progress: Progress
) -> dict[str, str]:
    """Returns the reasons of scans that failed."""
    prepare_scan = partial(
        _prepare_scan,
        source=plan.source,
        size=plan.size,
        raw=plan.raw,
        raw_folder=(writer.folder / RAW_FOLDER).resolve(),
        measured=plan.measured,
    )
    done = {entry.scan for entry in writer.entries}
    missing = [subject for subject in plan.subjects if subject.name not in done]
    failed: dict[str, str] = {}
    on_progress(TASK, len(writer.entries), len(plan.subjects))
    with worker_pool(workers) as pool:
        for subject, scan in zip(missing, map_in_pool(pool, prepare_scan, missing, workers), strict=True):
            try:
                if isinstance(scan, AnoFPDMError):
                    raise scan
                slice_labels(plan, scan.entry)  # raises if a row is of a slice that does not exist
            except AnoFPDMError as problem:
                if strict:
                    raise
                failed[subject.name] = str(problem)
            else:
                # A patient stays in its split when scans are added to the folder: a model may have been trained on it.
                earlier = (entry.split for entry in writer.entries if entry.patient == subject.patient)
                split = str(next(earlier, plan.split[subject.patient]))
                writer.append(replace(scan.entry, split=split), scan.pixels, scan.masks)
            on_progress(TASK, len(writer.entries) + len(failed), len(plan.subjects))
    return failed


def _prepare_scan(
    subject: Subject, *, source: Path, size: int, raw: RawOptions, raw_folder: Path, measured: frozenset[str]
) -> PreparedScan | AnoFPDMError:
    """`raw_folder` keeps the preparation of raw studies; `measured` are scans to find in template space."""
    try:
        if subject.problem:
            raise ScanError(f"{subject.name}: {subject.problem}")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ScanWarning)
            read = read_subject(subject, raw, raw_folder / subject.name)
            slices, planes = scan_slices(read.scan, size, np.float16), AxialPlanes(read.scan.grid, size)
            masks = mask_slices(read.lesions(subject), planes, slices.indices) if subject.masks else None
        if not len(slices.indices):
            raise ScanError(
                f"{subject.name}: no axial slice has {LEAST_FOREGROUND:.1%} of its area above 0; check the scan"
            )
        entry = ScanEntry(
            scan=subject.name,
            patient=subject.patient,
            sources=_fingerprints(subject, source),
            n_native=planes.shape[0],
            indices=slices.indices.tolist(),
            lesion=None if masks is None else [bool(mask.any()) for mask in masks],
            pixel_mm=planes.pixel_mm,
            spacing_mm=planes.spacing_mm,
            sha256=hashlib.sha256(slices.pixels.data).hexdigest(),
            warnings=[str(warning.message) for warning in caught],
            skull=read.skull,
            position=read.position() if subject.name in measured else None,
        )
    except AnoFPDMError as problem:
        return problem
    except MemoryError:
        return ScanError(f"{subject.name}: out of memory; try --workers 1")
    except OSError as problem:
        return ScanError(f"{subject.name}: {problem}")
    return PreparedScan(entry, slices.pixels, masks)


def _finish(plan: Plan, out: Path, entries: list[ScanEntry], failed: dict[str, str]) -> Cohort:
    """Write the tables, the contact sheet, and last the manifest, which marks the cohort as complete."""
    tables, given = cohort_tables(plan, entries), plan.labels is not None
    content = hashlib.sha256("".join(entry.sha256 for entry in entries).encode()).hexdigest()
    preparation = json.dumps(to_plain(plan.preparation), sort_keys=True).encode()
    manifest = Manifest(
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
        failed=failed,
        warnings={entry.scan: notes for entry in entries if (notes := entry.warnings + label_notes(plan, entry))},
        expects=to_plain(_expected_scans(plan, entries)),
    )
    encoded = encode(manifest)
    if (out / MANIFEST).is_file() and (out / MANIFEST).read_bytes() == encoded and (out / SHEET).is_file():
        return read_cohort(out, manifest)  # nothing new; do not disturb readers
    (out / MANIFEST).unlink(missing_ok=True)
    for name, table in tables.items():
        write_atomically(out / name, table)
    cohort = read_cohort(out, manifest)
    draw_contact_sheet(cohort, out / SHEET)
    write_atomically(out / MANIFEST, encoded)
    return cohort


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
    with translate_write_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    ours = {Path(name).parts[0] for name in (*ALL_FILES, RAW_FOLDER)}
    others = sorted(path.name for path in out.glob("[!.]*") if path.name not in ours)
    if others and not (out / JOURNAL).is_file():
        raise CohortError(f"{out}: contains other files ({others[0]}); choose an empty or new folder")


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


def _fingerprints(subject: Subject, source: Path) -> list[tuple[str, int, int]]:
    return [
        (path.relative_to(source).as_posix(), path.stat().st_size, path.stat().st_mtime_ns)
        for path in (*subject.images.values(), *subject.masks)
    ]
