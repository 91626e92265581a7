"""How many image-level labels are enough? Models trained with fewer or worse ones, scored on the validation split.

    python benchmarks/label_studies.py run COHORT --out FOLDER [--score flair,t2] [--steps 1000] [--jobs 2]
    python benchmarks/label_studies.py show glioma=FOLDER ARC=FOLDER [--out labels-needed.svg]

run: for each study a cohort whose labels benchmarks/labels.py changed, a diffusion model, its calibration, its student
and the student's scores. `--jobs` commands run at a time; re-run the same command to resume (with other steps or
another preset, in a new FOLDER). FOLDER/results.json has the scores. show: a table and a figure of some of them.
"""

import argparse
import html
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
from comparison import Task, at_least_one
from comparison import run as run_tasks
from plot import COLOURS, svg

from anofpdm.cohorts import open_cohort
from anofpdm.labels import NULL
from anofpdm.network.checkpoint import STATE

STUDIES = {
    "all slices": (),
    "50% of training slices": ("--share", "0.5"),
    "10% of training slices": ("--share", "0.1"),
    "2% of training slices": ("--share", "0.02"),
    "3 slices per training scan": ("--per-scan", "3"),
    "1 slice per training scan": ("--per-scan", "1"),
    "every 5th training slice": ("--every", "5"),
    "every 10th training slice": ("--every", "10"),
    "every 5th, filled between equal labels": ("--every", "5", "--fill", "20"),
    "every 10th, filled between equal labels": ("--every", "10", "--fill", "20"),
    "5% of labels wrong": ("--wrong", "0.05"),
    "10% of labels wrong": ("--wrong", "0.1"),
    "5% wrong, isolated ones dropped": ("--wrong", "0.05", "--drop-isolated"),
    "10% wrong, isolated ones dropped": ("--wrong", "0.1", "--drop-isolated"),
    "lesions below 50 pixels overlooked": ("--small", "50"),
    "whole scans": ("--scans", "0"),
    "whole scans, 1 slice of each": ("--scans", "1"),
    "whole scans, 3 slices of each": ("--scans", "3"),
}
LABELS = Path(__file__).with_name("labels.py")
STUDENT = "anofpdm-student"
LEFT, TOP, WIDTH, ROW, GAP = 250, 50, 260, 24, 30


@dataclass(frozen=True)
class Score:
    """Of the student of one study."""

    study: str
    labelled: int  # training slices
    slices: int  # in the training split
    unhealthy: tuple[float, float, float]  # DICE, and its 95% interval, in percent
    mixed: tuple[float, float, float]
    accuracy: float


def main() -> None:
    args = arguments().parse_args()
    if args.command == "run":
        run(args)
    else:
        show({name: read(Path(folder)) for name, folder in (word.split("=", 1) for word in args.folders)}, args.out)


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run")
    one.add_argument("cohort", type=Path)
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--studies", default=";".join(STUDIES), help="names, separated by semicolons; default: all")
    one.add_argument("--score", default="", help="modalities to score")
    one.add_argument("--preset", default="small")
    one.add_argument("--steps", default="1000")
    one.add_argument("--student-steps", default="1000")
    one.add_argument("--jobs", type=at_least_one, default=1)
    one.add_argument("--device", default="auto")
    other = commands.add_parser("show")
    other.add_argument("folders", nargs="+", metavar="NAME=FOLDER")
    other.add_argument("--out", type=Path)
    return parser


# ---- run -------------------------------------------------------------------------------------------------------------


def run(args: argparse.Namespace) -> None:
    studies = args.studies.split(";")
    if unknown := [study for study in studies if study not in STUDIES]:
        sys.exit(f"no study is named {unknown[0]!r}; known are {'; '.join(STUDIES)}")
    for study in studies:
        make_cohort(study, args)
    failed = run_tasks([task for study in studies for task in tasks_of(study, args)], args.out, args.jobs)
    scores = [score_of(study, args) for study in STUDIES if (scores_of(study, args) / "results.json").is_file()]
    (args.out / "results.json").write_text(json.dumps([asdict(score) for score in scores], indent=1))
    if failed:
        sys.exit(f"not done: {', '.join(failed)}; see {args.out / 'logs'}, and run this again")
    print_table(scores)


def short(study: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in study)


def cohort_of(study: str, args: argparse.Namespace) -> Path:
    return args.out / f"{short(study)}-cohort" if STUDIES[study] else args.cohort


def scores_of(study: str, args: argparse.Namespace) -> Path:
    return Path(args.out / f"{short(study)}-scores")


def make_cohort(study: str, args: argparse.Namespace) -> None:
    args.out.mkdir(parents=True, exist_ok=True)
    cohort = cohort_of(study, args)
    if not cohort.is_dir():
        subprocess.run([sys.executable, str(LABELS), str(args.cohort), str(cohort), *STUDIES[study]], check=True)


