"""ATLAS v2.0 and ARC files as people have them: sessions, several masks, other grids, other values."""

import numpy as np
import pytest

from anofpdm.cohorts import open_cohort
from anofpdm.cohorts.layouts.bids import find_atlas_subjects as subjects
from anofpdm.cohorts.plan import plan_cohort
from anofpdm.cohorts.prepare import prepare
from anofpdm.scoring.truth import Truth
from anofpdm.segment.inputs import find_targets
from tests import toys

SHAPE = (24, 24, 20)
AFFINE = toys.affine_of("RAS", shape=SHAPE)
SPACE = "space-MNI152NLin2009aSym"
MASK = "label-L_desc-T1lesion_mask"
SECOND = MASK.replace("T1lesion", "T1lesion-2")
LEFT, RIGHT = ((-5, 0, 2), 4), ((5, 2, -3), 3)  # centre and radius of two lesions, in mm


def lesion(*balls):
    return np.logical_or.reduce([toys.ball(AFFINE, SHAPE, *ball) for ball in balls]).astype(np.uint8)


def file(root, subject, session, kind):
    parts = [f"sub-{subject}", *([f"ses-{session}"] if session else []), SPACE, kind]
    return root / f"sub-{subject}" / f"ses-{session or 1}" / "anat" / f"{'_'.join(parts)}.nii.gz"


def save_scan(root, subject="a", session="1", masks=None, mask_session="1"):
    """A T1 scan and masks by their BIDS names."""
    image = toys.save(file(root, subject, session, "T1w"), toys.head(SHAPE, affine=AFFINE), AFFINE)
    for kind, voxels in (masks or {}).items():
        toys.save(file(root, subject, mask_session, kind), voxels, AFFINE)
    return image


def prepared_masks(tmp_path):
    """Masks by scan, bool [n, size, size], and the reasons of scans that failed."""
    cohort = prepare(plan_cohort("atlas2", tmp_path / "scans", size=24), tmp_path / "cohort")
    rows = np.flatnonzero(cohort.has_mask)
    masks = Truth(cohort).masks(rows)
    by_scan = {str(scan): masks[cohort.scans[rows] == scan] for scan in np.unique(cohort.scans[rows])}
    return by_scan, cohort.manifest.failed


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """The left lesion, and both, each in a single file with the values 0 and 1."""
    folder = tmp_path_factory.mktemp("expected")
    save_scan(folder / "scans", "left", masks={MASK: lesion(LEFT)})
    save_scan(folder / "scans", "union", masks={MASK: lesion(LEFT, RIGHT)})
    masks, _ = prepared_masks(folder)
    return {name.removeprefix("sub-").removesuffix("_ses-1"): mask for name, mask in masks.items()}


def test_the_lesion_is_the_union_of_masks_in_one_folder(expected, tmp_path):
    save_scan(tmp_path / "scans", masks={MASK: lesion(LEFT), SECOND: lesion(RIGHT)})
    masks, _ = prepared_masks(tmp_path)
    np.testing.assert_array_equal(masks["sub-a_ses-1"], expected["union"])
    (target,) = find_targets([str(tmp_path / "scans")], ("t1",))
    assert target.subject.problem is None


def test_masks_in_different_folders_are_not_joined(tmp_path):
    """The other one may be a prediction, or a copy of another version."""
    save_scan(tmp_path, masks={MASK: lesion(LEFT)})
    other = toys.save(tmp_path / "derivatives" / "x" / f"sub-a_ses-1_{MASK}.nii.gz", lesion(RIGHT), AFFINE)
    (subject,) = subjects(tmp_path)
    assert "two files for its mask" in subject.problem
    assert str(other) in subject.problem
    assert "--entity" not in subject.problem  # not an option of this layout


