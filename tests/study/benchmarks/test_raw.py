"""The measurements of raw studies, on phantoms: known answers, and the commands that need no real scans."""

import numpy as np
import pytest

from anofpdm.demo.run_demo import BUNDLED
from anofpdm.options import PhantomKind
from anofpdm.phantoms.phantom_cohort import PhantomConfig, make_phantom
from anofpdm.raw.geometry import apply, resample, rotation_degrees
from anofpdm.raw.register import Head
from anofpdm.scans import read_volume, write_nifti
from anofpdm.scans.grid import Grid
from tests import toys


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """A registered, stripped phantom in the BraTS21 layout."""
    folder = tmp_path_factory.mktemp("scans")
    phantom = make_phantom(PhantomConfig(PhantomKind.TUMOUR, 3, size=80, slices=50), 1)
    grid = Grid.from_affine(phantom.mask.shape, phantom.affine)
    (folder / "BraTS2021_00001").mkdir()
    for name, volume in {**phantom.volumes, "seg": phantom.mask}.items():
        write_nifti(folder / "BraTS2021_00001" / f"BraTS2021_00001_{name}.nii.gz", volume.astype(np.float32), grid)
    return folder


def ball(name="RAS", radius=50.0):
    affine = toys.affine_of(name, (2.0, 2.0, 2.0), shape=(70, 70, 70))
    brain = toys.ball(affine, (70, 70, 70), (0, 0, 0), radius)
    return Head(np.where(brain, 100, 0).astype(np.float32), brain, Grid.from_affine((70, 70, 70), affine))


def test_movements_are_within_their_limits_and_known():
    disturbed = toys.benchmark("raw_disturbed")
    centre = np.array([5.0, -10.0, 20.0])
    for seed in range(20):
        made = disturbed.draw_disturbance(("flair", "t2"), centre, np.random.default_rng(seed), 30.0, 40.0)
        matrix = made.true_matrix("flair", "t2")
        assert rotation_degrees(matrix) <= 36  # angles about three axes are not exactly that of one rotation
        there = apply(made.movements["flair"], centre)
        assert np.linalg.norm(apply(matrix, there) - there) <= 40.001
        assert made.grids["t2"].spacing_mm[2] >= 3
        # The grid is around the head, wherever that is.
        middle = apply(made.grids["t2"].affine, (np.array(made.grids["t2"].shape) - 1) / 2)
        assert np.linalg.norm(middle - apply(made.movements["t2"], centre)) <= 5.001


def test_perfectly_registered_series_show_the_same_positions(tmp_path):
    disturbed = toys.benchmark("raw_disturbed")
    heads = {"flair": ball(), "t2": ball("LPS")}
    made = disturbed.draw_disturbance(tuple(heads), np.zeros(3), np.random.default_rng(0), 20.0, 20.0)
    (tmp_path / "raw").mkdir()
    raw = disturbed.write_disturbed(heads, made, tmp_path / "raw")
    aligned = disturbed.write_aligned(heads, made, "flair", tmp_path, None)
    moved, still = (read_volume(path) for path in (raw["t2"], aligned["t2"]))
    back = resample(moved.voxels, moved.grid, still.grid, made.true_matrix("flair", "t2"))
    assert toys.dice(back > 50, still.voxels > 50) > 0.97


def test_a_skull_encloses_the_brain_and_leaves_it_unchanged():
    disturbed = toys.benchmark("raw_disturbed")
    whole = ball(radius=60.0)
    distance = np.linalg.norm(apply(whole.grid.affine, np.argwhere(whole.brain | True)), axis=1).reshape(70, 70, 70)
    head = Head(np.where(distance < 66, np.where(whole.brain, 100, 300), 0).astype(np.float32), whole.brain, whole.grid)
    skull = disturbed.Skull({"flair": head}, {"flair": np.eye(4)})
    brain = ball(radius=40.0)
    made = skull.around({"flair": brain})["flair"]
    np.testing.assert_allclose(made.voxels[made.brain].mean(), 100, atol=1)
    assert made.brain.sum() == pytest.approx(brain.brain.sum(), rel=1e-6)
    bright = made.voxels > 200  # the scalp, scaled to the smaller brain: radius 40 to 44 mm
    radii = np.linalg.norm(apply(made.grid.affine, np.argwhere(bright)), axis=1)
    assert 39 < radii.min() < radii.max() < 47


def test_a_disturbed_study_of_a_phantom(scans, monkeypatch, run_benchmark):
    monkeypatch.setattr(toys.benchmark("raw_disturbed"), "IN_PLANE_MM", (1.8, 2.2))  # a quarter of the voxels
    words = ("disturbed", BUNDLED / "phantom-tumour", scans, "--count", 1, "--degrees", 10, "--mm", 10)
    printed = run_benchmark("raw", *words)
    (row,) = [line.split("|") for line in printed.splitlines() if line.startswith("| BraTS2021_00001")]
    undisturbed, aligned = float(row[3]), float(row[4])
    before, after = float(row[6]), float(row[7])  # to the mask of the phantom
    errors = [float(one.split()[1]) for one in row[8].split(",")]
    assert aligned > 0.85
    assert undisturbed > 0.6  # thick slices of a small phantom
    assert 0.5 < before < 1
    assert abs(before - after) < 0.15
    assert len(errors) == 3
    assert max(errors) < 1.5
    assert "Registration error: mean" in printed
