"""anofpdm evaluate --native: whole scans, from files to scores in native space, with the bundled phantom models."""

import csv
import json
import math
import shutil

import nibabel as nib
import numpy as np
import pytest

from anofpdm.choices import Layout, Split
from anofpdm.cohorts import open_cohort
from anofpdm.cohorts.subjects import Subject
from anofpdm.errors import ScanWarning
from anofpdm.scoring.summary import TITLES
from anofpdm.study.native.run_native import find_truth, is_trained_on
from anofpdm.study.native.split_scans import find_split_scans
from tests.commands import run

MODALITIES = ("flair", "t1", "t1ce", "t2")
QUICK = ("--device", "cpu", "--workers", 1)


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")


def anofpdm(*words, code=0):
    return run(*words, code=code).output


@pytest.fixture(scope="module")
def tumours(tmp_path_factory):
    """Phantoms, and a cohort prepared from other files of the same patients: every second slice."""
    home = tmp_path_factory.mktemp("tumours")
    phantom = ("phantom", home / "scans", "--kind", "tumour", "--patients", 4, "--seed", 80)
    anofpdm(*phantom, "--size", 64, "--slices", 6, "--workers", 1)
    for path in (home / "scans").rglob("*.nii.gz"):
        scan = nib.Nifti1Image.from_filename(path)
        thinned = home / "thinned" / path.relative_to(home / "scans")
        thinned.parent.mkdir(parents=True, exist_ok=True)
        nib.save(scan.slicer[:, :, ::2], thinned)
    patients = sorted(path.name for path in (home / "scans").iterdir() if path.is_dir())
    rows = [f"{patient},{part}" for patient, part in zip(patients, ("test", "test", "test", "train"), strict=True)]
    (home / "split.csv").write_text("\n".join(["patient,split", *rows]))
    words = ("--size", 32, "--split", home / "split.csv", "--workers", 1)
    anofpdm("prepare", "brats21", home / "thinned", home / "cohort", *words)
    return home, patients


@pytest.fixture
def copied(tumours, tmp_path):
    """Folder of the scans, cohort and patients; the scans may be changed."""
    home, patients = tumours
    shutil.copytree(home / "scans", tmp_path / "scans")
    return tmp_path / "scans", home / "cohort", patients


def evaluate(cohort, source, out, *words, code=0):
    command = ("evaluate", "phantom-tumour", cohort, "--native", source, "--out", out, *QUICK)
    return anofpdm(*command, *words, code=code)


STUDENT = ("--engine", "student")


