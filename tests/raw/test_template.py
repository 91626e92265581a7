"""Registration to MNI space: the template itself, deformed by a known affine, and studies of phantoms."""

import numpy as np
import pytest

from anofpdm.errors import ConfigError, ScanError
from anofpdm.raw import preparation
from anofpdm.raw.geometry import apply, resample
from anofpdm.raw.preparation import Preparation
from anofpdm.raw.register import Head
from anofpdm.raw.study import StudyOptions, prepare_study
from anofpdm.raw.template import (
    affine_matrix,
    in_template_space,
    load_template,
    load_tissues,
    measure_affine,
    register_affine,
)
from anofpdm.scans import write_nifti
from anofpdm.scans.grid import Grid
from tests.raw.worlds import moved_head, random_rigid, thick_grid, tumour_phantom

datasets = pytest.importorskip("nilearn.datasets")
CENTRE = np.array([0.0, -17.0, 6.0])
DEFORMED = affine_matrix(np.array([12, -8, 15, 20, -10, 15, 0.08, -0.06, 0.05, 0.03, -0.02, 0.02]), CENTRE)


@pytest.mark.parametrize("contrast", ["t1", "inverted"])
def test_a_known_affine_is_recovered(contrast):
    template = load_template(2)
    grid = thick_grid(DEFORMED @ random_rigid(np.random.default_rng(1), 5.0, 3.0), (2.0, 2.0, 4.0), (110, 120, 48))
    back = np.linalg.inv(DEFORMED)
    brain = resample(template.brain, template.grid, grid, back) >= 0.5
    voxels = resample(template.voxels, template.grid, grid, back)
    if contrast == "inverted":  # fluid bright, white matter dark
        voxels = np.where(brain, voxels.max() - voxels, 0)
    found = register_affine(template, Head(voxels, brain, grid))
    positions = apply(template.grid.affine, np.argwhere(template.brain)[::50])
    assert not found.kept
    assert np.linalg.norm(apply(found.matrix, positions) - apply(DEFORMED, positions), axis=1).mean() < 1.0


def test_the_space_of_a_scan_is_recognised():
    template = load_template(2)
    assert in_template_space(template.brain, template.grid)
    assert not in_template_space(template.brain, Grid.from_affine(template.grid.shape, DEFORMED @ template.grid.affine))
    assert register_affine(template, template).kept


def test_how_another_program_normalised_a_scan_is_measured():
    """Slightly smaller and tilted, as scans are that were normalised to another average brain."""
    template = load_template(2)
    grid, other = template.grid, affine_matrix(np.array([1, 0, -1, 1, 0, -1, -0.02, -0.01, 0.01, 0, 0, 0]), CENTRE)
    brain, voxels = (resample(one, grid, grid, np.linalg.inv(other)) for one in (template.brain, template.voxels))
    measured = measure_affine(Head(voxels, brain >= 0.5, grid))
    assert measured is not None
    positions = apply(grid.affine, np.argwhere(template.brain)[::50])
    expected = apply(other, positions)
    assert np.linalg.norm(apply(measured, positions) - expected, axis=1).mean() < 0.5
    assert np.linalg.norm(positions - expected, axis=1).mean() > 1.5
    elsewhere = Grid.from_affine(grid.shape, DEFORMED @ grid.affine)
    assert measure_affine(Head(template.voxels, template.brain, elsewhere)) is None


MOVEMENT = random_rigid(np.random.default_rng(3), 15.0, 20.0)


@pytest.fixture
def tools(tmp_path):
    return Preparation(lambda volume: volume.voxels > 0, "phantom", tmp_path / "preparation")


def write_moved(path):
    grid = thick_grid(MOVEMENT, (2.0, 2.0, 4.0), (98, 112, 38))
    head = moved_head("flair", MOVEMENT, grid)
    write_nifti(path, np.where(head.brain, head.voxels, 0), grid)
    return head


