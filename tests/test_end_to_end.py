"""From nothing to the paper's table, on phantoms, by the commands that a user types."""

import json
from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest
from typer.testing import CliRunner

from anofpdm.cli.main import app
from anofpdm.evaluation.comparison.methods import METHODS, ReconstructionMethod


def anofpdm(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Phantoms, a cohort, and every model that a comparison needs, each trained for a moment."""
    home = tmp_path_factory.mktemp("home")
    phantoms = ("--kind", "tumour", "--patients", 8, "--seed", 5, "--slices", 24)
    anofpdm("phantom", home / "scans", *phantoms)
    anofpdm("prepare", "brats21", home / "scans", home / "cohort", "--size", 32, "--modalities", "flair,t2")
    for name, words in {
        "guided": (), "healthy": ("--task", "healthy"), "simplex": ("--task", "healthy", "--noise", "simplex"),
        "unconditional": ("--task", "unconditional"), "classifier": ("--task", "classifier"),
    }.items():  # fmt: skip
        steps = 10 if name == "guided" else 3
        train = ("train", home / "cohort", "--out", home / name, "--preset", "tiny", "--batch", 8, "--steps", steps)
        anofpdm(*train, "--learning-rate", 0.001, "--no-pictures", "--device", "cpu", *words)
    return home


def test_phantoms_to_masks(home, tmp_path):
    said = anofpdm("calibrate", home / "guided", home / "cohort", "--levels", 4, "--score", "flair", "--device", "cpu")
    assert "chosen" in said
    scan = min(path for path in (home / "scans").iterdir() if path.is_dir())
    anofpdm("segment", home / "guided", scan, "--out", tmp_path, "--device", "cpu")
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    mask = nib.Nifti1Image.from_filename(folder / "mask.nii.gz")
    flair = nib.Nifti1Image.from_filename(next(scan.glob("*flair.nii.gz")))
    np.testing.assert_array_equal(mask.affine, flair.affine)
    assert mask.shape == flair.shape


def test_phantoms_to_the_papers_table(home, tmp_path, monkeypatch):
    quick = {"level": 20, "scale": 1.0, "invert": 1, "strength": 1.0, "steps": 3}  # hundreds of levels take minutes
    for name, method in METHODS.items():
        if isinstance(method, ReconstructionMethod):
            monkeypatch.setitem(METHODS, name, replace(method, grid=(quick,)))
    others = [f"--with={name}={home / name}" for name in ("healthy", "simplex", "unconditional", "classifier")]
    words = ("--method", "all", "--score", "flair", "--levels", 4, "--sample", 6, "--tune", 4, "--seeds", 1)
    anofpdm("evaluate", home / "guided", home / "cohort", "--out", tmp_path, *others, *words, "--device", "cpu")
    methods = json.loads((tmp_path / "results.json").read_text())["methods"]
    assert set(methods) == {*METHODS, "all-empty"} - {"anofpdm-student"}  # nobody taught one here
    for name, by_setup in methods.items():
        for several in by_setup.values():
            assert 0 <= several["mean"]["dice"] <= 1, name
