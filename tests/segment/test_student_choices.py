"""Threshold and smallest component of the student, chosen on the command line or in Python."""

import csv
import json
import shutil

import nibabel as nib
import numpy as np
import pytest

from anofpdm.errors import ConfigError
from anofpdm.segment.model import load
from tests.commands import run
from tests.optional_toys import save_model, scan_files
from tests.segment.known_model import known_model


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Folder of a student that calls every slice unhealthy, and a scan."""
    folder = tmp_path_factory.mktemp("world")
    files = scan_files(folder / "scan")
    return save_model(folder / "model"), [str(path) for path in files.values()]


def segment(world, out, *words):
    done = run("segment", world[0], *world[1], "--out", out, "--device", "cpu", "--no-pictures", *words)
    (folder,) = [path for path in out.iterdir() if path.is_dir()]
    rows = list(csv.DictReader((folder / "slices.csv").open()))
    return done.output, json.loads((folder / "summary.json").read_text())["settings"], rows, folder


def test_choices_are_recorded_only_where_they_are_made(world, tmp_path):
    _, settings, _, folder = segment(world, tmp_path)
    assert not {"threshold_probability", "smallest"} & set(settings)
    mask = (folder / "mask.nii.gz").read_bytes()
    assert "chosen with --threshold-probability" not in (folder / "report.html").read_text()
    out = tmp_path / "chosen"
    _, chosen, rows, folder = segment(world, out, "--threshold-probability", 0.4, "--smallest", 3)
    assert chosen == {**settings, "threshold_probability": 0.4, "smallest": 3}
    assert {row["threshold"] for row in rows} == {"0.4"}
    assert "0.4 (lesion probability, chosen with --threshold-probability)" in (folder / "report.html").read_text()
    assert (folder / "mask.nii.gz").read_bytes() != mask


def test_python_takes_the_same_choices(world, tmp_path):
    model = load(world[0], "cpu")
    _, _, _, folder = segment(world, tmp_path, "--threshold-probability", 0.45, "--smallest", 5)
    files = dict(zip(("t1", "flair", "t2"), world[1], strict=True))
    result = model.segment(files, threshold_probability=0.45, smallest=5)
    np.testing.assert_array_equal(result.mask, nib.nifti1.load(folder / "mask.nii.gz").get_fdata() > 0)
    default = model.segment(files)
    assert not np.array_equal(default.mask, result.mask)


def test_the_bids_app_takes_them(world, tmp_path):
    anat = tmp_path / "in" / "sub-01" / "anat"
    anat.mkdir(parents=True)
    shutil.copy(world[1][1], anat / "sub-01_FLAIR.nii.gz")
    words = ["bids", tmp_path / "in", tmp_path / "out", "participant", "--model", world[0], "--skip-bids-validation"]
    words += ["--device", "cpu", "--smallest", 5, "--threshold-probability"]
    run(*words, 0.45)
    (summary,) = (tmp_path / "out").rglob("*summary.json")
    settings = json.loads(summary.read_text())["settings"]
    assert (settings["threshold_probability"], settings["smallest"]) == (0.45, 5)
    run(*words, 1, code=2)


@pytest.mark.parametrize("probability", ["0", "1", "2", "-1", "nan", "half"])
def test_other_probabilities_are_usage_errors(world, probability, tmp_path):
    option = f"--threshold-probability={probability}"
    assert "--threshold-probability" in run("segment", world[0], world[1][0], "--out", tmp_path, option, code=2).output


def test_the_diffusion_engine_has_another_threshold():
    with pytest.raises(
        ConfigError, match=r"--threshold-probability: not an option of the diffusion engine; .*--threshold"
    ):
        known_model().request(threshold_probability=0.3)
    assert known_model().request(smallest=3).engine.decision.mask.smallest == 3