def test_a_study_comes_to_where_the_model_expects_it(tmp_path, tools):
    """The brain is where the affine puts it, and masks come back to the same voxels."""
    head = write_moved(tmp_path / "flair.nii.gz")
    shifted = affine_matrix(np.array([0, 0, 0, 9.0, -6.0, 4.0, 0.05, 0, 0, 0, 0, 0]), CENTRE)
    there = {"template_affine": tuple(shifted[:3].ravel()), "centre_mm": (7.3, -25.0)}
    options = StudyOptions(template=True, **there)
    files = {"flair": tmp_path / "flair.nii.gz"}
    studies = [prepare_study(files, tools, one) for one in (StudyOptions(template=True), options)]
    plain, moved = (Head(one.scan.volumes[0], one.brain, one.scan.grid).centre_mm for one in studies)
    np.testing.assert_allclose(moved, apply(shifted, plain), atol=0.3)
    grid = studies[1].scan.grid
    np.testing.assert_allclose(apply(grid.affine, (np.array(grid.shape) - 1) / 2)[:2], there["centre_mm"])
    for study in studies:
        back = study.to_reference(study.brain) >= 0.5
        assert 2 * (back & head.brain).sum() / (back.sum() + head.brain.sum()) > 0.97


def test_a_study_comes_in_template_space_and_masks_go_back(tmp_path, tools, monkeypatch):
    """Phantoms are variations of the template."""
    head = write_moved(tmp_path / "flair.nii.gz")
    grid = head.grid
    study = prepare_study({"flair": tmp_path / "flair.nii.gz"}, tools, StudyOptions(template=True))
    assert study.template is not None
    assert study.template.overlap > 0.9
    record = tools.save_study(study).record
    assert record["seconds"] >= record["template"]["seconds"] > 0
    assert in_template_space(study.brain, study.scan.grid)
    np.testing.assert_allclose(study.scan.grid.affine[:3, :3], np.eye(3))
    phantom = tumour_phantom()
    source = Grid.from_affine(phantom.mask.shape, phantom.affine)
    lesion = resample(phantom.mask > 0, source, grid, np.linalg.inv(MOVEMENT)) >= 0.5
    in_scan = study.from_series(lesion, study.reference) >= 0.5
    back = study.to_reference(in_scan) >= 0.5
    assert 2 * (back & lesion).sum() / (back.sum() + lesion.sum()) > 0.9
    monkeypatch.setattr(preparation, "register_affine", None)  # what is stored is not computed again
    again = tools.register_to_template(study.template.head, head)
    np.testing.assert_allclose(again.matrix, study.template.matrix, atol=1e-9)


def test_something_else_does_not_fit_the_template(tmp_path):
    grid = Grid.from_affine((60, 60, 60), np.diag([3.0, 3.0, 3.0, 1.0]))
    voxels = np.random.default_rng(0).uniform(10, 20, grid.shape).astype(np.float32)
    bar = np.zeros(grid.shape, bool)
    bar[5:55, 18:42, 18:42] = True  # of the volume of a brain, but no brain
    write_nifti(tmp_path / "flair.nii.gz", voxels * bar, grid)
    tools = Preparation(lambda volume: volume.voxels > 0, "phantom")
    with pytest.raises(ScanError, match="does not fit the template"):
        prepare_study({"flair": tmp_path / "flair.nii.gz"}, tools, StudyOptions(template=True))


def test_coarse_templates_are_those_of_nilearn():
    template, (grey, white) = load_template(2), load_tissues(2)
    expected = datasets.load_mni152_template(2)
    np.testing.assert_array_equal(template.brain, np.asarray(datasets.load_mni152_brain_mask(2).dataobj) > 0)
    np.testing.assert_allclose(template.voxels, np.where(template.brain, expected.dataobj, 0), atol=1e-6)
    np.testing.assert_allclose(template.grid.affine, expected.affine)
    np.testing.assert_allclose(grey, datasets.load_mni152_gm_template(2).dataobj, atol=1e-6)
    np.testing.assert_allclose(white, datasets.load_mni152_wm_template(2).dataobj, atol=1e-6)


def test_the_error_names_the_extra(monkeypatch):
    load_template.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "nilearn", None)
    with pytest.raises(ConfigError, match=r"pip install 'anofpdm\[raw\]'"):
        load_template()
