"""Layouts of public data sets, recognised by file names alone: the files here are empty."""

import os

import pytest

from anofpdm.cohorts.layouts import bids, brats, folder
from anofpdm.cohorts.plan import plan_cohort
from anofpdm.cohorts.subjects import all_modalities
from anofpdm.errors import CohortError


def touch(root, *names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    return root


GLI = "deep/er/BraTS-GLI-00005"
ANAT = "sub-01/ses-a/anat/sub-01_ses-a"
CASES = {  # finder, files, and of each subject its patient and its files by role
    "brats 2021": (
        brats,
        [f"x/BraTS2021_00000_{role}.nii.gz" for role in ("flair", "t1", "t1ce", "t2", "seg")],
        {
            "BraTS2021_00000": (
                "BraTS2021_00000",
                {role: f"BraTS2021_00000_{role}.nii.gz" for role in brats.MODALITIES},
                ["BraTS2021_00000_seg.nii.gz"],
            )
        },
    ),
    "later brats, two visits of a patient": (
        brats,
        [f"{GLI}-{visit}-{role}.nii.gz" for visit in ("000", "001") for role in ("t2f", "t1n", "t1c", "t2w", "seg")],
        {
            f"BraTS-GLI-00005-{visit}": (
                "BraTS-GLI-00005",
                {
                    role: f"BraTS-GLI-00005-{visit}-{suffix}.nii.gz"
                    for role, suffix in (("flair", "t2f"), ("t1", "t1n"), ("t1ce", "t1c"), ("t2", "t2w"))
                },
                [f"BraTS-GLI-00005-{visit}-seg.nii.gz"],
            )
            for visit in ("000", "001")
        },
    ),
    "later folders with earlier suffixes, unpacked": (
        brats,
        ["BraTS-GLI-00119-000_flair.nii", "BraTS-GLI-00119-000_T2.nii"],
        {
            "BraTS-GLI-00119-000": (
                "BraTS-GLI-00119",
                {"flair": "BraTS-GLI-00119-000_flair.nii", "t2": "BraTS-GLI-00119-000_T2.nii"},
                [],
            )
        },
    ),
    "other files are skipped": (
        brats,
        ["a/a_flair.nii.gz", "a/._a_t1.nii.gz", "a/a_brainmask.nii.gz", "a/notes.txt", ".trash/b_t1.nii.gz"],
        {"a": ("a", {"flair": "a_flair.nii.gz"}, [])},
    ),
    "bids with sessions and derivatives": (
        bids,
        [
            *(f"{ANAT}_{name}.nii.gz" for name in ("T1w", "ce-gad_T1w", "FLAIR")),
            "sub-01/ses-b/anat/sub-01_ses-b_T2w.nii",
            "sub-01/ses-b/dwi/sub-01_ses-b_dwi.nii.gz",
            f"derivatives/manual/{ANAT}_label-lesion_mask.nii.gz",
            f"derivatives/fmriprep/{ANAT}_desc-preproc_T1w.nii.gz",
            f"derivatives/fmriprep/{ANAT}_desc-brain_mask.nii.gz",
        ],
        {
            "sub-01_ses-a": (
                "sub-01",
                {
                    "t1": "sub-01_ses-a_T1w.nii.gz",
                    "t1ce": "sub-01_ses-a_ce-gad_T1w.nii.gz",
                    "flair": "sub-01_ses-a_FLAIR.nii.gz",
                },
                ["sub-01_ses-a_label-lesion_mask.nii.gz"],
            ),
            "sub-01_ses-b": ("sub-01", {"t2": "sub-01_ses-b_T2w.nii"}, []),
        },
    ),
    "any folder": (
        folder,
        ["p1_flair.nii.gz", "p1-T2w.nii.gz", "p1_seg.nii.gz", "p2/FLAIR.nii", "p2/mask.nii", "scan7.nii.gz"],
        {
            "p1": ("p1", {"flair": "p1_flair.nii.gz", "t2": "p1-T2w.nii.gz"}, ["p1_seg.nii.gz"]),
            "p2": ("p2", {"flair": "FLAIR.nii"}, ["mask.nii"]),
            "scan7": ("scan7", {"image": "scan7.nii.gz"}, []),
        },
    ),
    "our own results are no masks": (
        folder,
        ["p1.nii.gz", "results/p1/mask.nii.gz", "results/p1/anomaly_map.nii.gz"],
        {"p1": ("p1", {"image": "p1.nii.gz"}, [])},
    ),
}


@pytest.mark.parametrize(("layout", "names", "expected"), CASES.values(), ids=CASES)
def test_names(layout, names, expected, tmp_path):
    subjects = layout.find_subjects(touch(tmp_path, *names))
    assert [subject.problem for subject in subjects] == [None] * len(expected)
    assert {
        subject.name: (
            subject.patient,
            {role: path.name for role, path in subject.images.items()},
            [path.name for path in subject.masks],
        )
        for subject in subjects
    } == expected


def test_atlas_tree(tmp_path):
    stem = "Training/R001/sub-r001s001/ses-1/anat/sub-r001s001_ses-1_space-MNI152NLin2009aSym_"
    touch(tmp_path, f"{stem}T1w.nii.gz", f"{stem}label-L_desc-T1lesion_mask.nii.gz", f"{stem}T1w.json")
    touch(tmp_path, "Testing/R100/sub-r100s001/ses-1/anat/sub-r100s001_ses-1_space-MNI152NLin2009aSym_T1w.nii.gz")
    hidden, known = bids.find_atlas_subjects(tmp_path)[::-1]
    assert (known.name, known.patient, list(known.images)) == ("sub-r001s001_ses-1", "sub-r001s001", ["t1"])
    assert known.masks[0].name.endswith("label-L_desc-T1lesion_mask.nii.gz")
    assert not hidden.masks
    plan = plan_cohort("atlas2", tmp_path)
    assert plan.split["sub-r100s001"] == "train"  # no mask, no label: cannot be tested on


def test_unusable_files_are_a_problem_of_their_subject(tmp_path):
    touch(tmp_path, "a/a_flair.nii.gz", "copy/a_flair.nii.gz", "b/b_flair.nii.gz")
    os.mkfifo(tmp_path / "c_flair.nii.gz")
    (tmp_path / os.fsdecode(b"Jos\xe9_flair.nii.gz")).touch()
    undecodable, twice, fine, pipe = brats.find_subjects(tmp_path)
    assert "two files for its flair" in twice.problem
    assert fine.problem is None
    assert "a pipe or a device" in pipe.problem
    assert "not valid UTF-8" in undecodable.problem
    undecodable.name.encode()
    plan = plan_cohort("brats21", tmp_path)
    assert "two files" in plan.subjects[1].problem  # an earlier problem is kept


def test_links(tmp_path):
    """Loops are skipped, linked folders are followed, and broken links are kept so that they fail by name."""
    touch(tmp_path / "elsewhere", "a/a_flair.nii.gz")
    here = touch(tmp_path, "here/b_flair.nii.gz") / "here"
    (here / "again").symlink_to(here)
    (here / "a").symlink_to(tmp_path / "elsewhere" / "a")
    (here / "b_t2.nii.gz").symlink_to(tmp_path / "nowhere")
    subjects = brats.find_subjects(here)
    assert {subject.name: list(subject.images) for subject in subjects} == {"a": ["flair"], "b": ["flair", "t2"]}


def test_entities_choose_among_files_with_and_without_them(tmp_path):
    anat = "sub-01/anat/sub-01"
    touch(tmp_path, *(f"{anat}_{name}.nii.gz" for name in ("T1w", "acq-iso_T1w", "acq-thick_T1w", "FLAIR")))
    (subject,) = bids.find_subjects(tmp_path)
    assert "two files for its t1" in subject.problem
    assert "--entity" in subject.problem
    for value, name in (("iso", "sub-01_acq-iso_T1w.nii.gz"), ("", "sub-01_T1w.nii.gz")):
        (subject,) = bids.find_subjects(tmp_path, {"acq": value})
        assert subject.problem is None
        assert subject.images["t1"].name == name
        assert "flair" in subject.images


def test_modalities_are_required_chosen_and_ordered(tmp_path):
    touch(tmp_path, "a_flair.nii.gz", "a_t2.nii.gz", "a_t1.nii.gz", "b_flair.nii.gz", "b_t1.nii.gz")
    plan = plan_cohort("brats21", tmp_path)
    assert plan.modalities == ("flair", "t1", "t2")
    assert plan.subjects[0].problem is None
    assert "no t2 image (found: flair, t1)" in plan.subjects[1].problem
    assert list(plan_cohort("brats21", tmp_path, modalities=("T2", "flair")).subjects[0].images) == ["t2", "flair"]
    subjects = folder.find_subjects(
        touch(tmp_path / "others", *(f"a_{name}.nii" for name in ("t2", "dwi", "qsm"))), ("qsm",)
    )
    assert all_modalities(subjects, brats.MODALITIES) == ("t2", "dwi", "qsm")


@pytest.mark.parametrize(
    ("layout", "source", "options", "message"),
    [
        ("brats21", "nowhere", {}, "no such folder"),
        ("bids", "a_flair.nii.gz", {}, "not a folder"),
        ("atlas2", ".", {}, r"no scan in the atlas2 layout.*T1w"),
        ("nifti", ".", {}, r"labels\.csv: does not exist"),
        ("brats21", ".", {"modalities": ("t2",)}, r"no scan can be used .*no t2 image"),
        ("brats21", ".", {"modalities": ("flair", "Flair")}, "duplicate modality"),
        ("brats21", ".", {"entities": {"run": "1"}}, "--entity"),
        *(("brats21", ".", {"size": size}, "--size") for size in (0, 8, 100, 4096)),
    ],
)
def test_mistakes_are_refused(layout, source, options, message, tmp_path):
    touch(tmp_path, "a_flair.nii.gz")
    with pytest.raises(CohortError, match=message):
        plan_cohort(layout, tmp_path / source, **options)
