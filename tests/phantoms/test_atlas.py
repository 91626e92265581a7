"""ATLAS v2.0 and ARC files as people have them: sessions, several masks, other grids, other values."""

import numpy as np
import pytest
from typer.testing import CliRunner

from anofpdm.cli.main import app
from anofpdm.cohorts import open_cohort
from anofpdm.cohorts.layouts import bids
from anofpdm.cohorts.plan import plan_cohort
from anofpdm.scoring.truth import Truth
from anofpdm.segment.inputs import find_targets
from tests import toys

SHAPE = (24, 24, 20)
AFFINE = toys.affine_of("RAS", shape=SHAPE)
SPACE = "space-MNI152NLin2009aSym"
MASK = "label-L_desc-T1lesion_mask"
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


def prepare(source, out, code=0):
    words = ["prepare", "atlas2", source, out, "--size", 24, "--workers", 1]
    done = CliRunner().invoke(app, [*map(str, words)], env={"COLUMNS": "400"})
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == code, done.output
    return done.output


def prepared_masks(out):
    """Masks by scan, bool [n, size, size]."""
    cohort = open_cohort(out)
    rows = np.flatnonzero(cohort.has_mask)
    masks = Truth(cohort).masks(rows)
    return {str(scan): masks[cohort.scans[rows] == scan] for scan in np.unique(cohort.scans[rows])}


def expected_masks(tmp_path, *balls):
    """The same lesions in a single file with the values 0 and 1."""
    save_scan(tmp_path / "expected", masks={MASK: lesion(*balls)})
    prepare(tmp_path / "expected", tmp_path / "expected_cohort")
    (masks,) = prepared_masks(tmp_path / "expected_cohort").values()
    assert masks.any()
    return masks


class TestSeveralMasks:
    def test_their_union_is_the_lesion(self, tmp_path):
        second = MASK.replace("T1lesion", "T1lesion-2")
        save_scan(tmp_path / "scans", masks={MASK: lesion(LEFT), second: lesion(RIGHT)})
        prepare(tmp_path / "scans", tmp_path / "cohort")
        masks = prepared_masks(tmp_path / "cohort")["sub-a_ses-1"]
        np.testing.assert_array_equal(masks, expected_masks(tmp_path, LEFT, RIGHT))

    def test_masks_in_different_folders_are_not_joined(self, tmp_path):
        """The other one may be a prediction, or a copy of another version."""
        save_scan(tmp_path, masks={MASK: lesion(LEFT)})
        other = toys.save(tmp_path / "derivatives" / "x" / f"sub-a_ses-1_{MASK}.nii.gz", lesion(RIGHT), AFFINE)
        (subject,) = bids.find_atlas_subjects(tmp_path)
        assert "two files for its mask" in subject.problem
        assert str(other) in subject.problem
        assert "--entity" not in subject.problem  # not an option of this layout

    def test_a_bids_folder_needs_a_choice(self, tmp_path):
        """There, several masks may be of several raters."""
        raters = {f"desc-lesion{rater}_mask": lesion(LEFT) for rater in (1, 2)}
        save_scan(tmp_path, masks=raters)
        save_scan(tmp_path, "b")
        plan = plan_cohort("bids", tmp_path)
        assert "two files for its mask" in plan.subjects[0].problem
        assert "--entity" in plan.subjects[0].problem
        chosen = plan_cohort("bids", tmp_path, entities={"desc": "lesion2"}).subjects[0]
        assert chosen.problem is None
        assert [path.name for path in chosen.masks] == [f"sub-a_ses-1_{SPACE}_desc-lesion2_mask.nii.gz"]

    def test_segmentation_needs_no_choice(self, tmp_path):
        save_scan(tmp_path, masks={MASK: lesion(LEFT), MASK.replace("T1lesion", "T1lesion-2"): lesion(RIGHT)})
        (target,) = find_targets([str(tmp_path)], ("t1",))
        assert target.subject.problem is None


class TestValues:
    @pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.float32])
    def test_0_and_255(self, tmp_path, dtype):
        save_scan(tmp_path / "scans", masks={MASK: lesion(LEFT).astype(dtype) * 255})
        prepare(tmp_path / "scans", tmp_path / "cohort")
        masks = prepared_masks(tmp_path / "cohort")["sub-a_ses-1"]
        np.testing.assert_array_equal(masks, expected_masks(tmp_path, LEFT))


