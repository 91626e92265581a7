"""The benchmark of template positions: what it prints for scans whose affine is known, and what it records."""

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from anofpdm.demo.run import BUNDLED
from anofpdm.network.checkpoint import load_model
from anofpdm.scans import write_nifti
from anofpdm.scans.grid import Grid
from anofpdm.scans.raw.register import Head
from anofpdm.segment.model import load
from tests import toys

AFFINE = (1.0, 0.0, 0.0, 3.0, 0.0, 1.0, 0.0, 4.0, 0.0, 0.0, 1.0, 0.0)  # all scans lie 5 mm from the template


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    module = toys.benchmark("template_position")
    grid = Grid.from_affine((9, 9, 9), np.diag([2.0, 2.0, 2.0, 1.0]))
    cube = Head(np.ones(grid.shape), np.ones(grid.shape, bool), grid)
    matrix = np.vstack([np.reshape(AFFINE, (3, 4)), np.eye(4)[3]])
    monkeypatch.setattr(module, "measure", lambda *_: (matrix, cube))
    return module


def test_distances_and_a_model_that_records_the_affine(benchmark, tmp_path, monkeypatch, capsys):
    split = ["patient,split"]
    for name, part in {"r001s001": "train", "r001s002": "train", "r001s003": "val"}.items():
        folder = tmp_path / "files" / f"sub-{name}" / "ses-1" / "anat"
        folder.mkdir(parents=True)
        for kind in ("T1w", "label-L_desc-T1lesion_mask"):
            path = folder / f"sub-{name}_ses-1_space-MNI152NLin2009aSym_{kind}.nii.gz"
            write_nifti(path, toys.head().astype(np.int16), Grid.from_affine((24, 24, 20), np.eye(4)))
        split.append(f"sub-{name},{part}")
    (tmp_path / "split.csv").write_text("\n".join(split))
    model = tmp_path / "model"
    shutil.copytree(BUNDLED / "phantom-tumour", model)
    before = load_model(model)[0]
    words = [str(tmp_path / "files"), "--split", str(tmp_path / "split.csv"), "--record", str(model)]
    monkeypatch.setattr(sys, "argv", ["template_position.py", *words])
    benchmark.main()
    printed = capsys.readouterr().out
    assert '2 training scans: {"template_affine": [1.0,' in printed
    assert "1 validation scans, distance to the template: 5.00 mm" in printed
    assert "to the template with the mean affine: 0.00 mm" in printed
    found = load(str(model), "cpu")
    assert found.expects == found.student.expects
    assert found.expects == replace(load("phantom-tumour", "cpu").expects, template_affine=AFFINE, centre_mm=(8.0, 8.0))
    for name, tensor in load_model(model)[0].items():
        np.testing.assert_array_equal(tensor, before[name])


def test_positions_of_the_pack(tmp_path, benchmark):
    (tmp_path / "index.csv").write_text("patient,z,split,unhealthy\na,8,val,0\na,6,val,1\nb,4,val,0\n")
    assert benchmark.lowest_slices(tmp_path / "index.csv") == {"a": 6, "b": 4}
