"""Cost of each method of an evaluation, per slice: network evaluations and milliseconds.

    python benchmarks/methods.py MODEL COHORT SCORES [--with healthy=M1 ...] [--slices 50]

SCORES is the folder of `anofpdm evaluate`; its tuned settings (of the unhealthy setup) and calibrations are used. One
batch of test slices, from slices to masks, without scoring. The first run is a warm-up and not counted; GPU timings are
synchronised. An evaluation is one slice through one network; a classifier evaluation includes its gradient.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from anofpdm.calibration.fit import slice_positions
from anofpdm.cli.evaluate import model_paths
from anofpdm.cli.options import resolve_device
from anofpdm.cohorts import Cohort, open_cohort
from anofpdm.evaluation.comparison.calibrations import load_method_calibration
from anofpdm.evaluation.comparison.methods import (
    METHODS,
    EvidenceMethod,
    ReconstructionMethod,
)
from anofpdm.evaluation.comparison.models import STUDENT_EVALUATIONS, CostMeter, Models, load_models
from anofpdm.evaluation.comparison.results import ResultsFolder
from anofpdm.evaluation.comparison.tuning import Tuned
from anofpdm.method.calibration import Calibration
from anofpdm.method.decision import decide
from anofpdm.method.evidence import concatenate
from anofpdm.method.gather import EvidenceRequest, evidence_batches, slice_seeds
from anofpdm.method.mask import mask, median_filtered
from anofpdm.network.predictor import load_trained
from anofpdm.student.model import Student
from anofpdm.student.network import cohort_pixels
from anofpdm.util.distributed import World

Run = Callable[[Models], object]  # from slices to masks


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
    models = load_models(trained, model_paths(args.others), device, "auto")
    cohort = open_cohort(args.cohort)
    rows = cohort.rows("test")[: args.slices]
    name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
    print(f"{len(rows)} slices, {name}, {trained.predict.precision}, torch {torch.__version__}\n")
    print("| method | evaluations a slice | ms a slice |\n| --- | --- | --- |")
    channels = trained.channels(calibration_options(args.scores)["score"])
    for method, run in Batch(cohort, rows, channels, device).runs(args.scores, models):
        counter = CostMeter(models, World())
        run(counter.models)
        counter.count, start = 0, now(device)
        run(counter.models)
        elapsed = now(device) - start
        count = STUDENT_EVALUATIONS if method == "anofpdm-student" else counter.count / len(rows)
        print(f"| {method} | {count:.0f} | {1000 * elapsed / len(rows):.2f} |", flush=True)


def now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


@dataclass(frozen=True)
class Batch:
    """Slices, from which each method makes masks."""

    cohort: Cohort
    rows: np.ndarray
    channels: tuple[int, ...]  # the scored ones
    device: torch.device

    def runs(self, scores: Path, models: Models) -> Iterator[tuple[str, Run]]:
        """Every method in the folder whose models are given."""
        strength_by = calibration_options(scores)["strength_by"]
        for name, method in METHODS.items():
            if not (scores / "methods" / name).is_dir() or models.missing(method.needs):
                continue
            if isinstance(method, ReconstructionMethod):
                best = json.loads((scores / f"tuned-{name}.json").read_text())["best_first"]["unhealthy"][0]
                yield name, self.reconstruction(method, Tuned(**best))
            elif isinstance(method, EvidenceMethod):
                calibration = load_method_calibration(ResultsFolder(scores), method, strength_by)
                yield name, self.from_evidence(method, calibration)
            elif models.student is not None:
                yield name, self.by_student(models.student)

    def reconstruction(self, method: ReconstructionMethod, tuned: Tuned) -> Run:
        pixels, seeds = self.cohort.pixels(self.rows), slice_seeds(self.cohort.indices[self.rows])

        def run(models: Models) -> np.ndarray:
            x0 = torch.from_numpy(pixels).to(self.device)
            difference = method.squared_difference(models, x0, seeds, tuned.setting)
            maps = median_filtered(difference[:, list(self.channels)].mean(1).float().cpu().numpy())
            return mask(maps, np.full(len(maps), tuned.threshold))

        return run

    def from_evidence(self, method: EvidenceMethod, calibration: Calibration) -> Run:
        pixels, seeds = self.cohort.pixels(self.rows), slice_seeds(self.cohort.indices[self.rows])

        def run(models: Models) -> object:
            request = EvidenceRequest(calibration.settings, [calibration.strength], self.device)
            evidence = concatenate(evidence_batches(models.guided, lambda some: pixels[some], seeds, request))
            return decide(evidence, calibration, method.decision, slice_positions(self.cohort, self.rows))

        return run

    def by_student(self, student: Student) -> Run:
        pixels = cohort_pixels(self.cohort, self.rows, student.config.modalities)(np.arange(len(self.rows)))
        return lambda _: student.decide(lambda some: pixels[some], slice_positions(self.cohort, self.rows))


def calibration_options(scores: Path) -> dict[str, Any]:
    options: dict[str, Any] = json.loads((scores / "settings.json").read_text())["options"]["calibration"]
    return options


if __name__ == "__main__":
    main()
