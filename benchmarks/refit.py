"""Fit a part of a student again after the code that fits it has changed; its weights stay as they are.

    python benchmarks/refit.py detector|typical MODEL COHORT

MODEL: the name of a model that ships, or a folder with a student; it was trained on the training split of COHORT.
`detector`: as `anofpdm distill` does after training, from image-level labels of the validation split. `typical`: the
check for scans unlike those in training. The hash of the student changes, because it covers both.
"""

import argparse
from pathlib import Path

import torch

from anofpdm.calibration.fit_calibration import slice_positions
from anofpdm.cohorts import Cohort, open_cohort
from anofpdm.models.registry import model_folder
from anofpdm.network.checkpoint import load_model, save_model
from anofpdm.student.decide import StudentCalibration
from anofpdm.student.fit_detector import fit_student_calibration
from anofpdm.student.student import FOLDER, TYPICAL, Student, load_student
from anofpdm.student.student_network import StudentConfig, cohort_pixels
from anofpdm.student.targets import HASHED
from anofpdm.student.typical import TypicalScans, describe_cohort, fit_typical
from anofpdm.util.artifacts import to_plain


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
    if payload["distillation"]["cohort"] != {name: cohort.manifest.get(name) for name in HASHED}:
        raise SystemExit(f"{folder}: was trained on another cohort")
    student = load_student(model, None, device)
    assert student is not None
    if part == "detector":
        payload["calibration"] = to_plain(fit_detector(student, cohort))
    else:
        check = fit_check(student.config, cohort)
        payload["typical"] = dict(check.limits)
        weights |= {TYPICAL + name: torch.from_numpy(array) for name, array in check.arrays().items()}
    print(f"hash of the student: {before} -> {save_model(folder, weights, payload)}")


def fit_detector(student: Student, cohort: Cohort) -> StudentCalibration:
    rows = cohort.rows("val")
    calibration = fit_student_calibration(
        student.network,
        cohort_pixels(cohort, rows, student.config.modalities),
        cohort.labels[rows],
        cohort.patients[rows],
        slice_positions(cohort, rows),
        student.device,
        cohort.suspected[rows],
    )
    print(f"accuracy {calibration.accuracy:.4f}, AUC {calibration.auc:.4f}")
    return calibration


def fit_check(network: StudentConfig, cohort: Cohort) -> TypicalScans:
    numbers = describe_cohort(cohort, cohort.rows("train"), network.modalities)
    typical = fit_typical(numbers, network.modalities, network.optional)
    if typical is None:
        raise SystemExit("too few training scans for a check")
    return typical


if __name__ == "__main__":
    main()
