"""Is one half the right cut of a student's probabilities? Its masks above several cuts, scored on the validation split.

    python benchmarks/cuts.py MODEL COHORT [--cuts 1,0,-1,-2]

Cuts are logits: 0 is a probability of one half. Columns as in `benchmarks/ceiling.py`.
"""

import argparse
import sys
from pathlib import Path

import torch
from student_study import SCORES, Drawing, Outputs, Part, Smoothed, print_head, print_row, score

from anofpdm.cohorts import open_cohort
from anofpdm.segment.model import load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--cuts", default="1,0,-1,-2")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    student, cohort = load(args.model, args.device).student, open_cohort(args.cohort)
    if student is None:
        sys.exit(f"{args.model} has no student")
    part = Part(cohort, cohort.rows("val"))
    smoothed = Smoothed.of(Outputs.of(student.network, part, part, student.device), part.positions)
    print_head(("cut", *SCORES))
    for cut in map(float, args.cuts.split(",")):
        print_row(f"{cut:g}", score(smoothed.draw(Drawing(cut=cut)), part.truth(), part.patients), SCORES)


if __name__ == "__main__":
    main()
