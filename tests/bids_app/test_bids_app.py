"""The BIDS App on a small data set, with a model that ships."""

import csv
import json
import shutil
import subprocess

import nibabel as nib
import numpy as np
import pytest

from anofpdm.bids_app.group import write_group_table
from anofpdm.choices import Layout
from anofpdm.cli.bids import repeat_options
from anofpdm.cohorts.plan import find_subjects
from tests import toys
from tests.commands import run

SHAPE = (24, 26, 16)
SCANS = ("sub-01/anat/sub-01", "sub-02/ses-1/anat/sub-02_ses-1", "sub-02/ses-2/anat/sub-02_ses-2")
MASK, MAP = "_label-lesion_desc-anofpdm_mask", "_desc-anofpdm_anomalymap"


def participants(source, out, *words, code=0):
    words = (source, out, "participant", "--model", "phantom-stroke", "--device", "cpu", "--raw", "never", *words)
    return run("bids", *words, code=code).output


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("raw")
    for number, scan in enumerate(SCANS):
        voxels = toys.head(SHAPE, number)
        toys.save(folder / f"{scan}_T1w.nii.gz", voxels, toys.affine_of(spacing=(5.0, 5.0, 6.0), shape=SHAPE))
    description = {"Name": "toys", "BIDSVersion": "1.9.0", "DatasetDOI": "doi:10.0000/toys"}
    (folder / "dataset_description.json").write_text(json.dumps(description))
    (folder / "README").write_text("Noise in the shape of heads, for tests of software.")
    return folder


@pytest.fixture(scope="module")
def derivative(source, tmp_path_factory):
    out = tmp_path_factory.mktemp("derivatives") / "anofpdm"
    participants(source, out)
    run("bids", source, out, "group")
    return out


def test_results_are_on_the_grid_of_their_source_which_their_sidecars_name(source, derivative):
    for scan in SCANS:
        image = nib.nifti1.load(source / f"{scan}_T1w.nii.gz")
        for suffix in (MASK, MAP):
            result = nib.nifti1.load(derivative / f"{scan}{suffix}.nii.gz")
            assert result.shape == SHAPE
            np.testing.assert_allclose(result.affine, image.affine, atol=1e-5)
            sidecar = json.loads((derivative / f"{scan}{suffix}.json").read_text())
            assert sidecar["Units"]
            assert [(source / uri.removeprefix("bids:raw:")).is_file() for uri in sidecar["Sources"]] == [True]
        assert (derivative / f"{scan}_desc-anofpdm_report.html").stat().st_size > 1000
    assert "probability" in sidecar["Units"]


def test_the_description_is_that_of_a_derivative(source, derivative):
    description = json.loads((derivative / "dataset_description.json").read_text())
    assert description["DatasetType"] == "derivative"
    assert description["GeneratedBy"][0]["Name"] == "anofpdm"
    assert description["SourceDatasets"][0]["DOI"] == "doi:10.0000/toys"
    assert description["DatasetLinks"] == {"raw": source.resolve().as_uri()}


def test_the_group_table(derivative):
    with (derivative / "group_lesions.tsv").open() as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    assert [(row["participant_id"], row["session_id"]) for row in rows] == [
        ("sub-01", "n/a"), ("sub-02", "ses-1"), ("sub-02", "ses-2"),
    ]  # fmt: skip
    dictionary = json.loads((derivative / "group_lesions.json").read_text())
    assert list(dictionary) == list(rows[0])
    for scan, row in zip(SCANS, rows, strict=True):
        mask = nib.nifti1.load(derivative / f"{scan}{MASK}.nii.gz")
        volume = np.count_nonzero(mask.get_fdata()) * 5 * 5 * 6 / 1000
        assert float(row["volume_ml"]) == pytest.approx(volume, abs=1e-3)


def test_text_in_the_group_table_that_a_spreadsheet_would_run_is_escaped(tmp_path):
    counts = {"volume_ml": 1.5, "estimated_dice": None, "findings": 0, "slices": 1, "slices_detected": 0}
    summary = {**counts, "missing_modalities": [], "warnings": [], "settings": {"engine": "=cmd", "model_sha256": "0"}}
    (tmp_path / "sub-1").mkdir()
    (tmp_path / "sub-1" / "sub-1_desc-anofpdm_summary.json").write_text(json.dumps(summary))
    write_group_table(tmp_path)
    with (tmp_path / "group_lesions.tsv").open() as file:
        (row,) = csv.DictReader(file, delimiter="\t")
    assert (row["engine"], row["volume_ml"]) == ("'=cmd", "1.5")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--participant-label", "01", "02", "--session-label", "2"), None),  # participant 01 has no sessions
        (("--participant-label", "sub-01"), ["sub-01"]),
        (("--session-label", "ses-1"), ["sub-02/ses-1"]),
    ],
)
def test_participants_and_sessions_are_selected(words, expected, source, tmp_path):
    if expected is None:
        assert "no scan of sub-01" in participants(source, tmp_path, *words, code=1)
        return
    participants(source, tmp_path, *words)
    masks = sorted(tmp_path.glob(f"**/*{MASK}.nii.gz"))
    assert [path.parent.parent.relative_to(tmp_path).as_posix() for path in masks] == expected


def test_lists_are_separated_by_spaces():
    words = ["in", "out", "participant", "--participant-label", "01", "02", "--model", "m", "x"]
    assert repeat_options(words) == [
        *words[:5], "--participant-label", "02", "--model", "m", "x",
    ]  # fmt: skip


def test_our_masks_are_not_taken_for_manual_ones(source, derivative, tmp_path):
    """Although they lie where `prepare` looks for masks."""
    shutil.copytree(source, tmp_path / "data")
    shutil.copytree(derivative, tmp_path / "data" / "derivatives" / "anofpdm")
    subjects = find_subjects(Layout.BIDS, tmp_path / "data")
    assert len(subjects) == len(SCANS)
    assert not any(subject.masks for subject in subjects)


def test_wrong_input(source, tmp_path):
    shutil.copytree(source / "sub-01", tmp_path / "in" / "sub-01")
    printed = participants(tmp_path / "in", tmp_path / "out", code=1)
    assert "dataset_description.json" in printed
    assert "--skip-bids-validation" in printed
    assert "--model" in run("bids", source, tmp_path, "participant", code=2).output
    assert "no results" in run("bids", source, tmp_path, "group", code=1).output


@pytest.mark.parametrize(
    ("program", "whole"), [("bids-validator-deno", False), ("bids-validator", True)], ids=["deno", "npm"]
)
def test_a_validator_accepts_the_derivative(program, whole, source, derivative, tmp_path):
    """The one of npm does not know names of derivatives, and rejects those of any App without their data set."""
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not on the path")
    if whole:
        shutil.copytree(source, tmp_path / "data")
        shutil.copytree(derivative, tmp_path / "data" / "derivatives" / "anofpdm")
    words = [program, "--json", tmp_path / "data" if whole else derivative]
    issues = json.loads(subprocess.run(words, capture_output=True, text=True, check=False).stdout)["issues"]
    errors = issues["errors"] if whole else [issue for issue in issues["issues"] if issue["severity"] == "error"]
    assert errors == []