def tasks_of(study: str, args: argparse.Namespace) -> list[Task]:
    """Train, calibrate, distill and evaluate, each after the one before."""
    name, cohort, model = short(study), cohort_of(study, args), args.out / short(study)
    score = ("--score", args.score) if args.score else ()
    how = ("--preset", args.preset, "--learning-rate", "2e-4", "--seed", 0)
    words: dict[str, Sequence[object]] = {
        "train": ("train", cohort, "--out", model, "--steps", args.steps),
        "calibrate": ("calibrate", model, cohort, *score),
        "distill": ("distill", model, cohort, "--steps", args.student_steps, "--seed", 0),
        "evaluate": ("evaluate", model, args.cohort, "--split", "val", "--seeds", 1, "--method", STUDENT, *score,
                     "--out", scores_of(study, args)),
    }  # fmt: skip

    def command(stage: str) -> list[str]:
        more = (("--resume",) if (model / STATE).is_file() else how) if stage == "train" else ()
        return [*map(str, (*words[stage], *more)), "--device", args.device]

    stages = list(words)
    before = dict(zip(stages[1:], stages, strict=False))
    return [
        Task(f"{name}-{stage}", (f"{name}-{before[stage]}",) if stage in before else (), partial(command, stage))
        for stage in stages
    ]


def score_of(study: str, args: argparse.Namespace) -> Score:
    cohort = open_cohort(cohort_of(study, args))
    train = cohort.rows("train")
    results = json.loads((scores_of(study, args) / "results.json").read_text())["methods"][STUDENT]

    def dice(setup: str) -> tuple[float, float, float]:
        first = results[setup]["seeds"][0]
        low, high = first["intervals"]["dice"]
        return 100 * first["numbers"]["dice"], 100 * low, 100 * high

    accuracy = 100 * results["mixed"]["seeds"][0]["numbers"]["accuracy"]
    labelled = int(np.count_nonzero(cohort.labels[train] != NULL))
    return Score(study, labelled, len(train), dice("unhealthy"), dice("mixed"), accuracy)


# ---- show ------------------------------------------------------------------------------------------------------------


def read(folder: Path) -> list[Score]:
    return [
        Score(**{**one, "unhealthy": tuple(one["unhealthy"]), "mixed": tuple(one["mixed"])})
        for one in json.loads((folder / "results.json").read_text())
    ]


def print_table(scores: Sequence[Score]) -> None:
    print("| labels | labelled training slices | unhealthy DICE | mixed DICE | accuracy |")
    print("| --- | --- | --- | --- | --- |")
    for one in scores:
        unhealthy, mixed = (f"{dice:.1f} ({low:.1f}-{high:.1f})" for dice, low, high in (one.unhealthy, one.mixed))
        print(f"| {one.study} | {one.labelled} of {one.slices} | {unhealthy} | {mixed} | {one.accuracy:.1f} |")


def show(cohorts: dict[str, list[Score]], out: Path | None) -> None:
    for name, scores in cohorts.items():
        print(f"**{name}**\n")
        print_table(scores)
        print()
    if out:
        out.write_text(figure(cohorts))


def figure(cohorts: dict[str, list[Score]]) -> str:
    """Unhealthy DICE with its interval, a row for each study, a column for each cohort."""
    studies = [study for study in STUDIES if any(one.study == study for scores in cohorts.values() for one in scores)]
    parts = [
        f'<text x="{LEFT - 12}" y="{TOP + ROW * row + 16}" text-anchor="end">{html.escape(study)}</text>'
        for row, study in enumerate(studies)
    ]
    for column, (name, scores) in enumerate(cohorts.items()):
        parts += column_of(name, scores, studies, LEFT + column * (WIDTH + GAP))
    wide, high = LEFT + len(cohorts) * (WIDTH + GAP), TOP + ROW * len(studies) + 40
    return svg(parts, wide, high)


def column_of(name: str, scores: Sequence[Score], studies: Sequence[str], left: float) -> list[str]:
    def x(dice: float) -> float:
        return left + WIDTH * dice / 100

    bottom = TOP + ROW * len(studies)
    parts = [f'<text x="{x(50)}" y="{TOP - 24}" text-anchor="middle">{html.escape(name)}, unhealthy DICE</text>']
    for tick in range(0, 101, 20):
        parts.append(f'<path d="M{x(tick)} {TOP}V{bottom}" stroke="#ddd"/>')
        parts.append(f'<text x="{x(tick)}" y="{bottom + 18}" text-anchor="middle">{tick}</text>')
    for one in scores:
        y, (dice, low, high) = TOP + ROW * studies.index(one.study) + 12, one.unhealthy
        colour = COLOURS[1] if not STUDIES[one.study] else COLOURS[0]
        parts.append(f'<path d="M{x(low):.1f} {y}H{x(high):.1f}" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<circle cx="{x(dice):.1f}" cy="{y}" r="4" fill="{colour}"/>')
    return parts


if __name__ == "__main__":
    main()
