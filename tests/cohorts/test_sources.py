"""Layouts of public data sets, recognised by file names alone: the files here are empty."""

import os

import pytest

from anofpdm.cohorts.layouts import bids, brats, folder
from anofpdm.cohorts.plan import plan_cohort
from anofpdm.cohorts.subjects import all_modalities, with_modalities
from anofpdm.errors import CohortError


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


class TestBrats:
    def test_2021_names(self, tmp_path):
        stem = "BraTS2021_00000/BraTS2021_00000_"
        touch(tmp_path, *[f"{stem}{role}.nii.gz" for role in ("flair", "t1", "t1ce", "t2", "seg")])
        (subject,) = brats.find_subjects(tmp_path)
        assert (subject.name, subject.patient) == ("BraTS2021_00000", "BraTS2021_00000")
        assert {role: path.name for role, path in subject.images.items()} == {
            role: f"BraTS2021_00000_{role}.nii.gz" for role in ("flair", "t1", "t1ce", "t2")
        }
        assert subject.masks[0].name == "BraTS2021_00000_seg.nii.gz"

    def test_later_names_and_two_visits_of_one_patient(self, tmp_path):
        for visit in ("000", "001"):
            name = f"BraTS-GLI-00005-{visit}"
            touch(tmp_path, *[f"deep/er/{name}/{name}-{role}.nii.gz" for role in ("t2f", "t1n", "t1c", "t2w", "seg")])
        first, second = brats.find_subjects(tmp_path)
        assert (first.name, second.name) == ("BraTS-GLI-00005-000", "BraTS-GLI-00005-001")
        assert first.patient == second.patient == "BraTS-GLI-00005"
        assert set(first.images) == set(brats.MODALITIES)
        assert first.images["flair"].name.endswith("-t2f.nii.gz")
        assert first.images["t1ce"].name.endswith("-t1c.nii.gz")

    def test_later_folders_with_earlier_suffixes_unpacked(self, tmp_path):
        touch(tmp_path, "BraTS-GLI-00119-000_flair.nii", "BraTS-GLI-00119-000_T2.nii")
        (subject,) = brats.find_subjects(tmp_path)
        assert set(subject.images) == {"flair", "t2"}
        assert not subject.masks

    def test_other_files_are_skipped(self, tmp_path):
        touch(
            tmp_path, "a/a_flair.nii.gz", "a/._a_t1.nii.gz", "a/a_brainmask.nii.gz", "a/notes.txt", ".trash/b_t1.nii.gz"
        )
        (subject,) = brats.find_subjects(tmp_path)
        assert set(subject.images) == {"flair"}

    def test_duplicate_files_are_a_problem_of_that_subject(self, tmp_path):
        touch(tmp_path, "a/a_flair.nii.gz", "copy/a_flair.nii.gz", "b/b_flair.nii.gz")
        first, second = brats.find_subjects(tmp_path)
        assert "two files for its flair" in first.problem
        assert second.problem is None

    def test_symlink_loops(self, tmp_path):
        touch(tmp_path, "a/a_flair.nii.gz")
        (tmp_path / "a" / "again").symlink_to(tmp_path)
        assert len(brats.find_subjects(tmp_path)) == 1

    def test_pipes_and_broken_links_are_kept_so_that_they_fail_by_name(self, tmp_path):
        touch(tmp_path, "a/a_flair.nii.gz")
        os.mkfifo(tmp_path / "a" / "a_t1.nii.gz")
        (tmp_path / "a" / "a_t2.nii.gz").symlink_to(tmp_path / "nowhere")
        (subject,) = brats.find_subjects(tmp_path)
        assert set(subject.images) == {"flair", "t1", "t2"}

    def test_an_undecodable_name_is_a_problem_of_that_subject(self, tmp_path):
        touch(tmp_path, "b_flair.nii.gz")
        (tmp_path / os.fsdecode(b"Jos\xe9_flair.nii.gz")).touch()
        first, second = brats.find_subjects(tmp_path)
        assert "not valid UTF-8" in first.problem
        first.name.encode()
        assert second.problem is None

    def test_linked_folders_are_followed(self, tmp_path):
        touch(tmp_path / "elsewhere", "a/a_flair.nii.gz")
        (tmp_path / "here").mkdir()
        (tmp_path / "here" / "a").symlink_to(tmp_path / "elsewhere" / "a")
        assert [subject.name for subject in brats.find_subjects(tmp_path / "here")] == ["a"]