def test_several_masks_in_a_bids_folder_need_a_choice(tmp_path):
    """There, they may be of several raters."""
    save_scan(tmp_path, masks={f"desc-lesion{rater}_mask": lesion(LEFT) for rater in (1, 2)})
    save_scan(tmp_path, "b")
    plan = plan_cohort("bids", tmp_path)
    assert "two files for its mask" in plan.subjects[0].problem
    assert "--entity" in plan.subjects[0].problem
    chosen = plan_cohort("bids", tmp_path, entities={"desc": "lesion2"}).subjects[0]
    assert chosen.problem is None
    assert [path.name for path in chosen.masks] == [f"sub-a_ses-1_{SPACE}_desc-lesion2_mask.nii.gz"]


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32])
def test_masks_of_0_and_255(expected, tmp_path, dtype):
    save_scan(tmp_path / "scans", masks={MASK: lesion(LEFT).astype(dtype) * 255})
    masks, _ = prepared_masks(tmp_path)
    np.testing.assert_array_equal(masks["sub-a_ses-1"], expected["left"])


@pytest.mark.parametrize(
    ("kind", "shape", "codes", "described"),
    [
        (MASK, (24, 24, 21), "RAS", "24 x 24 x 21 voxels of 1 x 1 x 1 mm (RAS)"),
        (MASK, SHAPE, "LAS", "(LAS)"),
        (SECOND, (24, 24, 21), "RAS", "24 x 24 x 21 voxels"),
    ],
)
def test_a_mask_on_another_grid_names_both(tmp_path, kind, shape, codes, described):
    save_scan(tmp_path / "scans", "good", masks={MASK: lesion(LEFT)})
    image = save_scan(tmp_path / "scans", "bad", masks={MASK: lesion(LEFT)})
    path = file(tmp_path / "scans", "bad", "1", kind)
    toys.save(path, np.ones(shape, np.uint8), toys.affine_of(codes, shape=shape))
    masks, failed = prepared_masks(tmp_path)
    assert failed["sub-bad_ses-1"].startswith(f"{path} is not on the grid of {image}")
    assert described in failed["sub-bad_ses-1"]
    assert "24 x 24 x 20 voxels of 1 x 1 x 1 mm (RAS)" in failed["sub-bad_ses-1"]
    assert set(masks) == {"sub-good_ses-1"}


@pytest.mark.parametrize(("session", "mask_session"), [("1", None), (None, "1"), (None, None)])
def test_names_without_a_session(expected, tmp_path, session, mask_session):
    save_scan(tmp_path / "scans", session=session, masks={MASK: lesion(LEFT)}, mask_session=mask_session)
    ((name, mask),) = prepared_masks(tmp_path)[0].items()
    assert name == ("sub-a_ses-1" if session else "sub-a")
    np.testing.assert_array_equal(mask, expected["left"])


def test_a_mask_without_a_session_among_several(tmp_path):
    save_scan(tmp_path / "scans", session="1", masks={MASK: lesion(LEFT)}, mask_session=None)
    save_scan(tmp_path / "scans", session="2")
    mask = file(tmp_path / "scans", "a", None, MASK)
    (problem,) = filter(None, (scan.problem for scan in subjects(tmp_path / "scans")))
    assert f"{mask} names no session, and there are sub-a_ses-1 and sub-a_ses-2" in problem


def test_a_mask_without_its_image_and_an_image_without_its_mask(tmp_path):
    """The slices of session 3 have no label; the mask of another session is not taken."""
    save_scan(tmp_path / "scans", masks={MASK: lesion(LEFT)})
    mask = toys.save(file(tmp_path / "scans", "a", "2", MASK), lesion(RIGHT), AFFINE)
    save_scan(tmp_path / "scans", session="3")
    masks, failed = prepared_masks(tmp_path)
    assert f"no image for its mask {mask}" in failed["sub-a_ses-2"]
    assert set(masks) == {"sub-a_ses-1"}
    assert set(open_cohort(tmp_path / "cohort").scans) == {"sub-a_ses-1", "sub-a_ses-3"}
