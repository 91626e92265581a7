"""Which scans does each model report as unlike those in training? Scans of every cohort, given to the check of each.

    python benchmarks/unlike_training.py MODEL=COHORT [MODEL=COHORT ...] [--files MODEL=FOLDER ...] [--split test]

Checks are those of the models' students, as they ship. Each gets the test patients of its own cohort, with every set of
modalities that it accepts; own scans from files (--files), prepared as `anofpdm segment` prepares them; and every
modality of every other cohort, and the other ones of its own, as if it were the modality that the model needs.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from anofpdm.cohorts import Cohort, open_cohort
from anofpdm.cohorts.inputs import find_targets
from anofpdm.models.registry import model_folder
from anofpdm.scans import read_scan, scan_slices
from anofpdm.student.model import load_student
from anofpdm.student.typical import TypicalScans, describe_cohort, describe_scan
from anofpdm.util.sets import subsets


@dataclass(frozen=True)
class Check:
    name: str
    typical: TypicalScans
    optional: tuple[str, ...]
    size: int  # of slices

    @property
    def needed(self) -> str:
        return next(name for name in self.typical.modalities if name not in self.optional)

    @property
    def accepted(self) -> list[tuple[str, ...]]:
        """Sets of modalities."""
        modalities = self.typical.modalities
        return [tuple(name for name in modalities if name not in missing) for missing in subsets(self.optional)]

    def report(self, what: str, numbers: Sequence[np.ndarray], given: tuple[str, ...]) -> None:
        limit = self.typical.limit_for(given)
        distances = np.array([self.typical.distance(one, given) for one in numbers])
        spread = f"{distances.min():.2f} to {distances.max():.2f}"
        share = 100 * np.mean(distances > limit)
        print(f"| {self.name} | {what} | {len(distances)} | {spread} | {limit:.2f} | {share:.1f} |", flush=True)


def main() -> None:
    args = parse_arguments()
    cohorts = {name: open_cohort(Path(path)) for name, path in args.cohorts}
    files = dict(args.files)
    print("| check of | given | scans | distance | limit | reported, % |\n| --- | --- | --- | --- | --- | --- |")
    for name, cohort in cohorts.items():
        check = load_check(name)
        report_own(check, cohort, args.split)
        if name in files:
            report_files(check, files[name])
        for other, given in cohorts.items():
            for modality in given.modalities:
                if (other, modality) != (name, check.needed):
                    numbers = list(describe_cohort(given, np.arange(len(given)), (modality,)))
                    check.report(f"{other}'s {modality} as {check.needed}", numbers, (check.needed,))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cohorts", nargs="+", type=read_pair, metavar="MODEL=COHORT")
    parser.add_argument("--files", nargs="+", type=read_pair, default=(), metavar="MODEL=FOLDER")
    parser.add_argument("--split", default="test", help="of the own cohort")
    return parser.parse_args()


def read_pair(text: str) -> tuple[str, str]:
    name, _, folder = text.partition("=")
    return name, folder


def load_check(name: str) -> Check:
    student = load_student(model_folder(name), None, torch.device("cpu"))
    assert student is not None, f"{name} has no student"
    assert student.typical is not None, f"the student of {name} has no check"
    return Check(name, student.typical, student.config.optional, student.config.size)


def report_own(check: Check, cohort: Cohort, split: str) -> None:
    for given in check.accepted:
        what = f"own {split} patients, {' '.join(given)}"
        check.report(what, list(describe_cohort(cohort, cohort.rows(split), given)), given)


def report_files(check: Check, folder: str) -> None:
    scans = list(read_pixels(check, folder))
    for given in check.accepted:
        channels = [check.typical.modalities.index(name) for name in given]
        numbers = [describe_scan(pixels[:, channels]) for pixels in scans]
        check.report(f"own scans from files, {' '.join(given)}", numbers, given)


def read_pixels(check: Check, folder: str) -> Iterator[np.ndarray]:
    for target in find_targets([folder], check.typical.modalities):
        with target.open() as subject:
            yield scan_slices(read_scan(subject.images), check.size).pixels


if __name__ == "__main__":
    main()
