"""The measurements of raw studies, on phantoms: known answers, and the commands that need no real scans."""

import numpy as np
import pytest

from anofpdm.choices import PhantomKind
from anofpdm.demo.run_demo import BUNDLED
from anofpdm.phantoms.phantom_cohort import PhantomConfig, make_phantom
from anofpdm.scans import write_nifti
from anofpdm.scans.grid import Grid
from tests import toys


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """A registered, stripped phantom in the BraTS21 layout."""
    folder = tmp_path_factory.mktemp("scans")
    phantom = make_phantom(PhantomConfig(PhantomKind.TUMOUR, 3, size=64, slices=40), 1)
    grid = Grid.from_affine(phantom.mask.shape, phantom.affine)
    (folder / "BraTS2021_00001").mkdir()
    for name, volume in {**phantom.volumes, "seg": phantom.mask}.items():
        write_nifti(folder / "BraTS2021_00001" / f"BraTS2021_00001_{name}.nii.gz", volume.astype(np.float32), grid)
    return folder


def test_a_disturbed_study_of_a_phantom(scans, monkeypatch, run_benchmark):
    disturbed = toys.benchmark("raw_disturbed")
    for name, value in {"IN_PLANE_MM": (1.8, 2.2), "MOST_DEGREES": 10.0, "MOST_MM": 10.0}.items():  # larger voxels
        monkeypatch.setattr(disturbed, name, value)
    printed = run_benchmark("raw", "disturbed", BUNDLED / "phantom-tumour", scans, "--count", 1)
    (row,) = [line.split("|") for line in printed.splitlines() if line.startswith("| BraTS2021_00001")]
    undisturbed, aligned = float(row[3]), float(row[4])
    before, after = float(row[6]), float(row[7])  # to the mask of the phantom
    errors = [float(error.split()[1]) for error in row[8].split(",")]
    assert aligned > 0.85
    assert undisturbed > 0.6  # thick slices of a small phantom
    assert 0.5 < before < 1
    assert abs(before - after) < 0.15
    assert len(errors) == 1
    assert max(errors) < 1.5
    assert "Registration error: mean" in printed
