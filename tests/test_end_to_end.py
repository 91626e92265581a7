"""From phantoms to the paper's table, by the commands that a user types.

The guided model is the bundled one, fine-tuned: a network trained from scratch for seconds finds no lesion.
"""

import json

import nibabel as nib
import numpy as np
import pytest

from anofpdm.demo.run_demo import BUNDLED
from tests import toys
from tests.commands import run

PHANTOMS = ("--kind", "tumour", "--patients", 6, "--seed", 80, "--slices", 10)  # each with a lesion
FLOORS = {  # DICE and AUPRC of unhealthy slices; measured over four seeds: DICE 0.28-0.55, AUPRC 0.42-0.62
    "anofpdm-ddim": (0.25, 0.35), "anofpdm-ours": (0.2, 0.35), "anofpdm-agreement": (0.25, 0.35),
    "gradient-above": (0.25, 0.35), "gradient-weighted": (0.15, 0.25),
}  # fmt: skip


def anofpdm(*words):
    return run(*words).stdout


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Phantoms, a cohort, and a model that is trained for a few steps."""
    home = tmp_path_factory.mktemp("home")
    anofpdm("phantom", home / "scans", *PHANTOMS, "--workers", 1)
    names = sorted(path.name for path in (home / "scans").iterdir() if path.is_dir())
    parts = [f"{name},{part}" for name, part in zip(names, ["val", "test", "train"] * 2, strict=True)]
    (home / "split.csv").write_text("\n".join(["patient,split", *parts]))
    split = ("--split", home / "split.csv", "--workers", 1)
    anofpdm("prepare", "brats21", home / "scans", home / "cohort", "--size", 32, *split)
    train = ("train", home / "cohort", "--batch", 4, "--steps", 3, "--device", "cpu")
    anofpdm(*train, "--out", home / "guided", "--from", BUNDLED / "phantom-tumour")
    return home


def test_phantoms_to_masks(home, tmp_path):
    words = ("--levels", 4, "--score", "flair,t2", "--device", "cpu")
    assert "chosen" in anofpdm("calibrate", home / "guided", home / "cohort", *words)
    scan = sorted(path for path in (home / "scans").iterdir() if path.is_dir())[1]  # of the test split
    anofpdm("segment", home / "guided", scan, "--out", tmp_path, "--device", "cpu")
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    mask = nib.Nifti1Image.from_filename(folder / "mask.nii.gz")
    flair, truth = (nib.Nifti1Image.from_filename(next(scan.glob(f"*{name}.nii.gz"))) for name in ("flair", "seg"))
    np.testing.assert_array_equal(mask.affine, flair.affine)
    assert mask.shape == flair.shape
    assert toys.dice(mask.get_fdata() > 0, truth.get_fdata() > 0) > 0.4  # 0.58 to 0.62 with three seeds


def test_phantoms_to_the_papers_table(home, tmp_path):
    methods = [f"--method={name}" for name in FLOORS]
    words = ("--score", "flair,t2", "--levels", 4, "--sample", 12, "--seeds", 1, "--device", "cpu")
    anofpdm("evaluate", home / "guided", home / "cohort", "--out", tmp_path, *methods, *words)
    results = json.loads((tmp_path / "results.json").read_text())["methods"]
    scores = {name: {setup: several["mean"] for setup, several in by.items()} for name, by in results.items()}
    assert set(scores) == {*FLOORS, "all-empty"}
    assert scores["all-empty"]["unhealthy"]["auprc"] < 0.15
    for name, (dice, auprc) in FLOORS.items():
        assert scores[name]["unhealthy"]["dice"] > dice, name
        assert scores[name]["unhealthy"]["auprc"] > auprc, name
    assert scores["anofpdm-ours"]["mixed"]["dice"] > scores["all-empty"]["mixed"]["dice"]
