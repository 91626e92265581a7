"""benchmarks/claims.py: differences between methods and between evaluations, on the same slices."""

import csv
import json
import sys

import numpy as np
import pytest

from tests import toys

STUDENT = "anofpdm-student"
PATIENTS = np.repeat([f"p{number}" for number in range(10)], 8)


@pytest.fixture(scope="module")
def claims():
    return toys.benchmark("claims")


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
    return str(folder)


def test_gains_are_paired_by_slice(claims, tmp_path):
    rng = np.random.default_rng(0)
    hard = np.repeat(rng.random(10), 8)  # some patients are hard for every method
    better = {"anofpdm-ddim": 0.5 * hard + 0.1, "anofpdm-ddpm": 0.5 * hard + 0.05 + 0.02 * rng.random(80)}
    write_slices(tmp_path, better)
    slices = claims.Slices.read(tmp_path / "slices.csv")
    mean, low, high = slices.gain("unhealthy", "anofpdm-ddim", "anofpdm-ddpm")
    assert mean == pytest.approx(np.mean(better["anofpdm-ddim"] - better["anofpdm-ddpm"]))
    assert 0.02 < low < mean < high < 0.06  # far narrower than patients differ
    assert slices.gain("unhealthy", "anofpdm-ddim", "unknown") is None
    (line,) = claims._compared(slices, [("a claim", "unhealthy", "anofpdm-ddim", "anofpdm-ddpm")])
    assert line.endswith("| held |")
    (line,) = claims._compared(slices, [("a claim", "unhealthy", "anofpdm-ddpm", "anofpdm-ddim")])
    assert line.endswith("| not held |")


def test_verdicts_from_ablations(claims):
    ablations = {
        "lesion_size": {"pearson_r": 0.74},
        "end_step": {"rows": [{"factor": f, "unhealthy_dice": d} for f, d in ((0.5, 0.3), (1.0, 0.5), (1.25, 0.6))]},
        "threshold": {
            "rows": [
                {"threshold": "dynamic", "quantile": "", "unhealthy_dice": 0.5},
                {"threshold": "fixed", "quantile": 0.9, "unhealthy_dice": 0.4},
                {"threshold": "fixed", "quantile": 0.95, "unhealthy_dice": 0.45},
            ]
        },
        "variants": {
            "rows": [
                {"variant": name, "unhealthy_dice": score, "auprc": score}
                for name, score in (
                    ("anofpdm-ddim", 0.5), ("anofpdm-ddpm", 0.6), ("anofpdm-ddim-last", 0.4), ("gradient", 0.1),
                    ("gradient-last", 0.2), ("gradient-weighted", 0.45),
                )
            ]
        },
    }  # fmt: skip
    verdicts = [line.rsplit("|", 2)[1].strip() for line in claims._from_ablations(json.loads(json.dumps(ablations)))]
    assert verdicts == ["held", "not held", "held", "not held", "held", "held"]


# ---- gain between evaluations ----------------------------------------------------------------------------------------


def gain_rows(claims, capsys, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["claims.py", "gain", *words])
    claims.main()
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith(("| unhealthy", "| mixed"))]


def test_several_folders_count_as_their_mean(claims, capsys, monkeypatch, tmp_path):
    hard = np.repeat(np.random.default_rng(0).random(10), 8) / 4  # some patients are hard for everyone
    ours = [write_slices(tmp_path / name, {STUDENT: hard + gain}) for name, gain in (("a", 0.14), ("b", 0.06))]
    other = write_slices(tmp_path / "c", {"another": hard})
    lines = gain_rows(claims, capsys, monkeypatch, "--of", *ours, "--over", other, "--than", "another")
    mean = 100 * hard.mean()
    assert lines[0] == f"| unhealthy | {mean + 10:.1f} | {mean:.1f} | +10.0 (+10.0 to +10.0) | held |"
    assert lines[1].startswith(f"| mixed | {mean + 60:.1f} |")
    (line, _) = gain_rows(claims, capsys, monkeypatch, "--of", other, "--over", *ours, "--method", "another", "--than",
                     "anofpdm-student")  # fmt: skip
    assert line.endswith("-10.0 (-10.0 to -10.0) | not held |")


def test_folders_that_cannot_be_compared(claims, capsys, monkeypatch, tmp_path):
    folder, other = (write_slices(tmp_path / str(first), {STUDENT: np.zeros(80)}, first) for first in (0, 1))
    with pytest.raises(SystemExit, match="different unhealthy slices"):
        gain_rows(claims, capsys, monkeypatch, "--of", folder, "--over", other)
    with pytest.raises(SystemExit, match="cg-cdm was not evaluated"):
        gain_rows(claims, capsys, monkeypatch, "--of", folder, "--over", folder, "--than", "cg-cdm")
