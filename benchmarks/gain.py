"""What a method gains in one evaluation over the same or another method in another, on the same slices.

    python benchmarks/gain.py --of SCORES [...] --over SCORES [...] [--method anofpdm-student] [--than NAME]

SCORES are folders of `anofpdm evaluate`; of each the first noise seed is read. Several on one side, of models trained
several times, count as their mean. As in claims.py: 95% intervals from drawing patients with replacement, held where
they lie above 0, not held below.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from claims import Slices, in_words

from anofpdm.evaluation.metrics.bootstrap import patient_bootstrap


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", type=Path, nargs="+", required=True)
    parser.add_argument("--over", type=Path, nargs="+", required=True)
    parser.add_argument("--method", default="anofpdm-student")
    parser.add_argument("--than", help="the other method, where it is another")
    args = parser.parse_args()
    ours, others = ([Slices.read(folder / "slices.csv") for folder in some] for some in (args.of, args.over))
    print("| setup | DICE | over | gain | |\n| --- | --- | --- | --- | --- |")
    for setup in ("unhealthy", "mixed"):
        if any(one.places.get(setup) != ours[0].places.get(setup) for one in (*ours, *others)):
            sys.exit(f"gain: the folders are of other {setup} slices")
        dice = mean_dice(ours, args.method, setup), mean_dice(others, args.than or args.method, setup)
        print(compared(setup, *dice, ours[0].patients(setup)))


def mean_dice(some: Sequence[Slices], method: str, setup: str) -> np.ndarray:
    """DICE of each slice, the mean over evaluations."""
    if any((method, setup) not in one.dice for one in some):
        sys.exit(f"gain: {method} was not measured on {setup} slices in every folder")
    return np.mean([one.dice[method, setup] for one in some], axis=0)


def compared(setup: str, dice: np.ndarray, before: np.ndarray, patients: np.ndarray) -> str:
    gain = dice - before
    found = in_words(float(gain.mean()), *patient_bootstrap(gain, patients))
    return f"| {setup} | {100 * dice.mean():.1f} | {100 * before.mean():.1f} | {found} |"


if __name__ == "__main__":
    main()
