"""The ceiling: the student's network trained on lesion masks, beside the student trained on pseudo-labels.

    python benchmarks/ceiling.py COHORT [--model MODEL] [--modalities flair,t2] [--split val] [--patients 5,10,20,40]

What drawn masks would have given. The network, its inputs and its training are those of `anofpdm distill`; the targets
are the masks of the training split, and cut and smallest component are chosen with those of the validation split, by
the mean of unhealthy and mixed DICE. `--model` adds the student of a model. `--patients`: masks of so many training
patients only, drawn at random. This is a measurement: nothing in the package itself can read a mask for training.
"""

import argparse
import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from student_study import SCORES, Drawing, Outputs, Part, Recipe, Smoothed, draw, print_head, score, train

from anofpdm.cli.options import parse_names, resolve_device
from anofpdm.cohorts import open_cohort
from anofpdm.network.predictor import load_trained
from anofpdm.scoring.metrics.bootstrap import patient_bootstrap
from anofpdm.scoring.metrics.pixels import dice
from anofpdm.student.student import load_student
from anofpdm.student.train_student import StudentTrainingConfig
from anofpdm.util.workers import cpu_cores, map_in_threads

CUTS, SMALLEST = (-1.5, -1.0, -0.5, 0.0, 0.5), (0, 5, 10, 20, 40)
SIZES = ("1-50", "51-200", "201-500", "501-1000", "over 1000")


def main() -> None:
    args = arguments().parse_args()
    device, cohort = resolve_device(args.device), open_cohort(args.cohort)
    torch.backends.cudnn.benchmark = True
    training = StudentTrainingConfig(args.steps, seed=args.seed)
    recipe = Recipe(parse_names(args.modalities) or cohort.modalities, training)
    everyone, val, test = (Part(cohort, cohort.rows(split)) for split in ("train", "val", args.split))
    columns = (*SCORES, *SIZES)
    print_head(("trained on", *columns, "unhealthy, 95%", "mixed, 95%"))
    if args.model:
        trained = load_trained(args.model, device)
        student = load_student(args.model, trained.sha256, device)
        assert student is not None, f"{args.model} has no student; run `anofpdm distill`"
        outputs = Outputs.of(student.network, test, val, device)
        report("labels (the student)", outputs, test, Drawing(smallest=student.calibration.smallest), columns)
    counts = [int(word) for word in args.patients.split(",") if word]
    for count in [*counts, None]:
        part = everyone if count is None else some_patients(everyone, count, args.seed)
        targets = np.where(part.truth(), 255, 0).astype(np.uint8)
        network = train(recipe, part, targets, device)
        drawing = best_drawing(Outputs.of(network, val, val, device), val)
        chosen = f"cut {drawing.cut:g}, smallest {drawing.smallest}{', linked' * drawing.linked}"
        name = f"masks of {len(np.unique(part.patients))} patients ({chosen})"
        report(name, Outputs.of(network, test, val, device), test, drawing, columns)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--modalities", default="")
    parser.add_argument("--split", default="val")
    parser.add_argument("--patients", default="")
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    return parser


def some_patients(part: Part, count: int, seed: int) -> Part:
    names = np.random.default_rng(seed).permutation(np.unique(part.patients))[:count]
    return replace(part, rows=part.rows[np.isin(part.patients, names)])


def best_drawing(outputs: Outputs, val: Part) -> Drawing:
    """With masks of the validation split."""
    truth, smoothed = val.truth(), Smoothed.of(outputs, val.positions)
    unhealthy = truth.any(axis=(1, 2))
    settings = itertools.product(CUTS, SMALLEST, (False, True))
    choices = [Drawing(cut, smallest, at_least=False, linked=linked) for cut, smallest, linked in settings]

    def mean_dice(drawing: Drawing) -> float:
        result = smoothed.draw(drawing)
        return float(dice(result.drawn[unhealthy], truth[unhealthy]).mean() + dice(result.masks, truth).mean())

    found = list(map_in_threads(mean_dice, choices, cpu_cores()))
    return choices[int(np.argmax(found))]


def report(name: str, outputs: Outputs, part: Part, drawing: Drawing, columns: tuple[str, ...]) -> None:
    truth, patients = part.truth(), part.patients
    result, unhealthy = draw(outputs, part.positions, drawing), truth.any(axis=(1, 2))
    numbers = score(result, truth, patients)
    intervals = (
        patient_bootstrap(dice(result.drawn, truth)[unhealthy], patients[unhealthy]),
        patient_bootstrap(dice(result.masks, truth), patients),
    )
    ends = " | ".join(f"{100 * low:.1f}-{100 * high:.1f}" for low, high in intervals)
    cells = " | ".join(f"{numbers[column]:.1f}" for column in columns)
    print(f"| {name} | {cells} | {ends} |", flush=True)


if __name__ == "__main__":
    main()
