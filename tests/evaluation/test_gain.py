"""benchmarks/gain.py: one evaluation against another, on the same slices."""

import csv
import sys

import numpy as np
import pytest

from tests import toys

PATIENTS = np.repeat([f"p{number}" for number in range(10)], 8)


@pytest.fixture(scope="module")
def gain():
    toys.benchmark("claims")
    return toys.benchmark("gain")


def scores(folder, dice, method="anofpdm-student", first=0):
    folder.mkdir()
    with (folder / "slices.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["method", "setup", "seed", "patient", "scan", "slice", "dice"])
        for setup, change in (("unhealthy", 0.0), ("mixed", 0.5)):
            for number, (patient, value) in enumerate(zip(PATIENTS, dice, strict=True), first):
                writer.writerow([method, setup, 0, patient, patient, number, value + change])
    return str(folder)


def said(gain, capsys, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["gain.py", *words])
    gain.main()
    return [line for line in capsys.readouterr().out.splitlines() if line.startswith(("| unhealthy", "| mixed"))]


def test_trainings_count_as_their_mean(gain, capsys, monkeypatch, tmp_path):
    hard = np.repeat(np.random.default_rng(0).random(10), 8) / 4  # some patients are hard for everyone
    ours = scores(tmp_path / "a", hard + 0.14), scores(tmp_path / "b", hard + 0.06)
    other = scores(tmp_path / "c", hard, "another")
    lines = said(gain, capsys, monkeypatch, "--of", *ours, "--over", other, "--than", "another")
    mean = 100 * hard.mean()
    assert lines[0] == f"| unhealthy | {mean + 10:.1f} | {mean:.1f} | +10.0 (+10.0 to +10.0) | held |"
    assert lines[1].startswith(f"| mixed | {mean + 60:.1f} |")
    (line, _) = said(gain, capsys, monkeypatch, "--of", other, "--over", *ours, "--method", "another", "--than",
                     "anofpdm-student")  # fmt: skip
    assert line.endswith("-10.0 (-10.0 to -10.0) | not held |")


def test_what_cannot_be_compared(gain, capsys, monkeypatch, tmp_path):
    one, other = scores(tmp_path / "a", np.zeros(80)), scores(tmp_path / "b", np.zeros(80), first=1)  # same patients
    with pytest.raises(SystemExit, match="other unhealthy slices"):
        said(gain, capsys, monkeypatch, "--of", one, "--over", other)
    with pytest.raises(SystemExit, match="cg-cdm was not measured"):
        said(gain, capsys, monkeypatch, "--of", one, "--over", one, "--than", "cg-cdm")
