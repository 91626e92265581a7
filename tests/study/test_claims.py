"""benchmarks/claims.py: differences between methods and between evaluations, on the same slices."""

import csv
import json
import sys

import numpy as np
import pytest

from tests import toys

PATIENTS = np.repeat([f"p{number}" for number in range(10)], 8)


@pytest.fixture(scope="module")
def claims():
    return toys.benchmark("claims")


def write_slices(path, by_method, patients):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "setup", "seed", "patient", "scan", "slice", "dice"])
        for method, values in by_method.items():
            for number, (patient, value) in enumerate(zip(patients, values, strict=True)):
                writer.writerow([method, "unhealthy", 0, patient, patient, number, value])
                writer.writerow([method, "unhealthy", 1, patient, patient, number, 0.0])  # another seed


def test_gains_are_paired_by_slice(claims, tmp_path):
    rng = np.random.default_rng(0)
    patients = np.repeat([f"p{number}" for number in range(10)], 8)
    hard = np.repeat(rng.random(10), 8)  # some patients are hard for every method
    better = {"anofpdm-ddim": 0.5 * hard + 0.1, "anofpdm-ddpm": 0.5 * hard + 0.05 + 0.02 * rng.random(80)}
    write_slices(tmp_path / "slices.csv", better, patients)
    slices = claims.Slices.read(tmp_path / "slices.csv")
    mean, low, high = slices.gain("unhealthy", "anofpdm-ddim", "anofpdm-ddpm")
    assert mean == pytest.approx(np.mean(better["anofpdm-ddim"] - better["anofpdm-ddpm"]))
    assert 0.02 < low < mean < high < 0.06  # far narrower than patients differ
    assert slices.gain("unhealthy", "anofpdm-ddim", "unknown") is None
    (line,) = claims._compared(slices, [("a claim", "unhealthy", "anofpdm-ddim", "anofpdm-ddpm")])
    assert line.endswith("| held |")
    (line,) = claims._compared(slices, [("a claim", "unhealthy", "anofpdm-ddpm", "anofpdm-ddim")])
    assert line.endswith("| not held |")


def test_methods_on_different_slices_are_refused(claims, tmp_path):
    write_slices(tmp_path / "slices.csv", {"anofpdm-ddim": [0.5, 0.5]}, ["a", "b"])
    rows = (tmp_path / "slices.csv").read_text().splitlines()
    rows += [row.replace("anofpdm-ddim", "anofpdm-ddpm").replace(",b,", ",c,") for row in rows[1:]]
    (tmp_path / "slices.csv").write_text("\n".join(rows))
    with pytest.raises(AssertionError, match="other slices"):
        claims.Slices.read(tmp_path / "slices.csv")


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


def write_scores(folder, dice, method="anofpdm-student", first=0):
    folder.mkdir()
    with (folder / "slices.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "setup", "seed", "patient", "scan", "slice", "dice"])
        for setup, change in (("unhealthy", 0.0), ("mixed", 0.5)):
            for number, (patient, value) in enumerate(zip(PATIENTS, dice, strict=True), first):
                writer.writerow([method, setup, 0, patient, patient, number, value + change])
    return str(folder)


def gain_rows(claims, capsys, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["claims.py", "gain", *words])
    claims.main()
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith(("| unhealthy", "| mixed"))]


def test_several_folders_count_as_their_mean(claims, capsys, monkeypatch, tmp_path):
    hard = np.repeat(np.random.default_rng(0).random(10), 8) / 4  # some patients are hard for everyone
    ours = write_scores(tmp_path / "a", hard + 0.14), write_scores(tmp_path / "b", hard + 0.06)
    other = write_scores(tmp_path / "c", hard, "another")
    lines = gain_rows(claims, capsys, monkeypatch, "--of", *ours, "--over", other, "--than", "another")
    mean = 100 * hard.mean()
    assert lines[0] == f"| unhealthy | {mean + 10:.1f} | {mean:.1f} | +10.0 (+10.0 to +10.0) | held |"
    assert lines[1].startswith(f"| mixed | {mean + 60:.1f} |")
    (line, _) = gain_rows(claims, capsys, monkeypatch, "--of", other, "--over", *ours, "--method", "another", "--than",
                     "anofpdm-student")  # fmt: skip
    assert line.endswith("-10.0 (-10.0 to -10.0) | not held |")


def test_folders_that_cannot_be_compared(claims, capsys, monkeypatch, tmp_path):
    one, other = (
        write_scores(tmp_path / "a", np.zeros(80)),
        write_scores(tmp_path / "b", np.zeros(80), first=1),
    )  # same patients
    with pytest.raises(SystemExit, match="different unhealthy slices"):
        gain_rows(claims, capsys, monkeypatch, "--of", one, "--over", other)
    with pytest.raises(SystemExit, match="cg-cdm was not evaluated"):
        gain_rows(claims, capsys, monkeypatch, "--of", one, "--over", one, "--than", "cg-cdm")
