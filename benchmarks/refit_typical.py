"""Fit a student's check for scans unlike those in training again, after its numbers have changed.

    python benchmarks/refit_typical.py MODEL COHORT

MODEL: a folder with a student, trained on the training split of COHORT; its weights and calibration stay as they are.
The hash of the student changes, because it covers the check too.
"""

import argparse
from pathlib import Path
from typing import Any

from torch import Tensor

from anofpdm.cohorts import Cohort, open_cohort
from anofpdm.network.checkpoint import load_model, save_model
from anofpdm.student.model import FOLDER
from anofpdm.student.targets import HASHED
from anofpdm.student.typical import describe_cohort, fit_typical


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("cohort", type=Path)
    args = parser.parse_args()
    before, after = refit(args.model / FOLDER, open_cohort(args.cohort))
    print(f"hash of the student: {before} -> {after}")


def refit(folder: Path, cohort: Cohort) -> tuple[str, str]:
    """The student's hash before and after."""
    weights, payload, before = load_of_cohort(folder, cohort)
    modalities, optional = (tuple(payload["network"].get(key, ())) for key in ("modalities", "optional"))
    typical = fit_typical(describe_cohort(cohort, cohort.rows("train"), modalities), modalities, optional)
    if typical is None:
        raise SystemExit(f"{folder}: too few training scans for a check")
    return before, save_model(folder, weights, {**payload, "typical": typical.to_dict()})


def load_of_cohort(folder: Path, cohort: Cohort) -> tuple[dict[str, Tensor], dict[str, Any], str]:
    """As `load_model`, of a student that was trained on this cohort."""
    weights, payload, digest = load_model(folder)
    if payload["distillation"]["cohort"] != {name: cohort.manifest.get(name) for name in HASHED}:
        raise SystemExit(f"{folder}: was trained on another cohort")
    return weights, payload, digest


if __name__ == "__main__":
    main()