def test_atlas_tree(tmp_path):
    stem = "Training/R001/sub-r001s001/ses-1/anat/sub-r001s001_ses-1_space-MNI152NLin2009aSym_"
    touch(tmp_path, f"{stem}T1w.nii.gz", f"{stem}label-L_desc-T1lesion_mask.nii.gz", f"{stem}T1w.json")
    touch(tmp_path, "Testing/R100/sub-r100s001/ses-1/anat/sub-r100s001_ses-1_space-MNI152NLin2009aSym_T1w.nii.gz")
    hidden, known = bids.find_atlas_subjects(tmp_path)[::-1]
    assert (known.name, known.patient) == ("sub-r001s001_ses-1", "sub-r001s001")
    assert list(known.images) == ["t1"]
    assert known.masks[0].name.endswith("label-L_desc-T1lesion_mask.nii.gz")
    assert not hidden.masks
    plan = plan_cohort("atlas2", tmp_path)
    assert plan.split["sub-r100s001"] == "train"  # no mask, no label: cannot be tested on


class TestBids:
    def test_modalities_sessions_and_derivatives(self, tmp_path):
        touch(tmp_path, "sub-01/ses-a/anat/sub-01_ses-a_T1w.nii.gz", "sub-01/ses-a/anat/sub-01_ses-a_ce-gad_T1w.nii.gz")
        touch(tmp_path, "sub-01/ses-a/anat/sub-01_ses-a_FLAIR.nii.gz", "sub-01/ses-b/anat/sub-01_ses-b_T2w.nii")
        touch(tmp_path, "derivatives/manual/sub-01/ses-a/anat/sub-01_ses-a_label-lesion_mask.nii.gz")
        touch(tmp_path, "derivatives/fmriprep/sub-01/ses-a/anat/sub-01_ses-a_desc-preproc_T1w.nii.gz")
        touch(tmp_path, "derivatives/fmriprep/sub-01/ses-a/anat/sub-01_ses-a_desc-brain_mask.nii.gz")
        first, second = bids.find_subjects(tmp_path)
        assert set(first.images) == {"t1", "t1ce", "flair"}
        assert "derivatives" not in first.images["t1"].parts
        assert first.masks[0].name == "sub-01_ses-a_label-lesion_mask.nii.gz"
        assert set(second.images) == {"t2"}
        assert first.patient == second.patient == "sub-01"

    def test_several_acquisitions_need_a_choice(self, tmp_path):
        touch(tmp_path, "sub-01/anat/sub-01_acq-iso_T1w.nii.gz", "sub-01/anat/sub-01_acq-thick_T1w.nii.gz")
        touch(tmp_path, "sub-01/anat/sub-01_FLAIR.nii.gz")
        assert "two files for its t1" in bids.find_subjects(tmp_path)[0].problem
        (subject,) = bids.find_subjects(tmp_path, {"acq": "iso"})
        assert subject.problem is None
        assert "acq-iso" in subject.images["t1"].name
        assert "flair" in subject.images

    def test_entities_select_files_with_or_without_them(self, tmp_path):
        touch(tmp_path, "sub-01/anat/sub-01_T1w.nii.gz", "sub-01/anat/sub-01_acq-iso_T1w.nii.gz")
        assert "--entity" in bids.find_subjects(tmp_path)[0].problem
        assert bids.find_subjects(tmp_path, {"acq": "iso"})[0].images["t1"].name == "sub-01_acq-iso_T1w.nii.gz"
        assert bids.find_subjects(tmp_path, {"acq": ""})[0].images["t1"].name == "sub-01_T1w.nii.gz"

    def test_diffusion_scans_are_ignored(self, tmp_path):
        touch(tmp_path, "sub-01/anat/sub-01_T1w.nii.gz", "sub-01/dwi/sub-01_dwi.nii.gz")
        assert set(bids.find_subjects(tmp_path)[0].images) == {"t1"}

    def test_entities_are_refused_for_other_layouts(self, tmp_path):
        touch(tmp_path, "a_flair.nii.gz")
        with pytest.raises(CohortError, match="--entity"):
            plan_cohort("brats21", tmp_path, entities={"run": "1"})


