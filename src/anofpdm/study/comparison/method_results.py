"""What an evaluation stores: predictions until they are scored, and scores. Worker processes import this: no torch."""

import io
import json
import shutil
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from anofpdm.study.comparison.names import Setup
from anofpdm.study.comparison.scores import (
    GroundTruth,
    Predictions,
    Scores,
    score_empty,
    score_predictions,
    without_detector,
)
from anofpdm.study.comparison.slice_lesions import SizeBin
from anofpdm.util.files import write_atomically

WORK = "work"  # scratch space, removed afterwards
Examples = dict[str, np.ndarray]  # "maps" and "masks" of the example slices


@dataclass
class PredictionStore:
    """Memory-mapped arrays [n, ...] in a folder: the maps of ten thousand slices need not fit into memory.

    Several processes may write, each at its own positions.
    """

    folder: Path
    cost: Mapping[str, float] = field(default_factory=dict)  # of one slice

    def __getitem__(self, name: str) -> np.ndarray:
        return np.lib.format.open_memmap(self.folder / f"{name}.npy", mode="r+")

    def put(self, positions: np.ndarray, **values: np.ndarray) -> None:
        for name, value in values.items():
            self[name][positions] = value

    def predictions(self, positions: slice | np.ndarray) -> Predictions:
        names = ("maps", "masks", "detected", "score", "threshold")
        maps, masks, detected, score, threshold = (np.array(self[name][positions]) for name in names)
        return Predictions(maps, masks, detected, score, masks_with_small=maps >= threshold[:, None, None])

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def score_method(
    truth: Path,
    predictions: Mapping[Setup, PredictionStore | None],  # None: nothing is predicted
    results: Mapping[Setup, Path],  # where the scores are saved
    provenance: Mapping[str, str],
    examples: np.ndarray | None,  # positions of slices whose maps and masks are saved as well
    gated: bool,  # in the mixed setup a detector empties the masks of slices that it calls healthy
) -> None:
    """Of one method and seed. The predictions are removed from the disk afterwards."""
    for setup, store in predictions.items():
        shown = {}
        if store is not None and examples is not None:
            shown = {name: np.array(store[name][examples]) for name in ("maps", "masks")}
        save_scores(_score(truth, setup, store, gated), results[setup], provenance, shown)
    for store in predictions.values():
        if store is not None:
            store.remove()


def _score(folder: Path, setup: Setup, store: PredictionStore | None, gated: bool) -> Scores:
    every_slice = GroundTruth.open(folder)
    positions = every_slice.positions(setup)
    truth = every_slice.take(positions)
    if store is None:
        scores = score_empty(truth)
    else:
        predicted = store.predictions(positions)
        scores = score_predictions(predicted.gated() if gated and setup == Setup.MIXED else predicted, truth)
        scores.numbers.update(store.cost)
    return without_detector(scores) if setup == Setup.UNHEALTHY else scores


def save_scores(scores: Scores, path: Path, provenance: Mapping[str, str], examples: Examples) -> None:
    """Slices first, numbers last: a result is complete if its .json exists."""
    path.parent.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    arrays: dict[str, Any] = {**scores.slices, **{f"example_{name}": value for name, value in examples.items()}}
    np.savez_compressed(buffer, **arrays)
    path.with_suffix(".json").unlink(missing_ok=True)
    write_atomically(path.with_suffix(".npz"), buffer.getvalue())
    payload = {**scores.to_dict(), "made_with": dict(provenance)}
    write_atomically(path.with_suffix(".json"), json.dumps(payload, indent=2).encode())


def load_scores(path: Path, provenance: Mapping[str, str]) -> tuple[Scores, Examples] | None:
    """None if missing, incomplete, or made with other models."""
    try:
        payload = json.loads(path.with_suffix(".json").read_text())
        if payload["made_with"] != provenance:
            return None
        with np.load(path.with_suffix(".npz"), allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        slices = {name: value for name, value in arrays.items() if not name.startswith("example_")}
        examples = {name.removeprefix("example_"): arrays[name] for name in arrays.keys() - slices.keys()}
        scores = Scores(
            numbers=payload["numbers"],
            intervals={name: (ends[0], ends[1]) for name, ends in payload["intervals"].items()},
            by_size=[SizeBin(size["above"], size["up_to"], size["count"], size["dice"]) for size in payload["by_size"]],
            by_patient=payload["by_patient"],
            slices=slices,
        )
        return scores, examples
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile, zlib.error):
        return None
