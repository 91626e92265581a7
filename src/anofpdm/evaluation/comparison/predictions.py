"""What a method says of every slice of a set, kept on disk: maps of ten thousand slices need not fit into memory."""

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from anofpdm.calibration.fit import slice_positions
from anofpdm.cohorts.store import Cohort
from anofpdm.errors import EvaluationError, MethodError
from anofpdm.evaluation.comparison.methods import FromEvidence, Models, Reconstruction, Setting, scored_mean
from anofpdm.method.calibration import Calibration
from anofpdm.method.decision import Decisions, decide
from anofpdm.method.many_slices import signals_of, slice_seeds
from anofpdm.method.mask import mask, median_filtered
from anofpdm.student.inputs import cohort_pixels
from anofpdm.student.model import Student
from anofpdm.util.distributed import World
from anofpdm.util.files import translate_write_errors

Listener = Callable[[int, int], None]  # done, in all


@dataclass(frozen=True)
class Slices:
    """Rows of a cohort that a method is run on, and how."""

    cohort: Cohort
    rows: np.ndarray  # in the cohort's order
    channels: tuple[int, ...]  # the scored ones
    device: torch.device
    batch: int
    seed: int = 0

    def batches_of_scans(self, least: int = 60) -> Iterator[np.ndarray]:
        """Positions within `rows`: whole scans, so that slices find their neighbours, at least so many slices."""
        scans = self.cohort.scans[self.rows]
        waiting: list[int] = []
        for position in range(len(self.rows)):
            if len(waiting) >= least and scans[position] != scans[position - 1]:
                yield np.array(waiting)
                waiting = []
            waiting.append(position)
        if waiting:
            yield np.array(waiting)

    def share(self, world: World) -> list[np.ndarray]:
        return list(self.batches_of_scans())[world.rank :: world.count]


class Store:
    """Arrays [n, ...] in a folder, filled by one or several processes, each at its own positions."""

    def __init__(self, folder: Path, count: int, side: int, *, create: bool):
        self.folder, self.count, self.side = folder, count, side
        image = (side, side)
        shapes: dict[str, tuple[tuple[int, ...], type]] = {
            "maps": (image, np.float32),
            "drawn": (image, np.bool_),
            "detected": ((), np.bool_),
            "score": ((), np.float64),
            "cut": ((), np.float64),
        }
        if create:
            with translate_write_errors(folder):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
        self.arrays: dict[str, np.ndarray] = {}
        for name, (shape, dtype) in shapes.items():
            path, whole = folder / f"{name}.npy", (count, *shape)
            if create:
                self.arrays[name] = _new_array(path, dtype, whole)
            else:
                self.arrays[name] = np.lib.format.open_memmap(path, mode="r+")

    def put(self, positions: np.ndarray, **values: np.ndarray) -> None:
        for name, value in values.items():
            self.arrays[name][positions] = value

    def keep(self, positions: np.ndarray, found: Decisions) -> None:
        self.put(
            positions,
            maps=found.maps,
            drawn=found.drawn,
            detected=found.detected,
            score=found.score,
            cut=found.threshold,
        )

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def remove(self) -> None:
        self.arrays.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


def _new_array(path: Path, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    """Its room is taken at once: a mapped file that finds the disk full later on kills the process without a word."""
    with translate_write_errors(path):
        array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
        if hasattr(os, "posix_fallocate"):
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        return array


def shared_store(folder: Path, count: int, side: int, world: World) -> Store:
    """One store for all processes: the first makes it, the others open it."""
    store = Store(folder, count, side, create=True) if world.is_main else None
    world.all_gather(None)
    return store or Store(folder, count, side, create=False)


def decide_all(
    methods: dict[str, FromEvidence],  # of one encoding
    stores: dict[str, Store],
    calibrations: Mapping[str, Calibration],  # by method; they differ in strength and what follows from it
    models: Models,
    slices: Slices,
    world: World,
    on_progress: Listener,
) -> None:
    """One pass of the network for every signal and every reading of it."""
    share = slices.share(world)
    (settings,) = {replace(calibration.settings, signal="error") for calibration in calibrations.values()}

    def decide_some(number: int, positions: np.ndarray) -> None:
        rows = slices.rows[positions]
        evidence = signals_of(
            models.guided,
            lambda some, rows=rows: slices.cohort.pixels(rows[some]),  # type: ignore[misc]
            slice_seeds(slices.cohort.indices[rows], slices.seed),
            sorted({method.signal for method in methods.values()}),
            settings=settings,
            strengths=sorted({calibration.strength for calibration in calibrations.values()}),
            device=slices.device,
            batch=slices.batch,
            on_progress=lambda done, total, number=number: on_progress(  # type: ignore[misc]
                number * 1000 + 1000 * done // total, 1000 * len(share)
            ),
        )
        for name, method in methods.items():
            places = slice_positions(slices.cohort, rows)
            found = decide(evidence[method.signal], calibrations[name], method.choices, places)
            stores[name].keep(positions, found)

    problem = ""
    try:
        for number, positions in enumerate(share):
            decide_some(number, positions)
    except MethodError as found:
        problem = str(found)
    if problems := [one for one in world.all_gather(problem) if one]:  # every process hears it, so that none waits
        raise MethodError(problems[0])


def student_all(student: Student, store: Store, slices: Slices, world: World, on_progress: Listener) -> None:
    share = slices.share(world)
    for number, positions in enumerate(share):
        rows = slices.rows[positions]
        pixels = cohort_pixels(slices.cohort, rows, student.config.modalities)
        store.keep(positions, student.decide(pixels, slice_positions(slices.cohort, rows)))
        on_progress(number + 1, len(share))


def map_all(
    method: Reconstruction,
    setting: Setting,
    store: Store,
    models: Models,
    slices: Slices,
    world: World,
    on_progress: Listener,
    wanted: np.ndarray | None = None,  # positions; none given: all
) -> None:
    """Filtered maps of a comparison method; its masks follow from a threshold."""
    wanted = np.arange(len(slices.rows)) if wanted is None else wanted
    share = np.array_split(wanted, world.count)[world.rank]
    broken = 0
    for start in range(0, len(share), slices.batch):
        positions = share[start : start + slices.batch]
        rows = slices.rows[positions]
        x0 = torch.from_numpy(slices.cohort.pixels(rows)).to(slices.device)
        seeds = slice_seeds(slices.cohort.indices[rows], slices.seed)
        difference = method.squared_difference(models, x0, seeds, setting)
        raw = scored_mean(difference, slices.channels).float().cpu().numpy()
        broken += int((~np.isfinite(raw).all(axis=(1, 2))).sum())
        store.put(positions, maps=median_filtered(raw))
        on_progress(start + len(positions), len(share))
    if total := sum(world.all_gather(broken)):  # every process hears it, so that none waits for another
        words = ", ".join(f"{key} {value:g}" for key, value in setting.items())
        raise EvaluationError(f"{total} of its maps are not numbers (with {words}); is its model trained long enough?")


def draw_all(store: Store, threshold: float, world: World, chunk: int = 500) -> None:
    """Masks by one threshold for all slices; a slice is detected where its mask is not empty."""
    if world.is_main:
        for start in range(0, store.count, chunk):
            positions = np.arange(start, min(start + chunk, store.count))
            maps = store["maps"][positions]
            drawn = mask(maps, np.full(len(maps), threshold))
            detected, cut = np.asarray(drawn.any(axis=(1, 2))), np.full(len(maps), threshold)
            store.put(positions, drawn=drawn, detected=detected, score=maps.max(axis=(1, 2)), cut=cut)
    world.all_gather(None)
