"""Model.segment takes a scan in every form that the command line takes it, and a model describes itself."""

import inspect
import subprocess
import sys

import numpy as np
import pytest

import anofpdm
from anofpdm.errors import CohortError, ScanError
from anofpdm.segment.model import Model, load
from anofpdm.segment.request import SegmentOptions
from tests.optional_toys import save_model, scan_files
from tests.segment.known_model import BY_HEALTHY, known_model
from tests.segment.known_model import scan_files as known_scan
from tests.segment.test_dicom import study


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A model, the files of a scan, and its mask."""
    files, _, _ = known_scan(tmp_path_factory.mktemp("world") / "one")
    model = known_model()
    mask = model.segment(files, **BY_HEALTHY).mask
    assert mask.any()
    return model, files, mask


@pytest.mark.parametrize(
    "given",
    [
        lambda files: {name.upper(): str(path) for name, path in files.items()},
        lambda files: {name.title(): path for name, path in files.items()},
        lambda files: files["flair"].parent,
        lambda files: str(files["flair"].parent),
        lambda files: [*files.values()],
    ],
    ids=["upper case", "title case", "folder", "name of a folder", "files"],
)
def test_every_form_gives_the_same_mask(given, world):
    model, files, expected = world
    result = model.segment(given(files), **BY_HEALTHY)
    np.testing.assert_array_equal(result.mask, expected)
    assert list(result.summary.inputs) == ["flair", "t2"]


def test_one_file_for_a_model_of_one_modality(tmp_path):
    model = load(save_model(tmp_path / "model"), "cpu")
    files = scan_files(tmp_path / "scan")
    result = model.segment(files["flair"], raw="never")
    assert result.summary.missing_modalities == ["t1", "t2"]
    np.testing.assert_array_equal(result.mask, model.segment({"FLAIR": files["flair"]}).mask)


def test_a_dicom_study(tmp_path):
    place, lesion, _ = study(tmp_path / "anna")
    result = known_model().segment(place, **BY_HEALTHY)
    assert result.mask.shape == lesion.shape
    assert result.mask.any()
    assert result.summary.inputs["flair"].file == "anna, series 3 (AX T2 FLAIR)"


def test_several_scans_are_refused_with_what_to_do(world, tmp_path):
    for name in ("anna", "bert"):
        known_scan(tmp_path, name=name)
    with pytest.raises(CohortError, match=r"2 scans \(anna, bert\); give the files .* To segment all: anofpdm segment"):
        world[0].segment(tmp_path)


def test_no_scan_and_a_modality_given_twice_are_refused(world):
    model, files, _ = world
    with pytest.raises(CohortError, match="no file given"):
        model.segment([])
    with pytest.raises(ScanError, match="duplicate modality"):
        model.segment({"flair": files["flair"], "FLAIR": files["t2"]})


def test_a_model_prints_as_three_lines(tmp_path):
    folder = save_model(tmp_path / "toy")
    name, modalities, engines = str(load(folder, "cpu")).splitlines()
    assert name == f"AnoFPDM model toy: {folder}"
    assert modalities == "modalities: FLAIR needed, T1, T2 optional"
    assert engines == "engines: student; slices of 32 x 32 pixels"
    assert repr(known_model()).splitlines()[1:] == [
        "modalities: FLAIR, T2 needed",
        "engines: diffusion; slices of 64 x 64 pixels",
    ]


def test_help_lists_what_segment_takes_and_returns():
    text = inspect.getdoc(Model.segment) or ""
    absent = [name for name in SegmentOptions.__annotations__ if name not in text]
    assert not absent
    for word in ('{"flair": path, "t2": path}', "DICOM", "Returns mask", "save("):
        assert word in text


def test_load_is_listed_and_importing_stays_light():
    assert "load" in dir(anofpdm)
    code = "import sys, anofpdm; dir(anofpdm); print([name for name in ('numpy', 'torch') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
