"""The distance between slices: as in the header, or counted where the headers of training scans had no true one."""

import warnings
from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest

from anofpdm.calibration.fit_calibration import slice_positions
from anofpdm.cohorts import open_cohort
from anofpdm.errors import ScanWarning
from anofpdm.raw.cache import StudyCache
from anofpdm.scans import write_nifti
from anofpdm.scans.expects import ScanExpectation
from anofpdm.segment.model import Model
from anofpdm.segment.segment_scan import read
from anofpdm.util.artifacts import convert
from tests import toys
from tests.commands import run
from tests.optional_toys import CHANNELS, SHAPE, make_student
from tests.raw.toy_studies import moved_head, thick_grid

COUNTED = ScanExpectation(nominal_slice_mm=4.0)


def model_that(expects: ScanExpectation) -> Model:
    return Model(None, replace(make_student(), expects=expects))


def maps_and_warnings(model: Model, folder, slice_mm: float) -> tuple[np.ndarray, list[str]]:
    affine = toys.affine_of(spacing=(5.0, 5.0, slice_mm), shape=SHAPE)
    files = {
        name: toys.save(folder / f"{slice_mm:g}_{name}.nii.gz", toys.head(SHAPE, seed), affine)
        for seed, name in enumerate(CHANNELS)
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ScanWarning)
        result = model.segment(files)
    return result.decisions.maps, [str(warning.message) for warning in caught if "mm apart" in str(warning.message)]


def test_slices_are_counted_where_no_distance_was_known(tmp_path):
    nominal, _ = maps_and_warnings(model_that(COUNTED), tmp_path, 4.0)
    counted, warned = maps_and_warnings(model_that(COUNTED), tmp_path, 9.0)
    np.testing.assert_array_equal(counted, nominal)
    assert warned == []
    measured, warned = maps_and_warnings(model_that(ScanExpectation()), tmp_path, 9.0)  # neighbours are at 4 mm
    assert np.abs(measured - nominal).max() > 1e-3
    assert len(warned) == 1


@pytest.mark.parametrize(("expects", "slice_mm"), [(ScanExpectation(), 3.75), (COUNTED, 7.5)])
def test_thick_slices_of_a_raw_study_are_divided_unless_slices_are_counted(expects, slice_mm, tmp_path):
    head = moved_head("flair", np.eye(4), thick_grid(np.eye(4), (2.0, 2.0, 7.5), (100, 110, 20)))
    path = tmp_path / "flair.nii.gz"
    write_nifti(path, np.where(head.brain, head.voxels, 0), head.grid)
    model = model_that(expects)
    request = model.request(raw="always")
    prepared = read({"flair": path}, request, StudyCache())
    assert prepared.study is not None
    assert prepared.scan.grid.spacing_mm[2] == pytest.approx(slice_mm)  # 7.5 mm in parts of at most 4 mm


def test_a_cohort_without_known_distances_counts_slices(tmp_path):
    source = toys.brats_cohort(tmp_path / "scans", 3)
    for number, slice_mm in enumerate((1.0, 2.0, 6.0)):
        affine = toys.affine_of(spacing=(1, 1, slice_mm), shape=(24, 24, 20))
        for path in source.rglob(f"p{number}_*.nii.gz"):
            toys.save(path, np.asarray(nib.nifti1.load(path).dataobj), affine)
    for name, words in (("known", []), ("unknown", ["--unknown-spacing"])):
        run("prepare", "brats21", source, tmp_path / name, "--size", 32, "--raw", "never", *words)
    known, unknown = (open_cohort(tmp_path / name) for name in ("known", "unknown"))
    rows = np.arange(len(known))
    assert "nominal_slice_mm" not in known.manifest.expects
    np.testing.assert_array_equal(slice_positions(known, rows).heights_mm, known.indices * known.spacing_mm)
    assert unknown.manifest.expects["nominal_slice_mm"] == 2
    np.testing.assert_array_equal(slice_positions(unknown, rows).heights_mm, unknown.indices * 2.0)
    np.testing.assert_array_equal(slice_positions(known, rows, COUNTED).heights_mm, known.indices * 4.0)  # by a model


@pytest.mark.parametrize("wrong", [0, -2.0, "2", True, 1000.0])
def test_a_wrong_distance_is_refused(wrong):
    with pytest.raises(ValueError, match="nominal_slice_mm"):
        convert(ScanExpectation, {"nominal_slice_mm": wrong})
