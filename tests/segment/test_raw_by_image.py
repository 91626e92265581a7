"""Series whose names do not give their contrast, through the command line: chosen by their images, or refused."""

import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from anofpdm.cli.main import app
from anofpdm.demo.run_demo import BUNDLED
from anofpdm.raw import prepare_study
from anofpdm.raw.register import Head
from anofpdm.scans import read_volume, write_nifti
from tests.dicom_toys import Series
from tests.dicom_toys import head as noise
from tests.raw.worlds import dicom_series, moved_head, random_rigid, thick_grid

GRIDS = {"t2": ((1.8, 1.8, 5.0), (112, 120, 32)), "t1ce": ((1.8, 1.8, 4.0), (112, 120, 38)),
         "flair": ((2.0, 2.0, 4.0), (100, 112, 38)), "t1": ((1.8, 1.8, 4.5), (112, 120, 36))}  # fmt: skip
SERIES = dict(zip(GRIDS, ("scan3", "scan5", "scan7", "scan9"), strict=True))


def stripped(name):
    movement = random_rigid(np.random.default_rng(len(name)), 4.0, 5.0)
    head = moved_head(name, movement, thick_grid(movement, *GRIDS[name]))
    return Head(np.where(head.brain, head.voxels, 0), head.brain, head.grid)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files") / "anna"
    folder.mkdir()
    for name, file in SERIES.items():
        head = stripped(name)
        write_nifti(folder / f"{file}.nii.gz", head.voxels, head.grid)
    return folder


def segment(*words):
    command = ["segment", BUNDLED / "phantom-tumour", *words, "--engine", "student", "--device", "cpu", "--no-report"]
    return CliRunner().invoke(app, [str(word) for word in command])


def test_files_are_chosen_by_their_images(study, tmp_path):
    result = segment(study, "--out", tmp_path / "chosen")
    assert result.exit_code == 0, result.output
    assert "anna: scan7.nii.gz is used as flair, by its image" in result.stderr
    assert "anna: scan3.nii.gz is used as t2, by its image" in result.stderr
    files = [f"{name}={study / SERIES[name]}.nii.gz" for name in ("flair", "t2")]
    assert segment(*files, "--out", tmp_path / "given").exit_code == 0
    chosen = (tmp_path / "chosen" / "anna" / "mask.nii.gz").read_bytes()
    assert chosen == (tmp_path / "given" / SERIES["flair"] / "mask.nii.gz").read_bytes()


@pytest.fixture
def extracted(monkeypatch):
    """Names of the files whose brains are extracted, as for heads with a skull."""
    files = []

    def extract(voxels, _grid, _networks, path):
        files.append(path.name)
        return voxels > 0

    monkeypatch.setattr(prepare_study, "is_stripped", lambda _volume: False)
    monkeypatch.setattr(prepare_study, "load_networks", object)
    monkeypatch.setattr(prepare_study, "extract_brain", extract)
    return files


def test_the_brain_of_each_file_is_extracted_once(study, tmp_path, extracted):
    result = segment(study, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert sorted(extracted) == sorted(f"{name}.nii.gz" for name in SERIES.values())
    for name in ("flair", "t2"):  # what preparation used is what was extracted
        used = read_volume(tmp_path / "out" / "anna" / "preparation" / f"brain_{name}.nii.gz")
        np.testing.assert_array_equal(used.voxels > 0, read_volume(study / f"{SERIES[name]}.nii.gz").voxels > 0)


def test_names_that_give_a_contrast_count(study, tmp_path):
    shutil.copytree(study, tmp_path / "anna")
    (tmp_path / "anna" / "scan7.nii.gz").rename(tmp_path / "anna" / "scan7_flair.nii.gz")
    result = segment(tmp_path / "anna", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "scan3.nii.gz is used as t2, by its image" in result.stderr
    assert "is used as flair" not in result.stderr


def test_two_series_of_one_contrast_are_refused(study, tmp_path):
    shutil.copytree(study, tmp_path / "anna")
    shutil.copy(study / "scan3.nii.gz", tmp_path / "anna" / "scan4.nii.gz")
    result = segment(tmp_path / "anna", "--out", tmp_path / "out")
    assert result.exit_code == 1, result.output
    assert "neither names nor images give flair, t2" in result.output
    assert "scan4.nii.gz: t2" in result.output
    assert "give the files as flair=FILE t2=FILE" in result.output
    assert not list(tmp_path.rglob("mask.nii.gz"))


def test_without_raw_names_decide(study, tmp_path):
    result = segment(study, "--out", tmp_path / "out", "--raw", "never")
    assert result.exit_code == 1
    assert "no flair or t2 image" in result.output


def test_dicom_series_are_chosen_by_their_images(tmp_path, extracted):
    for number, name in enumerate(GRIDS, start=3):
        series = dicom_series(stripped(name), SeriesNumber=number, SeriesDescription=f"AX {number}")
        series.save(tmp_path / "anna" / name)
    Series(noise(3, 16, 16), SeriesNumber=1, SeriesDescription="1").save(tmp_path / "anna" / "scout")
    result = segment(tmp_path / "anna", "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "anna: series 5 'AX 5' is used as flair, by its image" in result.stderr
    assert "anna: series 3 'AX 3' is used as t2, by its image" in result.stderr
    assert len(extracted) == len(GRIDS)  # once each, also after conversion to NIfTI


def test_dicom_series_that_are_not_clear_are_refused(tmp_path):
    for number in (3, 4, 5):
        series = dicom_series(stripped("t2"), SeriesNumber=number, SeriesDescription=f"AX {number}")
        series.save(tmp_path / "anna" / str(number))
    result = segment(tmp_path / "anna", "--out", tmp_path / "out")
    assert result.exit_code == 1, result.output
    assert "series 4 'AX 4': t2" in result.output
    assert "--series flair=NUMBER --series t2=NUMBER" in result.output
