"""Predictions on disk: the maps of ten thousand slices need not fit into memory."""

import os
import shutil
from pathlib import Path

import numpy as np

from anofpdm.method.decision import Decisions
from anofpdm.util.distributed import World
from anofpdm.util.files import translate_write_errors


class PredictionStore:
    """Memory-mapped arrays [n, ...] in a folder. Several processes may write, each at its own positions."""

    def __init__(self, folder: Path, count: int, side: int, *, create: bool):
        self.folder, self.count = folder, count
        image = (side, side)
        shapes: dict[str, tuple[tuple[int, ...], type]] = {
            "maps": (image, np.float32),
            "masks": (image, np.bool_),  # before the detector
            "detected": ((), np.bool_),
            "score": ((), np.float64),
            "threshold": ((), np.float64),
        }
        if create:
            with translate_write_errors(folder):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir(parents=True)
        self.arrays: dict[str, np.ndarray] = {}
        for name, (shape, dtype) in shapes.items():
            path = folder / f"{name}.npy"
            if create:
                self.arrays[name] = _new_array(path, dtype, (count, *shape))
            else:
                self.arrays[name] = np.lib.format.open_memmap(path, mode="r+")

    def put(self, positions: np.ndarray, **values: np.ndarray) -> None:
        for name, value in values.items():
            self.arrays[name][positions] = value

    def put_decisions(self, positions: np.ndarray, decisions: Decisions) -> None:
        self.put(
            positions,
            maps=decisions.maps,
            masks=decisions.drawn,
            detected=decisions.detected,
            score=decisions.score,
            threshold=decisions.threshold,
        )

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def remove(self) -> None:
        self.arrays.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


def _new_array(path: Path, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    """Disk space is allocated at once: a full disk under a memory map kills the process without a message."""
    with translate_write_errors(path):
        array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
        if hasattr(os, "posix_fallocate"):
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
        return array


def shared_store(folder: Path, count: int, side: int, world: World) -> PredictionStore:
    """One store for all processes: the main one creates it, the others open it."""
    store = PredictionStore(folder, count, side, create=True) if world.is_main else None
    world.all_gather(None)
    return store or PredictionStore(folder, count, side, create=False)
