"""`anofpdm segment` and `bids` into a folder with results: kept, made again, or refused."""

import re

import pytest

from anofpdm.segment.outputs import SUMMARY
from tests.commands import run
from tests.optional_toys import save_model, scan_files

FLAIR = ("flair",)
FAST = ("--no-report", "--no-pictures", "--raw", "never", "--device", "cpu")


@pytest.fixture
def place(tmp_path):
    """Models first/ and second/, scans p1 and p2 in in/."""
    for number, name in enumerate(("first", "second")):
        save_model(tmp_path / name, sha256=f"teacher {number}", channels=FLAIR, optional=())
    for name in ("p1", "p2"):
        scan_files(tmp_path / "in", name, FLAIR)
    return tmp_path


def segment(place, model, *words, scans="in", code=0):
    return run("segment", place / model, place / scans, "--out", place / "r", *FAST, *words, code=code)


def made_by(place):
    return {path.parent.name: re.search(r'"model": "(\w+)"', path.read_text())[1] for path in place.rglob(SUMMARY)}


def test_another_model_is_refused_in_one_line_that_names_the_first(place):
    segment(place, "first")
    done = segment(place, "second", code=1)
    expected = f"{place / 'r' / 'p1'} was made by first (engine student); give another --out, or --overwrite (2 scans"
    assert done.stderr.startswith(f"anofpdm: {expected}")
    assert done.stdout == ""
    assert "2 already complete" in segment(place, "first").stdout
    segment(place, "second", "--overwrite")
    assert made_by(place) == {"p1": "second", "p2": "second"}


def test_one_refused_scan_does_not_end_the_batch(place):
    segment(place, "first", scans="in/p1_flair.nii.gz")
    done = segment(place, "second", code=3)
    assert f"failed: p1: {place / 'r' / 'p1'} was made by first" in done.stdout
    assert "1 scan segmented, 0 already complete, 1 failed" in done.stdout
    assert made_by(place) == {"p1": "first", "p2": "second"}
    assert segment(place, "second", "--strict", code=1).stderr.count("anofpdm: ") == 1


def test_array_jobs_refuse_too_and_resume(place):
    segment(place, "first", "--part", "1/2")
    (place / "r" / "p2").mkdir()  # a killed job of part 2: no summary
    (place / "r" / "p2" / "mask.nii.gz").write_bytes(b"half")
    segment(place, "first", "--part", "2/2")
    segment(place, "second", "--part", "2/2", code=1)
    assert "1 already complete" in segment(place, "first", "--part", "2/2").stdout
    assert "2 scans" in run("join", place / "r").stdout


def test_a_bids_app_refuses_and_overwrites(place):
    anat = place / "bids" / "sub-01" / "anat"
    (place / "in" / "p1_flair.nii.gz").rename(anat.mkdir(parents=True) or anat / "sub-01_FLAIR.nii.gz")
    words = ("bids", place / "bids", place / "out", "participant", "--skip-bids-validation", *FAST[2:])
    run(*words, "--model", place / "first")
    assert "was made by first" in run(*words, "--model", place / "second", code=1).stderr
    assert "1 already complete" in run(*words, "--model", place / "first").stdout
    assert "1 scan segmented" in run(*words, "--model", place / "second", "--overwrite").stdout
