"""Predictions of each kind of method for all slices of a set, shared among processes, into a store on disk."""

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from anofpdm.calibration.fit_calibration import slice_positions
from anofpdm.choices import Signal
from anofpdm.errors import EvaluationError
from anofpdm.method.calibration import Calibration
from anofpdm.method.decision import Decisions, decide
from anofpdm.method.evidence import GRADIENT_SHARE, Evidence, EvidenceRequest, components
from anofpdm.method.gather import evidence_batches, regroup, slice_seeds
from anofpdm.method.mask import mask, median_filtered
from anofpdm.student.student import Student
from anofpdm.student.student_network import cohort_pixels, fill_missing
from anofpdm.study.comparison.job import EvaluationJob
from anofpdm.study.comparison.method_results import WORK, PredictionStore
from anofpdm.study.comparison.methods import EvidenceMethod, ReconstructionMethod, Setting, describe_setting
from anofpdm.study.comparison.rival_models import Models
from anofpdm.util.distributed import World
from anofpdm.util.files import translate_write_errors
from anofpdm.util.workers import map_in_threads

CHUNK = 500  # slices thresholded at once
SCANS_BATCH = 60  # slices, at least, in batches of whole scans
ARRAYS: dict[str, tuple[type, bool]] = {  # type, and whether it has pixels
    "maps": (np.float32, True),
    "masks": (np.bool_, True),  # before the detector
    "detected": (np.bool_, False),
    "score": (np.float64, False),
    "threshold": (np.float64, False),
}


def new_store(job: EvaluationJob, name: str, count: int) -> PredictionStore:
    """One store for all processes, in scratch space: the main one creates it, the others open it."""
    folder, side = job.out / WORK / name, job.model.size
    if job.world.is_main:
        with translate_write_errors(folder):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        for array, (dtype, has_pixels) in ARRAYS.items():
            _allocate(folder / f"{array}.npy", dtype, (count, side, side) if has_pixels else (count,))
    job.world.all_gather(None)
    return PredictionStore(folder)


def put_decisions(store: PredictionStore, positions: np.ndarray, decisions: Decisions) -> None:
    of_name = {name: getattr(decisions, name) for name in ("maps", "detected", "score", "threshold")}
    store.put(positions, masks=decisions.drawn, **of_name)


def _allocate(path: Path, dtype: type, shape: tuple[int, ...]) -> None:
    """Disk space is allocated at once: a full disk under a memory map kills the process without a message."""
    with translate_write_errors(path):
        np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
        if hasattr(os, "posix_fallocate"):
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


@dataclass(frozen=True)
class Workload:
    """Slices that a method is run on, and the seed of their noise."""

    job: EvaluationJob
    rows: np.ndarray  # in the cohort's order
    seed: int
    task: str  # as progress reports it

    def report(self, done: int, total: int) -> None:
        self.job.progress(self.task, done, total)

    def scan_batches(self) -> list[np.ndarray]:
        """This process's share of positions within `rows`, in whole scans: context needs adjacent slices."""
        world, scans, starts = self.job.world, self.job.cohort.scans[self.rows], [0]
        for position in np.flatnonzero(scans[1:] != scans[:-1]) + 1:
            if position - starts[-1] >= SCANS_BATCH:
                starts.append(int(position))
        return np.split(np.arange(len(self.rows)), starts[1:])[world.rank :: world.count]


