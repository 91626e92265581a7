"""Scans to segment, found from files, folders and cohorts."""

import pytest

from anofpdm.cohorts.plan import plan_cohort
from anofpdm.cohorts.prepare import prepare
from anofpdm.errors import (
    CohortError,
)
from anofpdm.segment.inputs import find_targets
from tests import toys
from tests.segment.known_model import scan_files


def test_files_by_name_and_by_modality(tmp_path):
    files, _, _ = scan_files(tmp_path)
    (found,) = find_targets([str(path) for path in files.values()], ("flair", "t2"))
    assert found.subject.images == files
    odd = {name: path.rename(tmp_path / f"{number}.nii.gz") for number, (name, path) in enumerate(files.items())}
    (named,) = find_targets([f"{name}={path}" for name, path in odd.items()], ("flair", "t2"))
    assert named.subject.images == odd


def test_a_single_modality_need_not_be_in_the_file_name(tmp_path):
    toys.save(tmp_path / "anna.nii.gz", toys.head())
    toys.save(tmp_path / "ben.nii.gz", toys.head())
    found = find_targets([str(tmp_path)], ("t1",))
    assert [one.subject.name for one in found] == ["anna", "ben"]
    assert list(found[0].subject.images) == ["t1"]


def test_relative_paths_get_the_name_of_their_folder(tmp_path, monkeypatch):
    files, _, _ = scan_files(tmp_path / "anna")
    for modality, path in files.items():
        path.rename(path.with_name(f"{modality}.nii.gz"))
    (tmp_path / "anna" / "below").mkdir()
    for here, before in (("anna", ""), ("anna/below", "../")):
        monkeypatch.chdir(tmp_path / here)
        words = [f"{before}flair.nii.gz", f"{before}t2.nii.gz"]
        assert [one.subject.name for one in find_targets(words, ("flair", "t2"))] == ["anna"]
        named = [f"flair={words[0]}", f"t2={words[1]}"]
        assert [one.subject.name for one in find_targets(named, ("flair", "t2"))] == ["anna"]


def test_a_subject_with_two_runs_leaves_the_layout_bids(tmp_path):
    for name in ("sub-01_FLAIR", "sub-01_T2w", "sub-02_run-1_FLAIR", "sub-02_run-2_FLAIR", "sub-02_T2w"):
        toys.save(tmp_path / name[:6] / "anat" / f"{name}.nii.gz", toys.head())
    toys.save(tmp_path / "derivatives" / "x" / "sub-03_FLAIR.nii.gz", toys.head())
    ours = tmp_path / "derivatives" / "anofpdm" / "sub-01" / "anat"
    toys.save(ours / "sub-01_label-lesion_desc-anofpdm_mask.nii.gz", toys.head())
    found = find_targets([str(tmp_path)], ("flair", "t2"))
    assert [(one.subject.name, one.bids, one.subject.masks) for one in found] == [
        ("sub-01", True, ()), ("sub-02", True, ()),
    ]  # fmt: skip
    assert "flair=FILE t2=FILE" in found[1].subject.problem


def test_masks_and_stripped_brains_are_not_scans(tmp_path):
    for name in ("anna", "anna_brain", "anna_brain_mask", "ben_t1", "ben_t1_brain", "carl_mask", "the_brain"):
        toys.save(tmp_path / f"{name}.nii.gz", toys.head())
    for name in ("out/anna/mask", "out/anna/anomaly_map", "derivatives/dora"):
        toys.save(tmp_path / f"{name}.nii.gz", toys.head())
    found = find_targets([str(tmp_path)], ("t1",))
    assert [one.subject.name for one in found] == ["anna", "ben", "the_brain"]


def test_a_split_needs_a_prepared_cohort(tmp_path):
    scan_files(tmp_path)
    with pytest.raises(CohortError, match="applies to prepared cohorts only"):
        find_targets([str(tmp_path)], ("flair", "t2"), "val")


def test_a_prepared_cohort_gives_its_source_scans(tmp_path):
    source = toys.brats_cohort(tmp_path / "scans", 6)
    prepare(plan_cohort("brats21", source, size=16), tmp_path / "cohort")
    assert len(find_targets([str(tmp_path / "cohort")], ("flair", "t2"))) == 6
    some = find_targets([str(tmp_path / "cohort")], ("flair", "t2"), "val")
    assert 0 < len(some) < 6
    source.rename(tmp_path / "moved")
    with pytest.raises(CohortError, match="does not exist any more"):
        find_targets([str(tmp_path / "cohort")], ("flair", "t2"))


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["nowhere"], "no such file or folder"),
        (["text.txt"], "not a NIfTI file"),
        (["empty"], "no scan found"),
        (["p_flair.nii.gz"], "no t2 image"),
        (["dwi=p_flair.nii.gz"], "choose from flair, t2"),
        (["flair=p_flair.nii.gz"], "no t2 image"),
        (["flair=gone.nii.gz", "t2=p_t2.nii.gz"], "no such file"),
        (["empty"], "no NIfTI or DICOM file"),
        (["p_flair.nii.gz"], "give the files as flair=FILE t2=FILE"),
        (["flair=p_flair.nii.gz", "flair=p_t2.nii.gz"], "duplicate flair"),
        (["odd/.._flair.nii.gz", "odd/.._t2.nii.gz"], "rename the file"),
    ],
)
def test_mistakes(words, match, tmp_path, monkeypatch):
    scan_files(tmp_path)
    scan_files(tmp_path / "odd", name="..")
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.txt").write_text("x")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CohortError, match=match):
        find_targets(words, ("flair", "t2"))
