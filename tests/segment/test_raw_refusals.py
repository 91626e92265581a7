"""Raw studies that cannot be segmented: a clear message, exit code 3 or 1, and no result, not even half of one."""

import sys
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from anofpdm.cli.main import app
from anofpdm.demo.run_demo import BUNDLED
from anofpdm.raw.register import Head
from anofpdm.scans import write_nifti
from anofpdm.scans.grid import Grid
from tests import toys
from tests.raw.worlds import moved_head, thick_grid

GRIDS = {"flair": ((2.0, 2.0, 5.0), (100, 110, 30)), "t2": ((1.8, 1.8, 6.0), (112, 120, 26))}


def stripped(name, seed=3):
    head = moved_head(name, np.eye(4), thick_grid(np.eye(4), *GRIDS[name]), seed)
    return replace(head, voxels=np.where(head.brain, head.voxels, 0))


def slab(head, first, end):
    """Some slices of it."""
    affine = head.grid.affine.copy()
    affine[:3, 3] += first * affine[:3, 2]
    part = head.voxels[:, :, first:end]
    return Head(part, head.brain[:, :, first:end], Grid.from_affine(part.shape, affine))


def bottle():
    grid = Grid.from_affine((64, 64, 40), toys.affine_of("RAS", (3, 3, 5), shape=(64, 64, 40)))
    inside = toys.ball(grid.affine, grid.shape, (0, 0, 0), 70)
    voxels = np.where(inside, 500 + np.random.default_rng(0).normal(0, 10, grid.shape), 0)
    return Head(voxels.astype(np.float32), inside, grid)


def segment(folder, *words, modalities=("flair", "t2")):
    files = [f"{name}={folder / f'anna_{name}.nii.gz'}" for name in modalities]
    command = ["segment", BUNDLED / "phantom-tumour", *files, "--out", folder / "out", "--engine", "student"]
    result = CliRunner().invoke(app, [str(word) for word in (*command, "--device", "cpu", *words)])
    written = [path.name for path in (folder / "out").rglob("*") if path.name in ("summary.json", "mask.nii.gz")]
    assert not written
    return result


CASES = {
    "a cropped series": (lambda: {"t2": slab(stripped("t2"), 0, 13)}, "brain is cut off by the edge|shows only"),
    "a cropped reference": (lambda: {"flair": slab(stripped("flair"), 11, 30)}, "the brain is cut off by the edge"),
    "a bottle": (lambda: {"t2": bottle()}, "too uniform for a brain"),
    "another patient": (lambda: {"t2": stripped("t2", seed=5)}, "is it of the same patient"),
    "a localiser": (lambda: {"t2": slab(stripped("t2"), 10, 13)}, "only 3 slices, a localiser or a slab"),
}


@pytest.mark.parametrize("case", CASES)
def test_series_that_show_no_whole_brain(case, tmp_path):
    make, message = CASES[case]
    for name, head in ({name: stripped(name) for name in GRIDS} | make()).items():
        write_nifti(tmp_path / f"anna_{name}.nii.gz", head.voxels, head.grid)
    result = segment(tmp_path)
    assert result.exit_code == 3, result.output
    assert any(text in result.output for text in message.split("|")), result.output


def test_an_empty_brain_mask(tmp_path):
    for name in GRIDS:
        head = stripped(name)
        write_nifti(tmp_path / f"anna_{name}.nii.gz", head.voxels, head.grid)
        write_nifti(tmp_path / f"anna_{name}_brain.nii.gz", np.zeros(head.grid.shape, np.uint8), head.grid)
    code = "import shutil,sys; shutil.copy(sys.argv[1][:-7] + '_brain.nii.gz', sys.argv[2])"
    result = segment(tmp_path, "--skull-strip", f'{sys.executable} -c "{code}" {{input}} {{output}}')
    assert result.exit_code == 3
    assert "a brain of 0 ml was found" in result.output


def test_a_series_with_several_volumes(tmp_path):
    head = stripped("flair")
    write_nifti(tmp_path / "anna_flair.nii.gz", head.voxels, head.grid)
    toys.save(tmp_path / "anna_t2.nii.gz", np.stack([stripped("t2").voxels] * 2, axis=-1), head.grid.affine)
    result = segment(tmp_path)
    assert result.exit_code == 3
    assert "4D (112 x 120 x 26 x 2); split it and give one 3D volume per file" in result.output


def test_one_series_where_two_are_needed(tmp_path):
    head = stripped("flair")
    write_nifti(tmp_path / "anna_flair.nii.gz", head.voxels, head.grid)
    result = segment(tmp_path, modalities=("flair",))
    assert result.exit_code != 0
    assert "t2" in f"{result.output}{result.exception}"
