"""Predictions of each kind of method for all slices of a set, shared among processes, into a store."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from anofpdm.calibration.fit import slice_positions
from anofpdm.cohorts.store import Cohort
from anofpdm.errors import EvaluationError, MethodError
from anofpdm.evaluation.comparison.methods import EvidenceMethod, ReconstructionMethod, mean_over_scored
from anofpdm.evaluation.comparison.models import Models
from anofpdm.evaluation.comparison.reconstructions import Setting, describe_setting
from anofpdm.evaluation.comparison.store import PredictionStore
from anofpdm.method.calibration import Calibration
from anofpdm.method.decision import decide
from anofpdm.method.many_slices import EvidenceRequest, gather_evidence, slice_seeds
from anofpdm.method.mask import mask, median_filtered
from anofpdm.options import Signal
from anofpdm.student.model import Student
from anofpdm.student.network import cohort_pixels
from anofpdm.util.distributed import World

CHUNK = 500  # slices thresholded at once
SCANS_BATCH = 60  # slices, at least, in batches of whole scans


@dataclass(frozen=True)
class Workload:
    """Slices that a method is run on, and how."""

    cohort: Cohort
    rows: np.ndarray  # in the cohort's order
    channels: tuple[int, ...]  # the scored ones
    device: torch.device
    batch: int
    seed: int
    world: World
    report: Callable[[int, int], None]  # progress: done, total

    def scan_batches(self) -> list[np.ndarray]:
        """This process's share of positions within `rows`, in whole scans: context needs adjacent slices."""
        return list(self._scan_batches())[self.world.rank :: self.world.count]

    def _scan_batches(self) -> Iterator[np.ndarray]:
        scans = self.cohort.scans[self.rows]
        batch: list[int] = []
        for position in range(len(self.rows)):
            if len(batch) >= SCANS_BATCH and scans[position] != scans[position - 1]:
                yield np.array(batch)
                batch = []
            batch.append(position)
        if batch:
            yield np.array(batch)


def predict_from_evidence(
    methods: dict[str, EvidenceMethod],  # of one encoding
    stores: dict[str, PredictionStore],
    calibrations: Mapping[str, Calibration],  # by method; they differ in strength and what depends on it
    models: Models,
    work: Workload,
) -> None:
    """One pass of the network for all methods. An error in one process is raised in all, so that none waits."""
    batches = work.scan_batches()
    (settings,) = {replace(calibration.settings, signal=Signal.ERROR) for calibration in calibrations.values()}
    strengths = sorted({calibration.strength for calibration in calibrations.values()})
    signals = tuple(sorted({method.signal for method in methods.values()}))
    request = EvidenceRequest(settings, strengths, work.device, work.batch, signals)

    def predict_batch(number: int, positions: np.ndarray) -> None:
        rows = work.rows[positions]
        evidence = gather_evidence(
            models.guided,
            lambda some: work.cohort.pixels(rows[some]),
            slice_seeds(work.cohort.indices[rows], work.seed),
            request,
            lambda _task, done, total, _note="": work.report(
                number * 1000 + int(1000 * done // total), 1000 * len(batches)
            ),
        )
        for name, method in methods.items():
            places = slice_positions(work.cohort, rows)
            decisions = decide(evidence.with_signal(method.signal), calibrations[name], method.decision, places)
            stores[name].put_decisions(positions, decisions)

    error = ""
    try:
        for number, positions in enumerate(batches):
            predict_batch(number, positions)
    except MethodError as raised:
        error = str(raised)
    if errors := [one for one in work.world.all_gather(error) if one]:
        raise MethodError(errors[0])


def predict_with_student(student: Student, store: PredictionStore, work: Workload) -> None:
    batches = work.scan_batches()
    for number, positions in enumerate(batches):
        rows = work.rows[positions]
        pixels = cohort_pixels(work.cohort, rows, student.config.modalities)
        store.put_decisions(positions, student.decide(pixels, slice_positions(work.cohort, rows)))
        work.report(number + 1, len(batches))


def reconstruct_maps(
    method: ReconstructionMethod,
    setting: Setting,
    store: PredictionStore,
    models: Models,
    work: Workload,
    positions: np.ndarray | None = None,  # default: all
) -> None:
    """Median-filtered maps of a comparison method; masks follow from a threshold."""
    positions = np.arange(len(work.rows)) if positions is None else positions
    share = np.array_split(positions, work.world.count)[work.world.rank]
    non_finite = 0
    for start in range(0, len(share), work.batch):
        batch = share[start : start + work.batch]
        rows = work.rows[batch]
        x0 = torch.from_numpy(work.cohort.pixels(rows)).to(work.device)
        seeds = slice_seeds(work.cohort.indices[rows], work.seed)
        difference = method.squared_difference(models, x0, seeds, setting)
        maps = mean_over_scored(difference, work.channels).float().cpu().numpy()
        non_finite += int((~np.isfinite(maps).all(axis=(1, 2))).sum())
        store.put(batch, maps=median_filtered(maps))
        work.report(start + len(batch), len(share))
    if total := sum(work.world.all_gather(non_finite)):  # raised in all processes, so that none waits
        raise EvaluationError(
            f"{total} maps have non-finite values (with {describe_setting(setting)}); train its model longer"
        )


def threshold_maps(store: PredictionStore, threshold: float, world: World) -> None:
    """Masks by one threshold for all slices. A slice is detected if its mask is not empty."""
    if world.is_main:
        for start in range(0, store.count, CHUNK):
            positions = np.arange(start, min(start + CHUNK, store.count))
            maps = store["maps"][positions]
            cuts = np.full(len(maps), threshold)
            masks = mask(maps, cuts)
            detected = np.asarray(masks.any(axis=(1, 2)))
            store.put(positions, masks=masks, detected=detected, score=maps.max(axis=(1, 2)), threshold=cuts)
    world.all_gather(None)