def scores(folder):
    """Numbers by scan and column."""
    with (folder / "scores.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {(row["scan"], name): float(row[name] or math.nan) for row in rows for name in TITLES}


def scans_in(folder):
    return list(dict.fromkeys(scan for scan, _ in scores(folder)))


def test_scores_are_those_of_segment_and_score(tumours, tmp_path):
    home, (*segmented, left_out) = tumours
    second = segmented[1]
    text = evaluate(home / "cohort", home / "scans", tmp_path / "out")
    assert "not of the test split (1 train)" in text
    assert "was trained on another cohort or split" in text
    assert left_out not in text
    engines = json.loads((tmp_path / "out" / "native.json").read_text())["engines"]
    assert list(engines) == ["student", "diffusion"]
    shutil.copytree(home / "scans" / second, tmp_path / "test_scans" / second)
    for engine, summary in engines.items():
        ours, by_hand = tmp_path / "out" / engine, tmp_path / "by_hand" / engine
        words = ("--out", by_hand, "--engine", engine, "--device", "cpu", "--no-report", "--no-pictures")
        anofpdm("segment", "phantom-tumour", tmp_path / "test_scans", *words)
        anofpdm("score", by_hand, tmp_path / "test_scans", "--out", by_hand, "--label", "all", "--workers", 1)
        expected, numbers = scores(by_hand), scores(ours)
        assert set(expected) == {(second, name) for name in TITLES}
        assert scans_in(ours) == segmented
        assert {key: numbers[key] for key in expected} == pytest.approx(expected, nan_ok=True)
        dice = summary["summary"]["scores"]["dice"]
        assert dice["mean"] == pytest.approx(np.mean([numbers[name, "dice"] for name in segmented]), abs=1e-5)
        assert dice["mean"] > 0.5
        assert "({:.3f} to {:.3f})".format(*dice["interval"]) in text
        assert (ours / "index.html").is_file()
    assert all(text.count(f"\n {title} ") == 2 for title in TITLES.values())
    files = [tmp_path / "out" / "student" / name / "summary.json" for name in segmented]
    estimated = [json.loads(path.read_text())["estimated_dice"] for path in files]
    assert engines["student"]["estimates"]["mean_estimate"] == pytest.approx(np.mean(estimated))
    table = (tmp_path / "out" / "native.md").read_text()
    assert "| DICE | " in table
    assert "student: DICE estimated without masks: mean 0." in table


def test_another_layout_than_the_cohorts(copied):
    """Found as in `prepare bids`, where the folder has such names."""
    source, cohort, (first, *others) = copied
    suffixes = {"flair": "FLAIR", "t1": "T1w", "t1ce": "ce-gd_T1w", "t2": "T2w", "seg": "label-lesion_mask"}
    for role, suffix in suffixes.items():
        (source / first / f"{first}_{role}.nii.gz").rename(source / first / f"sub-x_{suffix}.nii.gz")
    for patient in others:
        shutil.rmtree(source / patient)
    opened = open_cohort(cohort)
    object.__setattr__(opened, "patients", np.where(opened.patients == first, "sub-x", opened.patients))
    scans = find_split_scans(opened, source, MODALITIES, Split.TEST)
    assert [subject.name for subject in scans.subjects] == ["sub-x"]
    assert scans.layout in (Layout.ATLAS2, Layout.BIDS)
    (target,) = scans.targets(MODALITIES)
    assert tuple(target.subject.images) == MODALITIES
    assert target.subject.problem is None
    assert target.bids


def test_what_cannot_be_scored_is_named(copied, tmp_path):
    """A scan without true mask, an image that cannot be read, a patient of the split that is not there."""
    source, cohort, (first, second, third, _) = copied
    (source / first / f"{first}_seg.nii.gz").unlink()
    image = source / second / f"{second}_t2.nii.gz"
    image.write_bytes(image.read_bytes()[:1000])
    for path in (source / third).iterdir():
        path.rename(path.with_name(path.name.replace(third, "stranger")))
    text = evaluate(cohort, source, tmp_path / "out", *STUDENT, code=3)
    assert f"failed: {first}: no lesion mask in {source}" in text
    assert f"failed: {second}: {image}" in text
    assert f"skipped: 1 of the test patients, not in {source}: {third}" in text
    assert "1 not in the cohort" in text
    assert json.loads((tmp_path / "out" / "native.json").read_text())["absent_patients"] == [third]


def test_results_inside_the_source_are_refused(copied):
    source, cohort, _ = copied
    assert "inside --native" in evaluate(cohort, source, source / "out", *STUDENT, code=1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--native", "SRC", "--levels", 3), "does not apply to --native"),
        (("--engine", "student"), "applies to --native only"),
    ],
)
def test_options_of_the_other_mode_are_refused(tmp_path, words, message):
    assert message in anofpdm("evaluate", "phantom-tumour", tmp_path, "--out", tmp_path / "out", *words, code=2)


def test_several_masks_of_a_scan_are_joined(tmp_path):
    """Also with the values 0 and 255, and of a file with its axes flipped."""
    whole = np.random.default_rng(0).random((6, 5, 4)) < 0.3
    for name, half, axis in (("a", slice(None, 3), 1), ("b", slice(3, None), -1)):
        part = np.zeros(whole.shape, np.uint8)
        part[half] = 255 * whole[half]
        image = nib.Nifti1Image(part, np.eye(4)).as_reoriented(np.array([[0, axis], [1, 1], [2, 1]]))
        nib.save(image, tmp_path / f"{name}.nii.gz")
    subject = Subject("scan", "patient", masks=(tmp_path / "a.nii.gz", tmp_path / "b.nii.gz"))
    with pytest.warns(ScanWarning, match="axes reordered"):
        union = find_truth(subject, tmp_path / "truth")
    np.testing.assert_array_equal(nib.Nifti1Image.from_filename(union).dataobj, whole)


@pytest.mark.parametrize("student_only", [False, True])
def test_training_cohort_is_recognised(tumours, tmp_path, student_only):
    """By the hash of its split, also where only a student is left."""
    cohort = open_cohort(tumours[0] / "cohort")
    folder = tmp_path / "student" if student_only else tmp_path
    folder.mkdir(exist_ok=True)
    assert not is_trained_on(cohort, tmp_path)
    for split, same in ((cohort.manifest.tables_sha256["split.csv"], True), ("another", False)):
        recorded = {"cohort": {"tables_sha256": {"split.csv": split}}}
        (folder / "config.json").write_text(json.dumps({"distillation": recorded} if student_only else recorded))
        assert is_trained_on(cohort, tmp_path) == same
