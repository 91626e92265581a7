"""`anofpdm segment` and `bids`: choices that change a result, files that are written, folders that hold results."""

import gzip
import json

import nibabel as nib
import numpy as np
import pytest

from anofpdm.segment.model import load
from anofpdm.segment.outputs import LABEL_TABLE, MASK, REPORT, SEG_NRRD, SLICES, SUMMARY
from tests.commands import FAST, run
from tests.optional_toys import save_model, scan_files
from tests.segment.known_model import summary_of

PROBABILITY = "chosen with --threshold-probability"


@pytest.fixture
def place(tmp_path):
    """Models first/ and second/, scans p1 and p2 in in/."""
    for number, name in enumerate(("first", "second")):
        save_model(tmp_path / name, sha256=f"teacher {number}")
    scan_files(tmp_path / "in", "p1")
    scan_files(tmp_path / "in", "p2", ("flair",))
    return tmp_path


def segment(place, model, *words, out="out", code=0):
    return run("segment", place / model, place / "in", "--out", place / out, *FAST, *words, code=code)


def made_by(place):
    return {path.parent.name: summary_of(path.parent)["model"] for path in place.rglob(SUMMARY)}


def test_a_result_of_another_model_is_refused_in_one_line_and_overwritten_on_request(place):
    segment(place, "first")
    done = segment(place, "second", code=1)
    refused = f"{place / 'out' / 'p1'} was made by first (engine student); give another --out, or --overwrite"
    assert done.stderr.startswith(f"anofpdm: {refused} (2 scans")
    assert done.stdout == ""
    assert "2 already complete" in segment(place, "first").stdout
    (place / "out" / "p2" / SUMMARY).unlink()
    done = segment(place, "second", code=3)
    assert f"failed: p1: {refused}" in done.stdout
    assert "1 scan segmented, 0 already complete, 1 failed" in done.stdout
    assert made_by(place) == {"p1": "first", "p2": "second"}
    assert segment(place, "second", "--strict", code=1).stderr.count("anofpdm: ") == 1
    segment(place, "second", "--overwrite")
    assert made_by(place) == {"p1": "second", "p2": "second"}


def test_choices_are_recorded_only_where_they_are_made_and_python_takes_the_same(place):
    segment(place, "first", "--report")
    folder = place / "out" / "p1"
    settings, mask = summary_of(folder)["settings"], (folder / MASK).read_bytes()
    assert not {"threshold_probability", "smallest"} & set(settings)
    assert PROBABILITY not in (folder / REPORT).read_text()
    segment(place, "first", "--report", "--threshold-probability", 0.4, "--smallest", 3, out="chosen")
    folder = place / "chosen" / "p1"
    assert summary_of(folder)["settings"] == {**settings, "threshold_probability": 0.4, "smallest": 3}
    heads, *rows = (line.split(",") for line in (folder / SLICES).read_text().splitlines())
    assert {row[heads.index("threshold")] for row in rows} == {"0.4"}
    assert f"0.4 (lesion probability, {PROBABILITY})" in (folder / REPORT).read_text()
    assert (folder / MASK).read_bytes() != mask
    files = {name: place / "in" / f"p1_{name}.nii.gz" for name in ("flair", "t1", "t2")}
    result = load(place / "first", "cpu").segment(files, threshold_probability=0.4, smallest=3)
    np.testing.assert_array_equal(result.mask, nib.nifti1.load(folder / MASK).get_fdata() > 0)


@pytest.mark.parametrize("probability", ["0", "1", "nan", "half"])
def test_other_probabilities_are_usage_errors(probability):
    option = f"--threshold-probability={probability}"
    assert "--threshold-probability" in run("segment", "phantom-stroke", "in", "--out", "out", option, code=2).output


def test_a_bids_app_takes_the_same_choices_refuses_and_overwrites(place):
    anat = place / "bids" / "sub-01" / "anat"
    (place / "in" / "p2_flair.nii.gz").rename(anat.mkdir(parents=True) or anat / "sub-01_FLAIR.nii.gz")
    words = ("bids", place / "bids", place / "out", "participant", "--skip-bids-validation", "--device", "cpu")
    choices = ("--threshold-probability", 0.45, "--smallest", 5)
    run(*words, "--model", place / "first", *choices)
    (summary,), (sidecar,) = ([*(place / "out").rglob(name)] for name in ("*summary.json", "*_mask.json"))
    assert json.loads(sidecar.read_text())["MissingModalities"] == ["t1", "t2"]
    settings = json.loads(summary.read_text())["settings"]
    assert (settings["threshold_probability"], settings["smallest"]) == (0.45, 5)
    assert "was made by first" in run(*words, "--model", place / "second", *choices, code=1).stderr
    assert "1 already complete" in run(*words, "--model", place / "first", *choices).stdout
    assert "1 scan segmented" in run(*words, "--model", place / "second", "--overwrite").stdout


def test_files_for_viewers(place):
    segment(place, "first")
    folder = place / "out" / "p1"
    assert not (folder / SEG_NRRD).exists()
    assert "2 scans segmented" in segment(place, "first", "--seg-nrrd", "--label-table").stdout
    voxels = gzip.decompress((folder / SEG_NRRD).read_bytes().split(b"\n\n", 1)[1])
    mask = np.asarray(nib.nifti1.load(folder / MASK).dataobj)
    np.testing.assert_array_equal(np.frombuffer(voxels, np.uint8).reshape(mask.shape, order="F"), mask)
    assert (folder / LABEL_TABLE).is_file()
    (folder / SEG_NRRD).unlink()
    assert "1 scan segmented, 1 already" in segment(place, "first", "--seg-nrrd", "--label-table").stdout
