"""benchmarks/claims.py: differences between methods and between evaluations, on the same slices."""

import csv
import json
import re

import numpy as np
import pytest

STUDENT = "anofpdm-student"
PATIENTS = np.repeat([f"p{number}" for number in range(10)], 8)


def write_slices(folder, by_method, first=0):
    """DICE of each slice by method; mixed DICE is higher by 0.5, and another seed has nothing."""
    folder.mkdir(exist_ok=True)
    with (folder / "slices.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "setup", "seed", "patient", "scan", "slice", "dice"])
        for method, values in by_method.items():
            for setup, change in (("unhealthy", 0.0), ("mixed", 0.5)):
                for number, (patient, value) in enumerate(zip(PATIENTS, values, strict=True), first):
                    writer.writerow([method, setup, 0, patient, patient, number, value + change])
                    writer.writerow([method, setup, 1, patient, patient, number, 0.0])
    return folder


def test_claims_are_paired_by_slice(run_benchmark, tmp_path):
    """Methods that were not evaluated have no row."""
    rng = np.random.default_rng(0)
    hard = np.repeat(rng.random(10), 8)  # some patients are hard for every method
    ddim, ddpm = 0.5 * hard + 0.1, 0.5 * hard + 0.05 + 0.02 * rng.random(80)
    folder = write_slices(tmp_path, {"anofpdm-ddim": ddim, "anofpdm-ddpm": ddpm, "cg-cdm": ddim + 0.1})
    printed = run_benchmark("claims", "claims", folder)
    rows = [line.split("|")[2:-1] for line in printed.splitlines() if line.count("|") == 6 and "anofpdm" in line]
    assert [[cell.strip() for cell in (*row[:2], row[-1])] for row in rows] == [
        ["unhealthy", "anofpdm-ddim - anofpdm-ddpm", "held"],
        ["unhealthy", "anofpdm-ddim - cg-cdm", "not held"],
    ]
    mean, low, high = (float(number) for number in re.findall(r"[+-][\d.]+", rows[0][2]))
    assert mean == pytest.approx(100 * np.mean(ddim - ddpm), abs=0.05)
    assert 2 < low < mean < high < 6  # far narrower than patients differ


def table(columns, *rows):
    return {"rows": [dict(zip(columns, row, strict=True)) for row in rows]}


def test_verdicts_from_ablations(run_benchmark, tmp_path):
    thresholds = [("dynamic", "", 0.5), ("fixed", 0.9, 0.4), ("fixed", 0.95, 0.45)]
    variants = {
        "anofpdm-ddim": 0.5,
        "anofpdm-ddpm": 0.6,
        "anofpdm-ddim-last": 0.4,
        "gradient": 0.1,
        "gradient-last": 0.2,
    }
    ablations = {
        "lesion_size": {"pearson_r": 0.74},
        "end_step": table(("factor", "unhealthy_dice"), (0.5, 0.3), (1.0, 0.5), (1.25, 0.6)),
        "threshold": table(("threshold", "quantile", "unhealthy_dice"), *thresholds),
        "variants": table(("variant", "unhealthy_dice", "auprc"), *((name, at, at) for name, at in variants.items())),
    }
    (tmp_path / "ablations.json").write_text(json.dumps({"ablations": ablations}))
    printed = run_benchmark("claims", "claims", write_slices(tmp_path, {}), tmp_path)
    verdicts = [line.rsplit("|", 2)[1].strip() for line in printed.splitlines() if line.count("|") == 4]
    assert verdicts == ["", "---", "held", "not held", "held", "not held", "held", "held"]


def test_gain_over_another_method(run_benchmark, tmp_path):
    hard = np.repeat(np.random.default_rng(0).random(10), 8) / 4
    ours = write_slices(tmp_path / "a", {STUDENT: hard + 0.1})
    other = write_slices(tmp_path / "b", {"another": hard})
    printed = run_benchmark("claims", "gain", "--of", ours, "--over", other, "--than", "another")
    mean = 100 * hard.mean()
    assert f"| unhealthy | {mean + 10:.1f} | {mean:.1f} | +10.0 (+10.0 to +10.0) | held |" in printed
    assert f"| mixed | {mean + 60:.1f} |" in printed
    words = ("gain", "--of", other, "--over", ours, "--method", "another", "--than", STUDENT)
    assert "-10.0 (-10.0 to -10.0) | not held |" in run_benchmark("claims", *words)


def test_folders_that_cannot_be_compared(run_benchmark, tmp_path):
    folder, other = (write_slices(tmp_path / str(first), {STUDENT: np.zeros(80)}, first) for first in (0, 1))
    with pytest.raises(SystemExit, match="different unhealthy slices"):
        run_benchmark("claims", "gain", "--of", folder, "--over", other)
    with pytest.raises(SystemExit, match="cg-cdm was not evaluated"):
        run_benchmark("claims", "gain", "--of", folder, "--over", folder, "--than", "cg-cdm")
