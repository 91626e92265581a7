"""Fit a part of a student again after the code that fits it has changed; its weights stay as they are.

    python benchmarks/refit.py detector|typical MODEL COHORT

MODEL: the name of a model that ships, or a folder with a student; it was trained on the training split of COHORT.
`detector`: as `anofpdm distill` does after training, from image-level labels of the validation split. `typical`: the
check for scans unlike those in training. The hash of the student changes, because it covers both.
"""

import argparse
from pathlib import Path
from typing import Any

import torch

from anofpdm.calibration.fit_calibration import slice_positions
from anofpdm.cohorts import Cohort, open_cohort
from anofpdm.models.registry import model_folder
from anofpdm.network.checkpoint import load_model, save_model
from anofpdm.student.fit_detector import fit_student_calibration
from anofpdm.student.student import FOLDER, load_student
from anofpdm.student.student_network import cohort_pixels
from anofpdm.student.targets import HASHED
from anofpdm.student.typical import describe_cohort, fit_typical


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("detector", "typical"))
    parser.add_argument("model")
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    refit(args.part, model_folder(args.model), open_cohort(args.cohort), torch.device(args.device))


def refit(part: str, model: Path, cohort: Cohort, device: torch.device) -> None:
    folder = model / FOLDER
    weights, payload, before = load_model(folder)
    if payload["distillation"]["cohort"] != {name: getattr(cohort.manifest, name) for name in HASHED}:
        raise SystemExit(f"{folder}: was trained on another cohort")
    fitted = fit_detector(model, cohort, device) if part == "detector" else fit_check(payload["network"], cohort)
    print(f"hash of the student: {before} -> {save_model(folder, weights, {**payload, **fitted})}")


def fit_detector(model: Path, cohort: Cohort, device: torch.device) -> dict[str, Any]:
    student, rows = load_student(model, None, device), cohort.rows("val")
    assert student is not None
    calibration = fit_student_calibration(
        student.network,
        cohort_pixels(cohort, rows, student.config.modalities),
        cohort.labels[rows],
        cohort.patients[rows],
        slice_positions(cohort, rows),
        device,
        cohort.suspected[rows],
    )
    print(f"accuracy {calibration.accuracy:.4f}, AUC {calibration.auc:.4f}, by {calibration.detect_by}")
    return {"calibration": calibration.to_dict()}


def fit_check(network: dict[str, Any], cohort: Cohort) -> dict[str, Any]:
    modalities, optional = (tuple(network.get(key, ())) for key in ("modalities", "optional"))
    typical = fit_typical(describe_cohort(cohort, cohort.rows("train"), modalities), modalities, optional)
    if typical is None:
        raise SystemExit("too few training scans for a check")
    return {"typical": typical.to_dict()}


if __name__ == "__main__":
    main()
