"""Raw studies that cannot be segmented: a clear message, exit code 3, and no result, not even half of one."""

import sys

import numpy as np
import pytest

from anofpdm.demo.run_demo import BUNDLED
from anofpdm.raw.register import Head
from anofpdm.scans import write_nifti
from anofpdm.scans.grid import Grid
from tests import toys
from tests.commands import run
from tests.raw.toy_studies import stripped_head, thick_grid

GRIDS = {"flair": ((2.0, 2.0, 5.0), (100, 110, 30)), "t2": ((1.8, 1.8, 6.0), (112, 120, 26))}


def stripped(name):
    return stripped_head(name, np.eye(4), thick_grid(np.eye(4), *GRIDS[name]))


def lower_half(head):
    slices = head.voxels.shape[2] // 2
    part = head.voxels[:, :, :slices]
    return Head(part, head.brain[:, :, :slices], Grid.from_affine(part.shape, head.grid.affine))


def bottle():
    grid = Grid.from_affine((64, 64, 40), toys.affine_of("RAS", (3, 3, 5), shape=(64, 64, 40)))
    inside = toys.ball(grid.affine, grid.shape, (0, 0, 0), 70)
    voxels = np.where(inside, 500 + np.random.default_rng(0).normal(0, 10, grid.shape), 0)
    return Head(voxels.astype(np.float32), inside, grid)


CASES = {
    "a cropped series": (lambda: {"t2": lower_half(stripped("t2"))}, "the brain is cut off by the edge"),
    "a bottle": (lambda: {"t2": bottle()}, "too uniform for a brain"),
    "an empty brain mask": (dict, "a brain of 0 ml was found"),
}


@pytest.mark.parametrize("case", CASES)
def test_series_that_show_no_whole_brain(case, tmp_path):
    make, message = CASES[case]
    for name, head in ({name: stripped(name) for name in GRIDS} | make()).items():
        write_nifti(tmp_path / f"anna_{name}.nii.gz", head.voxels, head.grid)
        write_nifti(tmp_path / f"anna_{name}_brain.nii.gz", np.zeros(head.grid.shape, np.uint8), head.grid)
    code = "import shutil,sys; shutil.copy(sys.argv[1][:-7] + '_brain.nii.gz', sys.argv[2])"
    strip = ("--skull-strip", f'{sys.executable} -c "{code}" {{input}} {{output}}') if "mask" in case else ()
    files = (f"{name}={tmp_path / f'anna_{name}.nii.gz'}" for name in GRIDS)
    command = ["segment", BUNDLED / "phantom-tumour", *files, "--out", tmp_path / "out", "--engine", "student", *strip]
    result = run(*command, "--device", "cpu", code=3)
    assert message in result.output
    (picture,) = (tmp_path / "out").rglob("failed_*.png")
    assert f"(picture: {picture})" in result.output
    assert not [path for path in (tmp_path / "out").rglob("*") if path.name in ("summary.json", "mask.nii.gz")]
