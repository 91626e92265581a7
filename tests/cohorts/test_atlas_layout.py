"""ATLAS v2.0 and ARC files as people have them: sessions, several masks, other grids, other values."""

import numpy as np
import pytest

from anofpdm.cohorts.layouts.bids import find_atlas_subjects
from anofpdm.cohorts.plan import plan_cohort
from anofpdm.cohorts.prepare import prepare
from anofpdm.scoring.truth import Truth
from anofpdm.segment.inputs import find_targets
from tests import toys

SHAPE = (24, 24, 20)
TALLER = (24, 24, 21)
SPACE = "space-MNI152NLin2009aSym"
MASK = "label-L_desc-T1lesion_mask"
SECOND = MASK.replace("T1lesion", "T1lesion-2")


def lesion(*balls):
    affine = toys.affine_of("RAS", shape=SHAPE)
    return np.logical_or.reduce([toys.ball(affine, SHAPE, *ball) for ball in balls]).astype(np.uint8)


LEFT, RIGHT = lesion(((-5, 0, 2), 4)), lesion(((5, 2, -3), 3))


def file(root, subject, session, kind):
    parts = [f"sub-{subject}", *([f"ses-{session}"] if session else []), SPACE, kind]
    return root / f"sub-{subject}" / f"ses-{session or 1}" / "anat" / f"{'_'.join(parts)}.nii.gz"


def save(root, subject, kind, voxels, session="1", codes="RAS"):
    affine = toys.affine_of(codes, shape=voxels.shape)
    return toys.save(file(root, subject, session, kind), voxels, affine)


def save_scan(root, subject="a", session="1", mask_session="1", **masks):
    """A T1 scan, and masks in the order of MASK, SECOND."""
    save(root, subject, "T1w", toys.head(SHAPE, affine=toys.affine_of("RAS", shape=SHAPE)), session)
    for kind, voxels in zip((MASK, SECOND), masks.values(), strict=False):
        save(root, subject, kind, voxels, mask_session)


@pytest.fixture(scope="module")
def cohort(tmp_path_factory):
    """Scans by a name for what is unusual about them, in `scans` beside the cohort."""
    root = tmp_path_factory.mktemp("atlas") / "scans"
    save_scan(root, "left", mask=LEFT)
    save_scan(root, "union", mask=LEFT | RIGHT)
    save_scan(root, "two", mask=LEFT, second=RIGHT)
    save_scan(root, "bright", mask=LEFT.astype(np.int16) * 255)
    save_scan(root, "onlyimage", mask_session=None, mask=LEFT)  # of image and mask, the one that names a session
    save_scan(root, "onlymask", session=None, mask=LEFT)
    save_scan(root, "neither", session=None, mask_session=None, mask=LEFT)
    for subject, kind, shape, codes in (
        ("taller", MASK, TALLER, "RAS"), ("flipped", MASK, SHAPE, "LAS"), ("secondtaller", SECOND, TALLER, "RAS"),
    ):  # fmt: skip
        save_scan(root, subject, mask=LEFT)
        save(root, subject, kind, np.ones(shape, np.uint8), codes=codes)
    for session in ("1", "2"):
        save_scan(root, "several", session, mask_session=None, **({"mask": LEFT} if session == "1" else {}))
    save_scan(root, "visits", mask=LEFT)
    save(root, "visits", MASK, RIGHT, session="2")
    save_scan(root, "visits", session="3")
    return prepare(plan_cohort("atlas2", root, size=24), root.parent / "cohort")


def masks_of(cohort, scan):
    """bool [n, size, size]."""
    return Truth(cohort).masks(np.flatnonzero(cohort.scans == scan))


def test_the_lesion_is_the_union_of_masks_in_one_folder(cohort):
    np.testing.assert_array_equal(masks_of(cohort, "sub-two_ses-1"), masks_of(cohort, "sub-union_ses-1"))


@pytest.mark.parametrize("scan", ["sub-bright_ses-1", "sub-onlyimage_ses-1", "sub-onlymask", "sub-neither"])
def test_masks_of_other_values_and_names_without_a_session(cohort, scan):
    assert masks_of(cohort, scan).any()
    np.testing.assert_array_equal(masks_of(cohort, scan), masks_of(cohort, "sub-left_ses-1"))


@pytest.mark.parametrize(
    ("subject", "kind", "described"),
    [
        ("taller", MASK, "24 x 24 x 21 voxels of 1 x 1 x 1 mm (RAS)"),
        ("flipped", MASK, "(LAS)"),
        ("secondtaller", SECOND, "24 x 24 x 21 voxels"),
    ],
)
def test_a_mask_on_another_grid_names_both(cohort, subject, kind, described):
    mask, image = (file(cohort.path.parent / "scans", subject, "1", name) for name in (kind, "T1w"))
    reason = cohort.manifest.failed[f"sub-{subject}_ses-1"]
    assert reason.startswith(f"{mask} is not on the grid of {image}")
    assert described in reason
    assert "24 x 24 x 20 voxels of 1 x 1 x 1 mm (RAS)" in reason


def test_masks_without_an_image_and_images_without_a_mask(cohort):
    """The slices of session 3 have no label; the mask of another session is not taken."""
    root, failed = cohort.path.parent / "scans", cohort.manifest.failed
    mask = file(root, "several", None, MASK)
    assert f"{mask} (scans with images: sub-several_ses-1 and sub-several_ses-2); " in failed["sub-several"]
    assert f"no image for its mask {file(root, 'visits', '2', MASK)}" in failed["sub-visits_ses-2"]
    of_patient = cohort.patients == "sub-visits"
    assert set(cohort.scans[of_patient & cohort.has_mask]) == {"sub-visits_ses-1"}
    assert set(cohort.scans[of_patient & ~cohort.has_mask]) == {"sub-visits_ses-3"}


def test_segmentation_does_not_need_a_choice_of_masks(tmp_path):
    save_scan(tmp_path, mask=LEFT, second=RIGHT)
    (target,) = find_targets([str(tmp_path)], ("t1",))
    assert target.subject.problem is None


def test_masks_in_different_folders_are_not_joined(tmp_path):
    """The other one may be a prediction, or a copy of another version."""
    save_scan(tmp_path, mask=LEFT)
    other = toys.save(tmp_path / "derivatives" / "x" / f"sub-a_ses-1_{MASK}.nii.gz", RIGHT)
    (subject,) = find_atlas_subjects(tmp_path)
    assert "two files for its mask" in subject.problem
    assert str(other) in subject.problem
    assert "--entity" not in subject.problem  # not an option of this layout


def test_several_masks_in_a_bids_folder_need_a_choice(tmp_path):
    """There, they may be of several raters."""
    save_scan(tmp_path)
    save_scan(tmp_path, "b")
    for rater in (1, 2):
        save(tmp_path, "a", f"desc-lesion{rater}_mask", LEFT)
    problem = plan_cohort("bids", tmp_path).subjects[0].problem
    assert "two files for its mask" in problem
    assert "--entity" in problem
    chosen = plan_cohort("bids", tmp_path, entities={"desc": "lesion2"}).subjects[0]
    assert chosen.problem is None
    assert [path.name for path in chosen.masks] == [f"sub-a_ses-1_{SPACE}_desc-lesion2_mask.nii.gz"]
