"""Cohorts of raw scans: series on different grids, registered first, with their lesion masks and labels."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from anofpdm.choices import Raw, Template
from anofpdm.cohorts import open_cohort, raw_scans
from anofpdm.cohorts.plan import plan_cohort
from anofpdm.cohorts.prepare import prepare
from anofpdm.cohorts.raw_scans import RawOptions
from anofpdm.errors import CohortError
from anofpdm.raw.geometry import apply
from anofpdm.scans import read_volume, write_nifti
from anofpdm.scoring.truth import Truth
from tests import toys
from tests.raw.toy_studies import lesion_on, random_rigid, stripped_head, thick_grid, tumour_phantom

MOVEMENT = random_rigid(np.random.default_rng(8), 12.0, 15.0)
GRIDS = {
    "flair": thick_grid(np.eye(4), (2.0, 2.0, 4.0), (100, 110, 38)),
    "t2": thick_grid(MOVEMENT, (1.8, 1.8, 5.0), (112, 120, 32)),
}


def raw_cohort(folder, mask_on):
    """One patient in the BraTS layout, T2 after a movement, with the lesion mask on the grid of one of the series."""
    (folder / "p").mkdir(parents=True)
    for (name, grid), matrix in zip(GRIDS.items(), (np.eye(4), MOVEMENT), strict=True):
        write_nifti(folder / "p" / f"p_{name}.nii.gz", stripped_head(name, matrix, grid).voxels, grid)
        if name == mask_on:
            write_nifti(folder / "p" / "p_seg.nii.gz", lesion_on(grid, matrix).astype(np.uint8), grid)
    return folder


@pytest.fixture(scope="module", params=["flair", "t2"])
def folder(request, tmp_path_factory):
    """The raw scans in `in`, prepared to `out`."""
    path = tmp_path_factory.mktemp("raw")
    plan = plan_cohort("brats21", raw_cohort(path / "in", request.param), size=64)
    assert not prepare(plan, path / "out").manifest.failed
    return path


def expectations(out):
    return json.loads((out / "manifest.json").read_text())["expects"]


def test_raw_scans_become_slices_with_their_lesions(folder):
    cohort = open_cohort(folder / "out")
    assert cohort.modalities == ("flair", "t2")
    rows = np.arange(len(cohort))
    truth, brightness = Truth(cohort).masks(rows), cohort.pixels(rows)[:, 1]
    # The phantom's lesions are brighter than other tissue in T2, which is registered to FLAIR.
    assert brightness[truth].mean() > brightness[(brightness > -1) & ~truth].mean() + 0.2
    phantom_mm3 = (tumour_phantom().mask > 0).sum() * abs(np.linalg.det(tumour_phantom().affine[:3, :3]))
    assert truth.sum() * cohort.pixel_mm[0] ** 2 * cohort.spacing_mm[0] == pytest.approx(phantom_mm3, rel=0.15)
    field_of_view = pytest.approx(240, abs=2)
    assert expectations(cohort.path) == {"skull": False, "field_of_view_mm": field_of_view, "orientation": "axial"}


def test_registrations_are_kept_for_another_size(folder, tmp_path, monkeypatch):
    shutil.copytree(folder / "out", tmp_path / "out")
    stored = {path.name for path in (tmp_path / "out" / "preparation" / "p").iterdir()}
    assert {"brain_flair.nii.gz", "brain_t2.nii.gz", "manifest.json", "t2_to_flair.txt", "t2.png"} <= stored
    assert "t2.nii.gz" not in stored
    monkeypatch.setattr("anofpdm.raw.study.register_rigid", None)  # is not called
    assert not prepare(plan_cohort("brats21", folder / "in", size=32), tmp_path / "out", overwrite=True).manifest.failed


def test_never_refuses_raw_scans_and_auto_leaves_others_as_they_are(tmp_path):
    raw = plan_cohort("brats21", raw_cohort(tmp_path / "in", "flair"), size=64)
    with pytest.raises(CohortError, match="is not on the grid of"):
        prepare(replace(raw, raw=RawOptions(Raw.NEVER)), tmp_path / "refused")
    toys.brats_cohort(tmp_path / "toys", 3)
    plan = plan_cohort("brats21", tmp_path / "toys", size=16)
    for name in Raw.AUTO, Raw.NEVER:
        prepare(replace(plan, raw=RawOptions(name)), tmp_path / name)
    slices = [(tmp_path / name / "slices.npy").read_bytes() for name in (Raw.AUTO, Raw.NEVER)]
    assert slices[0] == slices[1]


def test_labels_of_slices_do_not_fit_a_template(tmp_path):
    toys.brats_cohort(tmp_path / "in", 1, masks=False)
    (tmp_path / "labels.csv").write_text("subject,slice,label\np0,10,healthy\n")
    plan = plan_cohort("brats21", tmp_path / "in", size=16, labels=tmp_path / "labels.csv")
    plan = replace(plan, raw=RawOptions(template=Template.MNI152))
    with pytest.raises(CohortError, match=r"labels\.csv: .* give --raw never"):
        prepare(plan, tmp_path / "out")


@pytest.mark.parametrize(("patients", "known"), [(8, True), (4, False)])
def test_where_scans_lie_in_template_space_is_measured_on_training_scans(patients, known, tmp_path, monkeypatch):
    """The mean over training scans; none where there are too few."""
    toys.brats_cohort(tmp_path / "in", patients)
    plan = plan_cohort("brats21", tmp_path / "in", size=16)
    plan = replace(plan, raw=RawOptions(Raw.NEVER, template=Template.MNI152))
    training = [subject.name for subject in plan.subjects if plan.split[subject.patient] == "train"]
    shifts = iter(range(100))
    monkeypatch.setattr(raw_scans, "measure_affine", lambda _: np.eye(4) * next(shifts))
    prepare(plan, tmp_path / "out")
    assert next(shifts) == len(training)
    expects = expectations(tmp_path / "out")
    if known:
        mean = np.reshape(expects["template_affine"], (3, 4))
        np.testing.assert_allclose(mean, np.eye(4)[:3] * (len(training) - 1) / 2)
        image = read_volume(next((tmp_path / "in").glob("*/*flair.nii.gz")))
        corners = [apply(image.grid.affine, np.array(corner)) for corner in ([0, 0, 0], np.array(image.grid.shape) - 1)]
        assert expects["centre_mm"] == pytest.approx(np.mean(corners, axis=0)[:2])
    else:
        assert not {"template_affine", "centre_mm"} & set(expects)
