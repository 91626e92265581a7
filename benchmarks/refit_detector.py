"""Fit a student's detector again, as `anofpdm distill` does after training, and record the span of faint lesions.

    python benchmarks/refit_detector.py MODEL COHORT

MODEL: the name of a model that ships, or a folder with a student; it was trained on the training split of COHORT. Its
weights stay as they are. Image-level labels of the validation split are used, no lesion masks. The hash of the student
changes, because it covers the detector too.
"""

import argparse
from pathlib import Path

import torch
from refit_typical import load_of_cohort

from anofpdm.calibration.fit import slice_positions
from anofpdm.cohorts import Cohort, open_cohort
from anofpdm.models.registry import model_folder
from anofpdm.network.checkpoint import save_model
from anofpdm.student.calibration import fit_student_calibration
from anofpdm.student.model import FOLDER, load_student
from anofpdm.student.network import cohort_pixels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    refit(model_folder(args.model), open_cohort(args.cohort), torch.device(args.device))


def refit(model: Path, cohort: Cohort, device: torch.device) -> None:
    weights, payload, before = load_of_cohort(model / FOLDER, cohort)
    student = load_student(model, None, device)
    assert student is not None
    rows = cohort.rows("val")
    calibration = fit_student_calibration(
        student.network,
        cohort_pixels(cohort, rows, student.config.modalities),
        cohort.labels[rows],
        cohort.patients[rows],
        slice_positions(cohort, rows),
        device,
        cohort.suspected[rows],
    )
    after = save_model(model / FOLDER, weights, {**payload, "calibration": calibration.to_dict()})
    print(f"accuracy {calibration.accuracy:.4f}, AUC {calibration.auc:.4f}, by {calibration.detect_by}")
    print(f"hash of the student: {before} -> {after}")


if __name__ == "__main__":
    main()
