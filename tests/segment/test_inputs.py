"""Scans to segment, found from files, folders and cohorts."""

import pytest

from anofpdm.cohorts.plan import plan_cohort
from anofpdm.cohorts.prepare import prepare
from anofpdm.errors import CohortError
from anofpdm.segment.inputs import find_targets
from tests import toys
from tests.segment.known_model import scan_files

MODALITIES = ("flair", "t2")


def names(targets):
    return [target.subject.name for target in targets]


def test_files_by_name_and_by_modality(tmp_path):
    files, _, _ = scan_files(tmp_path)
    (by_name,) = find_targets([str(path) for path in files.values()], MODALITIES)
    assert by_name.subject.images == files
    odd = {name: path.rename(tmp_path / f"{number}.nii.gz") for number, (name, path) in enumerate(files.items())}
    (by_modality,) = find_targets([f"{name}={path}" for name, path in odd.items()], MODALITIES)
    assert by_modality.subject.images == odd


def test_relative_paths_get_the_name_of_their_folder(tmp_path, monkeypatch):
    files, _, _ = scan_files(tmp_path / "anna")
    for modality, path in files.items():
        path.rename(path.with_name(f"{modality}.nii.gz"))
    (tmp_path / "anna" / "below").mkdir()
    for here, before in (("anna", ""), ("anna/below", "../")):
        monkeypatch.chdir(tmp_path / here)
        paths = {modality: f"{before}{modality}.nii.gz" for modality in MODALITIES}
        assert names(find_targets([*paths.values()], MODALITIES)) == ["anna"]
        assert names(find_targets([f"{name}={path}" for name, path in paths.items()], MODALITIES)) == ["anna"]


def test_a_subject_with_two_runs_leaves_the_layout_bids(tmp_path):
    for name in ("sub-01_FLAIR", "sub-01_T2w", "sub-02_run-1_FLAIR", "sub-02_run-2_FLAIR", "sub-02_T2w"):
        toys.save(tmp_path / name[:6] / "anat" / f"{name}.nii.gz", toys.head())
    toys.save(tmp_path / "derivatives" / "x" / "sub-03_FLAIR.nii.gz", toys.head())
    ours = tmp_path / "derivatives" / "anofpdm" / "sub-01" / "anat"
    toys.save(ours / "sub-01_label-lesion_desc-anofpdm_mask.nii.gz", toys.head())
    targets = find_targets([str(tmp_path)], MODALITIES)
    assert [(target.subject.name, target.bids, target.subject.masks) for target in targets] == [
        ("sub-01", True, ()), ("sub-02", True, ()),
    ]  # fmt: skip
    assert "flair=FILE t2=FILE" in targets[1].subject.problem


def test_masks_and_stripped_brains_are_not_scans_and_a_single_modality_needs_no_name(tmp_path):
    scans = ("anna", "anna_brain", "anna_brain_mask", "ben_t1", "ben_t1_brain", "carl_mask", "the_brain")
    for name in (*scans, "out/anna/mask", "out/anna/anomaly_map", "derivatives/dora"):
        toys.save(tmp_path / f"{name}.nii.gz", toys.head())
    targets = find_targets([str(tmp_path)], ("t1",))
    assert names(targets) == ["anna", "ben", "the_brain"]
    assert {*targets[0].subject.images} == {"t1"}


def test_a_prepared_cohort_gives_its_source_scans(tmp_path):
    source = toys.brats_cohort(tmp_path / "scans", 4)
    prepare(plan_cohort("brats21", source, size=16), tmp_path / "cohort")
    assert len(find_targets([str(tmp_path / "cohort")], MODALITIES)) == 4
    assert len(find_targets([str(tmp_path / "cohort")], MODALITIES, "val")) == 1
    with pytest.raises(CohortError, match="applies to prepared cohorts only"):
        find_targets([str(source)], MODALITIES, "val")
    source.rename(tmp_path / "moved")
    with pytest.raises(CohortError, match="does not exist any more"):
        find_targets([str(tmp_path / "cohort")], MODALITIES)


@pytest.mark.parametrize(
    ("words", "match"),
    [
        (["nowhere"], "no such file or folder"),
        (["text.txt"], "not a NIfTI file"),
        (["empty"], "no scan found .no NIfTI or DICOM file"),
        (["p_flair.nii.gz"], "no t2 image.* give the files as flair=FILE t2=FILE"),
        (["dwi=p_flair.nii.gz"], "choose from flair, t2"),
        (["flair=p_flair.nii.gz"], "no t2 image"),
        (["flair=gone.nii.gz", "t2=p_t2.nii.gz"], "no such file"),
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
        find_targets(words, MODALITIES)
