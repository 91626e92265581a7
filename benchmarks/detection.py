"""Detection of unhealthy slices by the student: from its pixel output, its slice output, or both.

    python benchmarks/detection.py MODEL COHORT [--contexts 0,2,5,8]

Logistic regression on the validation split's image-level labels; accuracy and AUC on held-out patients, by sigma
of the smoothing across slices. No lesion masks are used.
"""

import argparse
from pathlib import Path

import numpy as np
import torch

from anofpdm.calibration.fit import slice_positions
from anofpdm.cohorts import open_cohort
from anofpdm.labels import NULL, UNHEALTHY
from anofpdm.method.context import smooth_across_slices
from anofpdm.method.detection import fit_and_validate
from anofpdm.method.mask import smallest_lesion_level
from anofpdm.network.predictor import load_trained
from anofpdm.student.model import load_student, predict_slices
from anofpdm.student.network import cohort_pixels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--contexts", default="0,2,5,8", help="millimetres")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    device, cohort = torch.device(args.device), open_cohort(args.cohort)
    student = load_student(args.model, load_trained(args.model, device).sha256, device)
    assert student is not None, f"{args.model} has no student; run `anofpdm distill`"
    rows = cohort.rows("val")
    rows = rows[cohort.labels[rows] != NULL]
    pixels, positions = cohort_pixels(cohort, rows, student.config.modalities), slice_positions(cohort, rows)
    pixel_logits, slice_logits = predict_slices(student.network, pixels, positions, device)
    contexts = [float(word) for word in args.contexts.split(",")]
    print(f"| output | {' | '.join(f'{mm:g} mm' for mm in contexts)} |\n|{' --- |' * (1 + len(contexts))}")
    for name in ("pixels", "slice", "both"):
        cells = []
        for mm in contexts:
            values = {
                "pixels": smallest_lesion_level(smooth_across_slices(pixel_logits, positions, mm)),
                "slice": smooth_across_slices(slice_logits, positions, mm),
            }
            features = np.column_stack(list(values.values()) if name == "both" else [values[name]])
            _, accuracy = fit_and_validate(features, cohort.labels[rows] == UNHEALTHY, cohort.patients[rows])
            cells.append(f"{accuracy.accuracy:.3f}, {accuracy.auc:.4f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