class TestGrids:
    @pytest.mark.parametrize(
        ("shape", "codes", "found"),
        [((24, 24, 21), "RAS", "24 x 24 x 21 voxels of 1 x 1 x 1 mm (RAS)"), (SHAPE, "LAS", "(LAS)")],
    )
    def test_a_mask_on_another_grid_names_both(self, tmp_path, shape, codes, found):
        save_scan(tmp_path / "scans", "good", masks={MASK: lesion(LEFT)})
        image = save_scan(tmp_path / "scans", "bad")
        path = file(tmp_path / "scans", "bad", "1", MASK)
        toys.save(path, np.ones(shape, np.uint8), toys.affine_of(codes, shape=shape))
        text = prepare(tmp_path / "scans", tmp_path / "cohort", code=3)
        assert f"failed: sub-bad_ses-1: {path} is not on the grid of {image}" in text
        assert found in text
        assert "24 x 24 x 20 voxels of 1 x 1 x 1 mm (RAS)" in text
        assert set(prepared_masks(tmp_path / "cohort")) == {"sub-good_ses-1"}

    def test_so_does_the_second_of_two_masks(self, tmp_path):
        save_scan(tmp_path / "scans", "good", masks={MASK: lesion(LEFT)})
        save_scan(tmp_path / "scans", "bad", masks={MASK: lesion(LEFT)})
        path = file(tmp_path / "scans", "bad", "1", MASK.replace("T1lesion", "T1lesion-2"))
        toys.save(path, np.ones((24, 24, 21), np.uint8))
        assert f"failed: sub-bad_ses-1: {path} is not on the grid of" in prepare(
            tmp_path / "scans", tmp_path / "cohort", code=3
        )


class TestSessions:
    @pytest.mark.parametrize(("session", "mask_session"), [("1", None), (None, "1"), (None, None)])
    def test_names_without_a_session(self, tmp_path, session, mask_session):
        save_scan(tmp_path / "scans", session=session, masks={MASK: lesion(LEFT)}, mask_session=mask_session)
        prepare(tmp_path / "scans", tmp_path / "cohort")
        ((name, masks),) = prepared_masks(tmp_path / "cohort").items()
        assert name == ("sub-a_ses-1" if session else "sub-a")
        np.testing.assert_array_equal(masks, expected_masks(tmp_path, LEFT))

    def test_a_mask_without_a_session_among_several(self, tmp_path):
        save_scan(tmp_path / "scans", session="1", masks={MASK: lesion(LEFT)}, mask_session=None)
        save_scan(tmp_path / "scans", session="2")
        text = prepare(tmp_path / "scans", tmp_path / "cohort", code=3)
        mask = file(tmp_path / "scans", "a", None, MASK)
        assert f"{mask} names no session, and there are sub-a_ses-1 and sub-a_ses-2" in text

    def test_the_image_of_a_session_is_missing(self, tmp_path):
        save_scan(tmp_path / "scans", masks={MASK: lesion(LEFT)})
        mask = toys.save(file(tmp_path / "scans", "a", "2", MASK), lesion(RIGHT), AFFINE)
        text = prepare(tmp_path / "scans", tmp_path / "cohort", code=3)
        assert f"failed: sub-a_ses-2: sub-a_ses-2: no image for its mask {mask}" in text
        assert set(prepared_masks(tmp_path / "cohort")) == {"sub-a_ses-1"}

    def test_the_mask_of_a_session_is_missing(self, tmp_path):
        """Its slices have no label; the mask of the other session is not taken."""
        save_scan(tmp_path / "scans", session="1", masks={MASK: lesion(LEFT)})
        save_scan(tmp_path / "scans", session="2")
        prepare(tmp_path / "scans", tmp_path / "cohort")
        assert set(prepared_masks(tmp_path / "cohort")) == {"sub-a_ses-1"}
        assert set(open_cohort(tmp_path / "cohort").scans) == {"sub-a_ses-1", "sub-a_ses-2"}
