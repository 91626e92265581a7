"""How far a student's probabilities and its estimated DICE can be trusted: both against the lesion masks of a cohort.

    python benchmarks/confidence.py MODEL COHORT [--split val] [--device cpu]

MODEL: a folder, or the name of a model that ships; a student alone is enough. It gets all of its modalities.
Reliability: expected calibration error and its table, of lesion probabilities per pixel (in the foreground) and of the
detector's probability per slice (against the image-level label). Estimates: correlation with the volume DICE of each
scan, for candidates that need no lesion mask; `product` is the one that `anofpdm segment` reports. Scans without a
lesion, or without a predicted one, are left out.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from scipy.special import expit
from scipy.stats import pearsonr, spearmanr

from anofpdm.calibration.fit_calibration import slice_positions
from anofpdm.cohorts import Cohort, open_cohort
from anofpdm.labels import NULL, UNHEALTHY
from anofpdm.method.decision import Decisions
from anofpdm.models.registry import model_folder
from anofpdm.scoring.metrics.pixels import confusion, dice
from anofpdm.scoring.truth import Truth
from anofpdm.student.decide import soft_dice
from anofpdm.student.student import load_student
from anofpdm.student.student_network import cohort_pixels

BINS = 10
FOREGROUND = -0.95  # mean over the modalities, as in `anofpdm evaluate`

COLUMNS = ("estimate", "Pearson", "Spearman", "mean estimate - DICE", "mean absolute error", "slices: Spearman")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=model_folder)
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--split", default="val")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    device, cohort = torch.device(args.device), open_cohort(args.cohort)
    student = load_student(args.model, None, device)
    assert student is not None, f"{args.model} has no student; run `anofpdm distill`"
    rows = cohort.rows(args.split)
    rows = rows[cohort.has_mask[rows] & (cohort.labels[rows] != NULL)]
    decisions = student.decide(cohort_pixels(cohort, rows, student.config.modalities), slice_positions(cohort, rows))
    report_reliability(decisions, cohort, rows)
    report_estimates(decisions, cohort, rows)


# ---- reliability -----------------------------------------------------------------------------------------------------


def report_reliability(decisions: Decisions, cohort: Cohort, rows: np.ndarray) -> None:
    inside = cohort.pixels(rows).mean(axis=1) > FOREGROUND
    truth = Truth(cohort).masks(rows)
    tables = {
        "pixel": reliability(decisions.maps[inside], truth[inside]),
        "slice": reliability(expit(decisions.score), cohort.labels[rows] == UNHEALTHY),
    }
    for name, (count, probabilities, positives) in tables.items():
        error = np.abs(probabilities - positives).sum() / count.sum()
        print(f"expected calibration error per {name}: {error:.4f}")
    heads = (f"{name}: mean probability, share of lesion, count" for name in tables)
    print(f"\n| bin | {' | '.join(heads)} |\n|---|---|---|")
    for row in range(BINS):
        cells = (
            f"{probabilities[row] / count[row]:.3f}, {positives[row] / count[row]:.3f}, {count[row]:,}"
            if count[row]
            else "-"
            for count, probabilities, positives in tables.values()
        )
        print(f"| {row / BINS:.1f} to {(row + 1) / BINS:.1f} | {' | '.join(cells)} |")


def reliability(probabilities: np.ndarray, truth: np.ndarray) -> list[np.ndarray]:
    """Count, sum of the probabilities and number of positives in bins of equal width; a border is in the lower bin."""
    place = np.searchsorted(np.linspace(0, 1, BINS + 1)[1:-1], probabilities)
    return [np.bincount(place, weights, BINS) for weights in (None, probabilities, truth)]


# ---- estimates -------------------------------------------------------------------------------------------------------


def report_estimates(decisions: Decisions, cohort: Cohort, rows: np.ndarray) -> None:
    truth, scans, masks = Truth(cohort).masks(rows), cohort.scans[rows], decisions.masks
    areas = masks.sum(axis=(1, 2))
    expected = soft_dice(torch.from_numpy(decisions.maps), torch.from_numpy(masks)).numpy()
    inside = (decisions.maps * masks).sum(axis=(1, 2)) / np.maximum(areas, 1)
    estimates = {
        "agreement with the mirrored pass": decisions.estimated_dice / expected,
        "expected DICE": expected,
        "mean probability in the mask": inside,
        "product of the first two": decisions.estimated_dice,
    }
    measured = confusion(masks, truth).volume_dice(scans)
    kept = (sum_per_scan(areas, scans) > 0) & ~np.isnan(measured)
    print(f"\n{kept.sum()} scans, mean volume DICE {measured[kept].mean():.3f}")
    print(f"\n| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    drawn, slices = areas > 0, dice(masks, truth)
    for name, values in estimates.items():
        weighted = np.where(drawn, values, 0.0) * areas
        scan = sum_per_scan(weighted, scans) / np.maximum(sum_per_scan(areas, scans), 1)
        gap = scan[kept] - measured[kept]
        numbers = (
            pearsonr(scan[kept], measured[kept]).statistic,
            spearmanr(scan[kept], measured[kept]).statistic,
            gap.mean(),
            np.abs(gap).mean(),
            spearmanr(values[drawn], slices[drawn]).statistic,
        )
        print(f"| {name} | {' | '.join(f'{number:.3f}' for number in numbers)} |")


def sum_per_scan(values: np.ndarray, scans: np.ndarray) -> np.ndarray:
    """[n], [n] -> [scans], as np.unique(scans) sorts them."""
    _, place = np.unique(scans, return_inverse=True)
    return np.bincount(place, values)


if __name__ == "__main__":
    main()