def predict_from_evidence(
    methods: dict[str, EvidenceMethod],  # of one encoding
    stores: dict[str, PredictionStore],
    calibrations: Mapping[str, Calibration],  # by method; they differ in strength and what depends on it
    models: Models,
    work: Workload,
) -> None:
    """One pass of the network for all methods. Threads decide while the network computes the next slices."""
    cohort, scans = work.job.cohort, work.scan_batches()
    (settings,) = {
        replace(calibration.settings, signal=Signal.ERROR, gradient_share=GRADIENT_SHARE)
        for calibration in calibrations.values()
    }
    strengths = sorted({calibration.strength for calibration in calibrations.values()})
    maps_of = {name: calibrations[name].settings for name in methods}
    signals = tuple(
        sorted({part for settings_of_maps in maps_of.values() for part in components(settings_of_maps.signal)})
    )
    rows = work.rows[np.concatenate([np.empty(0, dtype=int), *scans])]
    request = EvidenceRequest(settings, strengths, work.job.model.device, work.job.config.batch, signals)
    batches = evidence_batches(
        models.guided,
        lambda some: cohort.slices[rows[some]],
        slice_seeds(cohort.indices[rows], work.seed),
        request.in_even_batches(len(rows)),
        lambda _task, done, total, _note="": work.report(done, total),
    )

    def decide_all(job: tuple[np.ndarray, Evidence]) -> None:
        positions, evidence = job
        places = slice_positions(cohort, work.rows[positions])
        for name, method in methods.items():
            decisions = decide(evidence.with_maps_of(maps_of[name]), calibrations[name], method.decision, places)
            put_decisions(stores[name], positions, decisions)

    with work.job.world.raise_in_all():
        jobs = zip(scans, regroup(batches, [len(positions) for positions in scans]), strict=True)
        for _ in map_in_threads(decide_all, jobs):
            pass


def predict_with_student(
    student: Student, store: PredictionStore, work: Workload, without: tuple[str, ...] = ()
) -> None:
    cohort, batches = work.job.cohort, work.scan_batches()
    missing = {*without, *student.config.optional} - ({*cohort.modalities} - {*without})
    given = [name for name in student.config.modalities if name not in missing]
    for number, positions in enumerate(batches):
        rows = work.rows[positions]
        pixels = cohort_pixels(cohort, rows, given)(np.arange(len(rows)))
        filled = fill_missing(pixels, given, student.config.modalities)
        decisions = student.decide(filled.__getitem__, slice_positions(cohort, rows, student.expects))
        put_decisions(store, positions, decisions)
        work.report(number + 1, len(batches))


def reconstruct_maps(
    method: ReconstructionMethod,
    setting: Setting,
    store: PredictionStore,
    models: Models,
    work: Workload,
    positions: np.ndarray,
) -> None:
    """Median-filtered maps of a comparison method; masks follow from a threshold."""
    job, world, size = work.job, work.job.world, work.job.config.batch
    share, channels = np.array_split(positions, world.count)[world.rank], list(job.channels)
    non_finite = 0
    for start in range(0, len(share), size):
        batch = share[start : start + size]
        rows = work.rows[batch]
        x0 = torch.from_numpy(job.cohort.pixels(rows)).to(job.model.device)
        seeds = slice_seeds(job.cohort.indices[rows], work.seed)
        difference = method.squared_difference(models, x0, seeds, setting)
        maps = difference[:, channels].mean(1).float().cpu().numpy()
        non_finite += int((~np.isfinite(maps).all(axis=(1, 2))).sum())
        store.put(batch, maps=median_filtered(maps))
        work.report(start + len(batch), len(share))
    if total := sum(world.all_gather(non_finite)):  # raised in all processes, so that none waits
        raise EvaluationError(
            f"{total} maps have non-finite values (with {describe_setting(setting)}); train its model longer"
        )


def threshold_maps(store: PredictionStore, threshold: float, world: World) -> None:
    """Masks by one threshold for all slices. A slice is detected if its mask is not empty."""
    if world.is_main:
        count = len(store["maps"])
        for start in range(0, count, CHUNK):
            positions = np.arange(start, min(start + CHUNK, count))
            maps = store["maps"][positions]
            cuts = np.full(len(maps), threshold)
            masks = mask(maps, cuts)
            detected = np.asarray(masks.any(axis=(1, 2)))
            store.put(positions, masks=masks, detected=detected, score=maps.max(axis=(1, 2)), threshold=cuts)
    world.all_gather(None)
