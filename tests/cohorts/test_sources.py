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


GLI_SUFFIXES = {"seg": "seg", "flair": "t2f", "t1": "t1n", "t1ce": "t1c", "t2": "t2w"}
GLI = "deep/er/BraTS-GLI-00005"
ANAT = "sub-01/ses-a/anat/sub-01_ses-a"
CASES = {  # finder; of each subject its patient and its files by role; files that are none of a scan
    "brats 2021": (
        brats,
        {"B_00000": ("B_00000", {role: f"x/B_00000_{role}.nii.gz" for role in ("flair", "t1", "t1ce", "t2", "seg")})},
        ["x/._B_00000_t1.nii.gz", "x/B_00000_brainmask.nii.gz", "x/notes.txt", ".trash/b_t1.nii.gz"],
    ),
    "later brats, two visits of a patient": (
        brats,
        {
            f"BraTS-GLI-00005-{visit}": (
                "BraTS-GLI-00005",
                {
                    role: f"{GLI}-{visit}-{suffix}.nii.gz"
                    for role, suffix in GLI_SUFFIXES.items()
                },
            )
            for visit in ("000", "001")
        },
        [],
    ),
    "later folders with earlier suffixes, unpacked": (
        brats,
        {"BraTS-GLI-1-000": ("BraTS-GLI-1", {"flair": "BraTS-GLI-1-000_flair.nii", "t2": "BraTS-GLI-1-000_T2.nii"})},
        [],
    ),
    "bids with sessions and derivatives": (
        bids,
        {
            "sub-01_ses-a": (
                "sub-01",
                {
                    "t1": f"{ANAT}_T1w.nii.gz",
                    "t1ce": f"{ANAT}_ce-gad_T1w.nii.gz",
                    "flair": f"{ANAT}_FLAIR.nii.gz",
                    "seg": f"derivatives/manual/{ANAT}_label-lesion_mask.nii.gz",
                },
            ),
            "sub-01_ses-b": ("sub-01", {"t2": "sub-01/ses-b/anat/sub-01_ses-b_T2w.nii"}),
        },
        [
            "sub-01/ses-b/dwi/sub-01_ses-b_dwi.nii.gz",
            f"derivatives/fmriprep/{ANAT}_desc-preproc_T1w.nii.gz",
            f"derivatives/fmriprep/{ANAT}_desc-brain_mask.nii.gz",
        ],
    ),
    "any folder": (
        folder,
        {
            "p1": ("p1", {"flair": "p1_flair.nii.gz", "t2": "p1-T2w.nii.gz", "seg": "p1_seg.nii.gz"}),
            "p2": ("p2", {"flair": "p2/FLAIR.nii", "seg": "p2/mask.nii"}),
            "scan7": ("scan7", {"image": "scan7.nii.gz"}),
        },
        ["results/p1/mask.nii.gz", "results/p1/anomaly_map.nii.gz"],  # our own
    ),
}  # fmt: skip


@pytest.mark.parametrize(("layout", "expected", "others"), CASES.values(), ids=CASES)
def test_names(layout, expected, others, tmp_path):
    touch(tmp_path, *others, *(path for _, files in expected.values() for path in files.values()))
    subjects = layout.find_subjects(tmp_path)
    assert [subject.problem for subject in subjects] == [None] * len(expected)
    for subject in subjects:
        files = dict(subject.images)
        if subject.masks:
            (files["seg"],) = subject.masks
        names = {role: path.relative_to(tmp_path).as_posix() for role, path in files.items()}
        assert (subject.patient, names) == expected[subject.name]


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