class TestFolder:
    def test_file_names(self, tmp_path):
        touch(tmp_path, "p1_flair.nii.gz", "p1-T2w.nii.gz", "p2/FLAIR.nii", "p2/t2.nii", "scan7.nii.gz")
        first, second, third = folder.find_subjects(tmp_path)
        assert (first.name, set(first.images)) == ("p1", {"flair", "t2"})
        assert (second.name, set(second.images)) == ("p2", {"flair", "t2"})
        assert (third.name, set(third.images)) == ("scan7", {"image"})

    def test_masks_next_to_the_scans(self, tmp_path):
        touch(tmp_path, "p1_flair.nii.gz", "p1_seg.nii.gz", "p2/flair.nii.gz", "p2/mask.nii.gz")
        first, second = folder.find_subjects(tmp_path)
        assert set(first.images) == set(second.images) == {"flair"}
        assert (first.masks[0].name, second.masks[0].name) == ("p1_seg.nii.gz", "mask.nii.gz")

    def test_our_own_results_are_no_masks(self, tmp_path):
        touch(tmp_path, "p1.nii.gz", "results/p1/mask.nii.gz", "results/p1/anomaly_map.nii.gz")
        (subject,) = folder.find_subjects(tmp_path)
        assert (subject.name, subject.masks) == ("p1", ())

    def test_custom_modality_names(self, tmp_path):
        touch(tmp_path, "p1_qsm.nii.gz")
        assert folder.find_subjects(tmp_path, ("qsm",))[0].images.keys() == {"qsm"}

    def test_labels_are_required(self, tmp_path):
        touch(tmp_path, "p1.nii.gz")
        with pytest.raises(CohortError, match=r"labels\.csv: does not exist"):
            plan_cohort("nifti", tmp_path)


class TestModalities:
    def test_by_default_all_modalities_are_required(self, tmp_path):
        touch(tmp_path, "a_flair.nii.gz", "a_t2.nii.gz", "b_flair.nii.gz")
        plan = plan_cohort("brats21", tmp_path)
        assert plan.modalities == ("flair", "t2")
        assert plan.subjects[0].problem is None
        assert "no t2 image (found: flair)" in plan.subjects[1].problem

    def test_chosen_modalities_keep_their_order(self, tmp_path):
        touch(tmp_path, "a_flair.nii.gz", "a_t2.nii.gz", "a_t1.nii.gz")
        plan = plan_cohort("brats21", tmp_path, modalities=("t2", "flair"))
        assert list(plan.subjects[0].images) == ["t2", "flair"]

    def test_modalities_are_case_insensitive_and_unique(self, tmp_path):
        touch(tmp_path, "a_flair.nii.gz")
        assert plan_cohort("brats21", tmp_path, modalities=("FLAIR",)).modalities == ("flair",)
        with pytest.raises(CohortError, match="duplicate modality"):
            plan_cohort("brats21", tmp_path, modalities=("flair", "Flair"))

    def test_no_usable_scan_is_refused_before_writing(self, tmp_path):
        touch(tmp_path, "a_flair.nii.gz")
        with pytest.raises(CohortError, match=r"no scan can be used .*no t2 image"):
            plan_cohort("brats21", tmp_path, modalities=("t2",))

    def test_order_of_modalities(self, tmp_path):
        touch(tmp_path, "a_t2.nii.gz", "a_dwi.nii.gz", "a_flair.nii.gz", "a_adc.nii.gz")
        subjects = folder.find_subjects(tmp_path)
        assert all_modalities(subjects, brats.MODALITIES) == ("flair", "t2", "adc", "dwi")

    def test_an_earlier_problem_is_kept(self, tmp_path):
        touch(tmp_path, "a/a_flair.nii.gz", "b/a_flair.nii.gz")
        (subject,) = with_modalities(brats.find_subjects(tmp_path), ("flair", "t2"))
        assert "two files" in subject.problem


class TestRefuses:
    def test_no_such_folder(self, tmp_path):
        with pytest.raises(CohortError, match="no such folder"):
            plan_cohort("brats21", tmp_path / "nowhere")

    def test_a_file(self, tmp_path):
        touch(tmp_path, "file")
        with pytest.raises(CohortError, match="not a folder"):
            plan_cohort("bids", tmp_path / "file")

    def test_no_scan_of_that_layout(self, tmp_path):
        touch(tmp_path, "p1.nii.gz")
        with pytest.raises(CohortError, match=r"no scan in the atlas2 layout.*T1w"):
            plan_cohort("atlas2", tmp_path)

    @pytest.mark.parametrize("size", [0, 8, 100, 4096])
    def test_invalid_sizes(self, tmp_path, size):
        touch(tmp_path, "a_flair.nii.gz")
        with pytest.raises(CohortError, match="--size"):
            plan_cohort("brats21", tmp_path, size=size)
