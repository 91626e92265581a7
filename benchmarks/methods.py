"""What each method of an evaluation costs a slice, alone on the machine: network evaluations and milliseconds.

    python benchmarks/methods.py MODEL COHORT SCORES [--with healthy=M1 ...] [--slices 50]

SCORES is the folder of `anofpdm evaluate`: its tuned settings (of the unhealthy setup) and calibrations are used. One
batch of test slices; a first run warms up and is not counted; on a GPU the clock waits for it. Maps and masks are made,
nothing is scored. An evaluation is one slice through one network; through a classifier it goes forth and back.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anofpdm.calibration.fit import slice_positions
from anofpdm.cli.evaluate import models_of
from anofpdm.cli.options import resolve_device
from anofpdm.cohorts import Cohort, open_cohort
from anofpdm.evaluation.comparison.methods import (
    METHODS,
    FromEvidence,
    FromStudent,
    Method,
    Models,
    Reconstruction,
    missing_models,
    scored_mean,
)
from anofpdm.evaluation.comparison.protocol import calibrated_signal, calibration_name
from anofpdm.method.calibration import Calibration, from_json
from anofpdm.method.decision import decide
from anofpdm.method.many_slices import evidence_of, slice_seeds
from anofpdm.method.mask import mask, median_filtered
from anofpdm.network.predictor import load_trained
from anofpdm.student.inputs import channel_indices

OF_STUDENT = 2  # of its own small network: the slice, and its mirror image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("cohort", type=Path)
    parser.add_argument("scores", type=Path)
    parser.add_argument("--with", dest="others", action="append", default=[])
    parser.add_argument("--slices", type=int, default=50)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    device = resolve_device(args.device)
    trained = load_trained(args.model, device)
    models, _ = models_of(trained, args.others, device, "auto")
    cohort = open_cohort(args.cohort)
    rows = cohort.rows("test")[: args.slices]
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"{len(rows)} slices, {name}, {trained.predict.precision}, torch {torch.__version__}\n")
    print("| method | evaluations a slice | ms a slice |\n| --- | --- | --- |")
    channels = trained.channels(settings_of(args.scores)["score"])
    for method, run in runs(args.scores, models, cohort, rows, channels, device):
        watch = Counter(models)
        run(watch.models)
        watch.count, start = 0, now(device)
        run(watch.models)
        elapsed = now(device) - start
        count = OF_STUDENT if method == "anofpdm-student" else watch.count / len(rows)
        print(f"| {method} | {count:.0f} | {1000 * elapsed / len(rows):.2f} |", flush=True)


def now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


class Counter:
    """The same networks, counted."""

    def __init__(self, models: Models):
        self.count = 0
        wrapped = {name: self._counted(ask) for name, ask in vars(models).items() if callable(ask)}
        self.models = replace(models, **wrapped)  # type: ignore[arg-type]

    def _counted(self, ask: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def counted(x: Tensor, *rest: Any) -> Tensor:
            self.count += len(x)
            return ask(x, *rest)

        return counted


def runs(
    scores: Path, models: Models, cohort: Cohort, rows: np.ndarray, channels: Sequence[int], device: torch.device
) -> Iterator[tuple[str, Callable[[Models], object]]]:
    """Each method that the folder has, from slices to masks."""
    pixels = cohort.pixels(rows)
    seeds = slice_seeds(cohort.indices[rows])

    def comparison(method: Reconstruction, tuned: dict[str, Any]) -> Callable[[Models], object]:
        def run(asked: Models) -> np.ndarray:
            x0 = torch.from_numpy(pixels).to(device)
            difference = method.squared_difference(asked, x0, seeds, tuned["setting"])
            maps = median_filtered(scored_mean(difference, channels).float().cpu().numpy())
            return mask(maps, np.full(len(maps), tuned["threshold"]))

        return run

    def reading(method: FromEvidence, calibration: Calibration) -> Callable[[Models], object]:
        def run(asked: Models) -> object:
            evidence = evidence_of(
                asked.guided,
                lambda some: pixels[some],
                seeds,
                settings=calibration.settings,
                strengths=[calibration.strength],
                device=device,
            )
            return decide(evidence, calibration, method.choices, slice_positions(cohort, rows))

        return run

    def student(_asked: Models) -> object:
        assert models.student is not None
        wanted = channel_indices(cohort.modalities, models.student.config.modalities)
        return models.student.decide(lambda some: pixels[some][:, wanted], slice_positions(cohort, rows))

    for name, method in METHODS.items():
        if not (scores / "methods" / name).is_dir() or missing_models(method, models):
            continue
        if isinstance(method, Reconstruction):
            best = json.loads((scores / f"tuned-{name}.json").read_text())["best_first"]["unhealthy"][0]
            yield name, comparison(method, best)
        elif isinstance(method, FromEvidence):
            yield name, reading(method, calibration_of(scores, method))
        elif isinstance(method, FromStudent) and models.student is not None:
            yield name, student


def calibration_of(scores: Path, method: Method) -> Calibration:
    assert isinstance(method, FromEvidence)
    chosen_by = "cosine" if method.of_the_paper else settings_of(scores)["strength_by"]
    path = scores / calibration_name(method.encoding, chosen_by, calibrated_signal(method))
    return from_json(path.read_text(), str(path)).for_signal(method.signal)


def settings_of(scores: Path) -> dict[str, Any]:
    """How it was calibrated."""
    found: dict[str, Any] = json.loads((scores / "settings.json").read_text())["options"]["calibration"]
    return found


if __name__ == "__main__":
    main()
