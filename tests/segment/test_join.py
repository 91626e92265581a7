"""Array jobs: parts of the scans into one folder, joined into one table."""

import csv
import shutil

import nibabel as nib
import numpy as np
import pytest

from anofpdm.errors import ConfigError
from anofpdm.segment.join import Part
from anofpdm.util.files import folder_lock
from tests import toys
from tests.commands import FAST, run

SHAPE, SCANS = (24, 26, 14), ("p0", "p1", "p2", "p3", "p4")
VOXEL_MM = (5.0, 5.0, 6.0)


def segment(scans, out, *words, code=0):
    return run("segment", "phantom-stroke", scans, "--out", out, *FAST, *words, code=code).output


def join(folder, code=0):
    return run("join", folder, code=code).output


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scans")
    for seed, name in enumerate(SCANS):
        toys.save(folder / f"{name}_t1.nii.gz", toys.head(SHAPE, seed), toys.affine_of(spacing=VOXEL_MM, shape=SHAPE))
    return folder


def rows_of(folder):
    with (folder / "scans.csv").open() as file:
        return list(csv.DictReader(file))


def test_parts_are_joined_to_what_one_run_gives(scans, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    segment(scans, whole)
    join(whole)
    parts.mkdir()
    with folder_lock(parts, shared=True):  # as another job of the array does
        segment(scans, parts, "--part", "2/2")
        assert "another run is writing here" in join(parts, code=1)
        segment(scans, parts, "--part", "1/2")
    assert "5 scans" in join(parts)
    assert [row["scan"] for row in rows_of(parts)] == list(SCANS)
    assert rows_of(parts) == rows_of(whole)
    for row in rows_of(parts):
        mask = nib.nifti1.load(parts / row["folder"] / "mask.nii.gz").get_fdata()
        volume = np.count_nonzero(mask) * np.prod(VOXEL_MM) / 1000
        assert float(row["volume_ml"]) == pytest.approx(volume, abs=1e-3)


def test_a_whole_run_and_a_part_exclude_each_other(scans, tmp_path):
    with folder_lock(tmp_path, shared=True):
        assert "another run" in segment(scans, tmp_path, code=1)
    with folder_lock(tmp_path):
        assert "another run" in segment(scans, tmp_path, "--part", "1/5", code=1)


def test_failed_and_lost_scans_are_reported(scans, tmp_path):
    shutil.copytree(scans, tmp_path / "scans")
    (tmp_path / "scans" / "p0_t1.nii.gz").write_bytes(b"no scan")
    out = tmp_path / "out"
    for number in (1, 2, 3):
        segment(tmp_path / "scans", out, "--part", f"{number}/4", code=3 if number == 1 else 0)
    shutil.rmtree(out / "p2")
    output = join(out, code=3)
    for problem in ("failed: p0: ", "missing: result of p2", "missing: part 4/4"):
        assert problem in output
    assert [row["scan"] for row in rows_of(out)] == ["p1", "p4"]
    assert not (out / "p0").exists()


@pytest.mark.parametrize("count", [1, 2, 9])
def test_every_scan_is_in_one_part(count):
    parts = [Part(number, count).select(SCANS) for number in range(1, count + 1)]
    assert sorted(name for part in parts for name in part) == list(SCANS)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("text", ["3", "0/2", "3/2", "1/0", "a/b", "-1/2", "1/2/3"])
def test_wrong_parts(text):
    with pytest.raises(ConfigError, match="--part"):
        Part.parse(text)


def test_other_folders_and_other_counts_are_refused(scans, tmp_path):
    assert "no results" in join(tmp_path, code=1)
    segment(scans, tmp_path / "out", "--part", "5/5")
    segment(scans, tmp_path / "out", "--part", "4/4")
    assert "4 and 5 parts" in join(tmp_path / "out", code=1)
