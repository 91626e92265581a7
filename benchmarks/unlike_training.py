"""Which scans are reported as unlike those in training? Scans of every cohort, given to a check fitted on one.

    python benchmarks/unlike_training.py COHORT [COHORT ...] [--split test]

The check (`anofpdm.student.typical`) is fitted on the training split of each cohort, on one modality. Then every
modality of every cohort is given as if it were that one: its own test patients, all patients of the others.
"""

import argparse
from pathlib import Path

import numpy as np

from anofpdm.cohorts import open_cohort
from anofpdm.student.typical import describe_cohort, fit_typical


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cohorts", type=Path, nargs="+")
    parser.add_argument("--split", default="test", help="Of the own cohort.")
    args = parser.parse_args()
    cohorts = {path.name: open_cohort(path) for path in args.cohorts}
    print("| fitted on | given | scans | reported, % |\n| --- | --- | --- | --- |")
    for own, cohort in cohorts.items():
        name = cohort.modalities[0]
        typical = fit_typical(describe_cohort(cohort, cohort.rows("train"), (name,)), (name,))
        if typical is None:
            print(f"| {own} {name} | too few training scans | | |")
            continue
        for other, given in cohorts.items():
            for modality in given.modalities:
                itself = other == own and modality == name
                rows = given.rows(args.split) if itself else np.arange(len(given))
                numbers = describe_cohort(given, rows, (modality,))
                share = np.mean([typical.unusual(one, (name,)) is not None for one in numbers])
                what = f"{other} {modality}" + (f", {args.split} split" if itself else "")
                print(f"| {own} {name} | {what} | {len(numbers)} | {100 * share:.0f} |")


if __name__ == "__main__":
    main()
