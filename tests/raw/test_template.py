"""Registration to MNI space: the template itself, deformed by a known affine, and studies of phantoms."""

import numpy as np
import pytest

from anofpdm.errors import ConfigError, ScanError
from anofpdm.raw.cache import StudyCache
from anofpdm.raw.geometry import apply, resample
from anofpdm.raw.register import Head, Registration, affine_matrix, register_affine
from anofpdm.raw.study import Study, StudyOptions
from anofpdm.raw.study_checks import check_template
from anofpdm.raw.template import in_template_space, load_template, load_tissues, measure_affine, overlap_with
from anofpdm.scans import write_nifti
from anofpdm.scans.expects import ScanExpectation
from anofpdm.scans.grid import Grid
from tests.raw.toy_studies import lesion_on, mean_error_mm, moved_head, random_rigid, stripped_head, thick_grid
from tests.toys import dice

datasets = pytest.importorskip("nilearn.datasets")
CENTRE = np.array([0.0, -17.0, 6.0])
DEFORMED = affine_matrix(np.array([12, -8, 15, 20, -10, 15, 0.08, -0.06, 0.05, 0.03, -0.02, 0.02]), CENTRE)


def deformed_template(matrix, grid):
    template = load_template(2)
    brain, voxels = (
        resample(array, template.grid, grid, np.linalg.inv(matrix)) for array in (template.brain, template.voxels)
    )
    return Head(voxels, brain >= 0.5, grid)


def test_a_known_affine_is_recovered():
    """In another contrast: fluid bright, white matter dark."""
    grid = thick_grid(DEFORMED @ random_rigid(np.random.default_rng(1), 5.0, 3.0), (2.0, 2.0, 4.0), (110, 120, 48))
    head = deformed_template(DEFORMED, grid)
    head = Head(np.where(head.brain, head.voxels.max() - head.voxels, 0), head.brain, grid)
    registration = register_affine(load_template(2), head)
    assert not registration.kept
    assert mean_error_mm(registration.matrix, DEFORMED, load_template(2)) < 1.0


def test_how_another_program_normalised_a_scan_is_measured():
    """Slightly smaller and tilted, as scans are that were normalised to another average brain."""
    template = load_template(2)
    other = affine_matrix(np.array([1, 0, -1, 1, 0, -1, -0.02, -0.01, 0.01, 0, 0, 0]), CENTRE)
    measured = measure_affine(deformed_template(other, template.grid))
    assert measured is not None
    assert mean_error_mm(measured, other, template) < 0.5 < 1.5 < mean_error_mm(np.eye(4), other, template)
    elsewhere = Grid.from_affine(template.grid.shape, DEFORMED @ template.grid.affine)
    assert measure_affine(Head(template.voxels, template.brain, elsewhere)) is None


MOVEMENT = random_rigid(np.random.default_rng(3), 15.0, 20.0)
GRID = thick_grid(MOVEMENT, (2.0, 2.0, 4.0), (98, 112, 38))


def test_a_study_comes_to_where_the_model_expects_it_and_masks_go_back(tmp_path, monkeypatch):
    """Phantoms are variations of the template."""
    files = {"flair": tmp_path / "flair.nii.gz"}
    write_nifti(files["flair"], stripped_head("flair", MOVEMENT, GRID).voxels, GRID)
    brain = moved_head("flair", MOVEMENT, GRID).brain
    shifted = affine_matrix(np.array([0, 0, 0, 9.0, -6.0, 4.0, 0.05, 0, 0, 0, 0, 0]), CENTRE)
    there = {"template_affine": tuple(shifted[:3].ravel()), "centre_mm": (7.3, -25.0)}
    cache = StudyCache(tmp_path / "preparation")
    plain = Study(files, StudyOptions(ScanExpectation(template="mni152")), cache).prepare()
    assert plain.record["template"]["overlap"] > 0.9
    assert in_template_space(plain.brain, plain.scan.grid)
    monkeypatch.setattr("anofpdm.raw.study.register_affine", None)  # what is stored is not computed again
    moved = Study(files, StudyOptions(ScanExpectation(template="mni152", **there)), cache).prepare()
    centres = [Head(study.brain, study.brain, study.scan.grid).centre_mm for study in (plain, moved)]
    np.testing.assert_allclose(centres[1], apply(shifted, centres[0]), atol=0.3)
    grid = moved.scan.grid
    np.testing.assert_allclose(apply(grid.affine, (np.array(grid.shape) - 1) / 2)[:2], there["centre_mm"])
    lesion = lesion_on(GRID, MOVEMENT)
    for study in (plain, moved):
        assert dice(study.to_reference(study.brain) >= 0.5, brain) > 0.97
        in_scan = study.from_series(lesion, study.reference) >= 0.5
        assert dice(study.to_reference(in_scan) >= 0.5, lesion) > 0.9


@pytest.mark.parametrize(("shift_mm", "information"), [(0.0, 0.1), (40.0, 0.3)])
def test_something_else_does_not_fit_the_template(shift_mm, information):
    template, matrix = load_template(2), np.eye(4)
    matrix[0, 3] = shift_mm
    overlap = overlap_with(template, template.brain, template.grid, matrix)
    with pytest.raises(ScanError, match=r"flair\.nii: does not fit the template"):
        check_template(Registration(matrix, information, kept=False), overlap, "flair.nii")


def test_templates_are_those_of_nilearn():
    template, tissues = load_template(2), load_tissues(2)
    expected = datasets.load_mni152_template(2)
    np.testing.assert_array_equal(template.brain, np.asarray(datasets.load_mni152_brain_mask(2).dataobj) > 0)
    np.testing.assert_allclose(template.voxels, np.where(template.brain, expected.dataobj, 0), atol=1e-6)
    np.testing.assert_allclose(template.grid.affine, expected.affine)
    for tissue, name in zip(tissues, ("gm", "wm"), strict=True):
        np.testing.assert_allclose(tissue, getattr(datasets, f"load_mni152_{name}_template")(2).dataobj, atol=1e-6)


def test_the_error_names_the_extra(monkeypatch):
    load_template.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "nilearn", None)
    with pytest.raises(ConfigError, match=r"pip install 'anofpdm\[raw\]'"):
        load_template()
