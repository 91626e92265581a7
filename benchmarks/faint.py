"""How slices are detected and faint lesions drawn, from the outputs of one student. Validation split.

    python benchmarks/faint.py MODEL COHORT [--spans 4,5,6]

Detectors are fitted on the image-level labels of the split; accuracy is that on held-out patients. Lesion masks are
for scores only: unhealthy, mixed and volume DICE, precision, recall, DICE of lesions of 1-50 and 51-200 pixels.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from student_study import Drawing, Outputs, Part, draw, print_head, score

from anofpdm.cohorts import open_cohort
from anofpdm.labels import NULL, UNHEALTHY
from anofpdm.method.detection import fit_and_validate
from anofpdm.models.registry import model_folder
from anofpdm.student.model import DetectBy, StudentCalibration, detection_values, load_student

COLUMNS = ("unhealthy", "mixed", "volume", "precision", "recall", "1-50", "51-200")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--spans", default="4,5,6")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    device, cohort = torch.device(args.device), open_cohort(args.cohort)
    student = load_student(model_folder(args.model), None, device)
    assert student is not None, f"{args.model} has no student; run `anofpdm distill`"
    part = Part(cohort, cohort.rows("val"))
    outputs, truth = Outputs.of(student.network, part, part, device), part.truth()
    print_head(("detected by, span", "accuracy", *COLUMNS))
    for detect_by in DetectBy:
        calibration = with_detector(outputs, part, detect_by)
        for span in (None, *map(float, args.spans.split(","))):
            found = replace(outputs, calibration=replace(calibration, faint_span=span))
            numbers = score(draw(found, part.positions, Drawing()), truth, part.patients)
            cells = " | ".join(f"{numbers[name]:.1f}" for name in COLUMNS)
            print(f"| {detect_by}, {span or 'none'} | {calibration.accuracy:.3f} | {cells} |", flush=True)


def with_detector(outputs: Outputs, part: Part, detect_by: DetectBy) -> StudentCalibration:
    values = detection_values(detect_by, outputs.pixel_logits, outputs.slice_logits, part.positions)
    known = part.labels != NULL
    unhealthy = part.labels[known] == UNHEALTHY
    detector, rating = fit_and_validate(values[known], unhealthy, part.patients[known])
    return replace(outputs.calibration, detector=detector, accuracy=rating.accuracy, detect_by=detect_by)


if __name__ == "__main__":
    main()
