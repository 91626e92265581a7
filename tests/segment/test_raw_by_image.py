"""Series whose names do not give their contrast: chosen by their images, or refused."""

import shutil

import numpy as np
import pytest

from anofpdm.choices import Raw
from anofpdm.demo.run_demo import BUNDLED
from anofpdm.errors import AnoFPDMError
from anofpdm.raw import brain
from anofpdm.scans import read_volume, write_nifti
from anofpdm.segment.inputs import find_targets
from tests.commands import run
from tests.dicom_toys import Series
from tests.dicom_toys import head as noise
from tests.raw.toy_studies import dicom_series, random_rigid, stripped_head, thick_grid

GRIDS = {"t2": ((1.8, 1.8, 5.0), (112, 120, 32)), "t1ce": ((1.8, 1.8, 4.0), (112, 120, 38)),
         "flair": ((2.0, 2.0, 4.0), (100, 112, 38)), "t1": ((1.8, 1.8, 4.5), (112, 120, 36))}  # fmt: skip
SERIES = dict(zip(GRIDS, ("scan3", "scan5", "scan7", "scan9"), strict=True))


@pytest.fixture(scope="module")
def heads():
    movements = {name: random_rigid(np.random.default_rng(len(name)), 4.0, 5.0) for name in GRIDS}
    return {name: stripped_head(name, movements[name], thick_grid(movements[name], *GRIDS[name])) for name in GRIDS}


@pytest.fixture
def study(tmp_path, heads):
    folder = tmp_path / "anna"
    folder.mkdir()
    for name, head in heads.items():
        write_nifti(folder / f"{SERIES[name]}.nii.gz", head.voxels, head.grid)
    return folder


@pytest.fixture
def extracted(monkeypatch):
    """Names of the files whose brains are extracted, as for heads with a skull."""
    files = []

    def extract(voxels, _grid, path):
        files.append(path.name)
        return voxels > 0

    monkeypatch.setattr(brain, "is_stripped", lambda *_: False)
    monkeypatch.setattr(brain, "extract_brain", extract)
    return files


def segment(*words):
    command = ["segment", BUNDLED / "phantom-tumour", *words, "--engine", "student", "--device", "cpu", "--no-report"]
    return run(*command).stderr


def test_files_are_chosen_by_their_images(study, tmp_path, extracted):
    lines = segment(study, "--out", tmp_path / "chosen")
    assert "anna: scan7.nii.gz is used as flair, by its image" in lines
    assert "anna: scan3.nii.gz is used as t2, by its image" in lines
    assert sorted(extracted) == sorted(f"{name}.nii.gz" for name in SERIES.values())  # once each
    files = {name: study / f"{SERIES[name]}.nii.gz" for name in ("flair", "t2")}
    for name, path in files.items():  # what preparation used is what was extracted
        used = read_volume(tmp_path / "chosen" / "anna" / "preparation" / f"brain_{name}.nii.gz")
        np.testing.assert_array_equal(used.voxels > 0, read_volume(path).voxels > 0)
    segment(*(f"{name}={path}" for name, path in files.items()), "--out", tmp_path / "given")
    chosen = (tmp_path / "chosen" / "anna" / "mask.nii.gz").read_bytes()
    assert chosen == (tmp_path / "given" / SERIES["flair"] / "mask.nii.gz").read_bytes()


def notes(folder, raw=Raw.AUTO):
    return find_targets([str(folder)], ("flair", "t2"), raw=raw)[0].notes


def refused(folder, raw=Raw.AUTO):
    with pytest.raises(AnoFPDMError) as problem:
        find_targets([str(folder)], ("flair", "t2"), raw=raw)
    return str(problem.value)


def test_names_that_give_a_contrast_count(study):
    (study / "scan7.nii.gz").rename(study / "scan7_flair.nii.gz")
    assert notes(study) == ("scan3.nii.gz is used as t2, by its image",)
    assert "no t2 image" in refused(study, Raw.NEVER)


def test_two_series_of_one_contrast_are_refused(study):
    shutil.copy(study / "scan3.nii.gz", study / "scan4.nii.gz")
    message = refused(study)
    for part in ("neither names nor images give flair, t2", "scan4.nii.gz: t2", "give the files as flair=FILE t2=FILE"):
        assert part in message


def test_dicom_series_are_chosen_by_their_images(tmp_path, extracted, heads):
    for number, (name, head) in enumerate(heads.items(), start=3):
        dicom_series(head, SeriesNumber=number, SeriesDescription=f"AX {number}").save(tmp_path / "anna" / name)
    Series(noise(3, 16, 16), SeriesNumber=1, SeriesDescription="1").save(tmp_path / "anna" / "scout")
    lines = segment(tmp_path / "anna", "--out", tmp_path / "out")
    assert "anna: series 5 'AX 5' is used as flair, by its image" in lines
    assert "anna: series 3 'AX 3' is used as t2, by its image" in lines
    assert len(extracted) == len(GRIDS)  # once each, also after conversion to NIfTI


def test_dicom_series_that_are_not_clear_are_refused(tmp_path, heads):
    for number in (3, 4, 5):
        series = dicom_series(heads["t2"], SeriesNumber=number, SeriesDescription=f"AX {number}")
        series.save(tmp_path / "anna" / str(number))
    message = refused(tmp_path / "anna")
    assert "series 4 'AX 4': t2" in message
    assert "--series flair=NUMBER --series t2=NUMBER" in message
