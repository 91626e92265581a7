"""benchmarks/confidence.py on a toy cohort."""

import re

import numpy as np
import pytest
import torch

from anofpdm.calibration.fit_calibration import slice_positions
from anofpdm.cohorts import open_cohort
from anofpdm.labels import UNHEALTHY
from anofpdm.scoring.truth import Truth
from anofpdm.student.student import load_student
from tests import toys


def calibration_error(probabilities, truth):
    """Bin by bin, by its definition: ten bins, a border belongs to the lower one."""
    error = 0.0
    for number in range(10):
        inside = (probabilities <= (number + 1) / 10) & ((probabilities > number / 10) | (number == 0))
        if inside.any():
            error += inside.mean() * abs(probabilities[inside].mean() - truth[inside].mean())
    return error


def test_confidence(made, run_benchmark):
    """Calibration errors, and how far the estimates are from the measured DICE, against direct computations."""
    words = (made / "guided", made / "cohort", "--split", "train", "--device", "cpu")
    printed = run_benchmark("confidence", *words)
    cohort, student = open_cohort(made / "cohort"), load_student(made / "guided", None, torch.device("cpu"))
    rows = cohort.rows("train")
    channels = [cohort.modalities.index(name) for name in student.config.modalities]
    images, truth, scans = cohort.pixels(rows), Truth(cohort).masks(rows), cohort.scans[rows]
    decisions = student.decide(images[:, channels].__getitem__, slice_positions(cohort, rows))
    inside = images.mean(axis=1) > -0.95
    errors = {
        "pixel": calibration_error(decisions.maps[inside].astype(float), truth[inside]),
        "slice": calibration_error(1 / (1 + np.exp(-decisions.score)), cohort.labels[rows] == UNHEALTHY),
    }
    for name, error in errors.items():
        (stated,) = re.findall(rf"calibration error per {name}: ([\d.]+)", printed)
        assert float(stated) == pytest.approx(error, abs=2e-4)
    gaps = []
    for scan in np.unique(scans[truth.any(axis=(1, 2))]):  # only scans with a lesion
        here = scans == scan
        masks, areas = decisions.masks[here], decisions.masks[here].sum(axis=(1, 2))
        estimate = (np.where(areas > 0, decisions.estimated_dice[here], 0) * areas).sum() / areas.sum()
        gaps.append(estimate - toys.dice(masks, truth[here]))
    assert f"{len(gaps)} scans, mean volume DICE" in printed
    row = next(line for line in printed.splitlines() if line.startswith("| product of the first two"))
    stated = [float(cell) for cell in row.split("|")[4:6]]
    assert stated == pytest.approx([np.mean(gaps), np.mean(np.abs(gaps))], abs=2e-3)
