"""Scans that lack modalities which the student was trained to work without."""

import csv
from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest

from anofpdm.errors import CohortError, ScanError
from anofpdm.scans import AxialPlanes, read_scan, scan_slices, write_nifti
from anofpdm.scans.modalities import InputModalities
from anofpdm.segment.engines import EngineSlices
from anofpdm.segment.inputs import find_targets
from anofpdm.segment.model import load
from anofpdm.segment.outputs import DICOM_SEG
from tests import dicom_toys
from tests.commands import FAST, run
from tests.optional_toys import CHANNELS, SIZE, make_student, save_model, scan_files
from tests.raw.toy_studies import moved_head, random_rigid, thick_grid
from tests.segment.known_model import known_model, save_dicom, segment_all, summary_of
from tests.segment.known_model import scan_files as known_scan

WANTED = InputModalities(("flair",), ("t1", "t2"))
SETS = [("flair", "t1", "t2"), ("flair", "t2"), ("t1", "flair"), ("flair",)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load(save_model(tmp_path_factory.mktemp("model")), "cpu")


# ---- one scan --------------------------------------------------------------------------------------------------------


def test_missing_channels_are_background(model, tmp_path):
    """As the student decides on slices whose missing channels are filled by hand."""
    every, maps = scan_files(tmp_path), list[np.ndarray]()
    for given in SETS:
        files = {name: path for name, path in every.items() if name in given}
        result = model.segment(files)
        scan = read_scan(files)
        slices = scan_slices(scan, SIZE)
        pixels = np.full((len(slices.indices), len(CHANNELS), SIZE, SIZE), -1, np.float32)
        for name in given:
            pixels[:, CHANNELS.index(name)] = slices.pixels[:, scan.modalities.index(name)]
        places = EngineSlices(pixels, CHANNELS, slices.indices, AxialPlanes(scan.grid, SIZE).spacing_mm).positions
        expected = model.student.decide(lambda rows, pixels=pixels: pixels[rows], places)
        np.testing.assert_array_equal(result.decisions.maps, expected.maps)
        np.testing.assert_array_equal(result.decisions.masks, expected.masks)
        assert result.decisions.masks.any()
        assert set(result.summary.inputs) == set(given)
        assert result.summary.missing_modalities == [name for name in ("t1", "t2") if name not in given]
        assert result.display.modalities == tuple(name for name in CHANNELS if name in given)
        assert not any(np.array_equal(expected.maps, other) for other in maps)  # what is missing matters
        maps.append(expected.maps)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"t1": "t1", "t2": "t2"}, r"no flair given; the model needs flair .* got t1, t2; optional: t1, t2"),
        ({"flair": "flair", "t1w": "t1"}, "t1w: not a modality of the model; choose from flair, t1, t2"),
    ],
)
def test_wrong_modalities_are_named(model, given, words, tmp_path):
    files = scan_files(tmp_path)
    with pytest.raises(ScanError, match=words):
        model.segment({name: files[modality] for name, modality in given.items()})


def test_the_report_states_what_is_missing(model, tmp_path):
    files = scan_files(tmp_path)
    model.segment(files).save(tmp_path / "all")
    model.segment({"flair": files["flair"]}).save(tmp_path / "some")
    page = (tmp_path / "some" / "report.html").read_text()
    assert "<dt>Missing modalities</dt><dd>T1, T2</dd>" in page
    assert "T1, T2 are missing in this scan; the mask may be less accurate" in page
    assert 'data-name="FLAIR"' in page
    assert 'data-name="T2"' not in page
    assert "missing" not in (tmp_path / "all" / "report.html").read_text().split("<script")[0].lower()


class TestDiffusion:
    def model(self):
        return replace(known_model(), student=make_student(channels=("flair", "t2"), optional=("t2",), size=64))

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"engine": "diffusion"}, "the diffusion engine needs every modality .*; --engine student needs flair"),
            ({"explain": [18]}, "--explain needs every modality .*; the student alone needs flair"),
        ],
    )
    def test_it_needs_all_modalities(self, options, words, tmp_path):
        files, _, _ = known_scan(tmp_path)
        model, flair = self.model(), {"flair": files["flair"]}
        assert model.segment(flair).summary.missing_modalities == ["t2"]
        with pytest.raises(ScanError, match=f"no t2 given.*; {words}"):
            model.segment(flair, **options)
        with pytest.raises(CohortError, match=f"no t2 image .*; {words}"):
            find_targets([f"flair={files['flair']}"], model.request(**options).inputs)
        assert model.segment(files, **options).summary.missing_modalities == []


# ---- many scans ------------------------------------------------------------------------------------------------------


def test_scans_of_a_folder_may_lack_optional_modalities(model, tmp_path):
    for name, given in (("anna", CHANNELS), ("ben", ("flair",)), ("cleo", ("t1", "t2"))):
        scan_files(tmp_path / "in", name, given)
    words = ["segment", model.folder, tmp_path / "in", "--out", tmp_path / "out", *FAST]
    printed = run(*words, code=3).output
    assert "(without t1, t2)" in printed
    assert "failed: cleo: cleo: no flair image (found: t1, t2); " in printed
    assert "optional: t1, t2" in printed
    assert "(without t1, t2; already complete)" in run(*words, code=3).output
    run("join", tmp_path / "out")
    rows = {row["scan"]: row for row in csv.DictReader((tmp_path / "out" / "scans.csv").open())}
    assert {name: row["missing_modalities"] for name, row in rows.items()} == {"anna": "", "ben": "t1 t2"}


def test_a_layout_that_recognises_more_files_is_preferred(tmp_path):
    """BraTS names do not include T1w; the general layout knows them."""
    files = scan_files(tmp_path, "anna", ("flair", "t1"))
    files["t1"].rename(tmp_path / "anna_T1w.nii.gz")
    (target,) = find_targets([str(tmp_path)], WANTED)
    assert set(target.subject.images) == {"flair", "t1"}


def test_files_given_by_modality_and_a_result_with_others(model, tmp_path):
    files, out = scan_files(tmp_path / "in"), tmp_path / "out"
    flair, t2 = (f"{name}={files[name]}" for name in ("flair", "t2"))
    (target,) = find_targets([t2, flair], WANTED)
    assert tuple(target.subject.images) == ("flair", "t2")
    with pytest.raises(CohortError, match=r"give the files as flair=FILE \[t1=FILE\] \[t2=FILE\]; optional: t1, t2"):
        find_targets([t2], WANTED)
    assert segment_all(model, [target], out).segmented
    report = segment_all(model, find_targets([flair], WANTED), out)
    assert "made from flair, t2, and now flair is given" in report.failed["p"]
    assert summary_of(out / "p")["missing_modalities"] == ["t1"]


# ---- DICOM and raw studies -------------------------------------------------------------------------------------------


def dicom_study(folder, names):
    return save_dicom(folder, {name: dicom_toys.head(12, 32, 30, seed=seed) for seed, name in enumerate(names)})


def test_a_dicom_study_may_lack_a_series(model, tmp_path):
    pydicom = pytest.importorskip("pydicom")
    place = dicom_study(tmp_path / "anna", ["AX T2", "AX FLAIR"])
    targets = find_targets([str(place)], WANTED)
    assert tuple(targets[0].subject.images) == ("flair", "t2")
    report = segment_all(model, targets, tmp_path / "out", (DICOM_SEG,))
    assert report.segmented["anna"].missing_modalities == ["t1"]
    folder = tmp_path / "out" / "anna"
    inputs = summary_of(folder)["inputs"]
    assert set(inputs) == {"flair", "t2"}
    seg = pydicom.dcmread(folder / "mask_seg.dcm")
    assert seg.ContentDescription == "Research use only, not for diagnosis; without T1"
    assert seg.SegmentSequence[0].SegmentDescription.endswith("Modalities that the scan lacks: t1")
    assert seg.ReferencedSeriesSequence[0].SeriesInstanceUID == inputs["flair"]["uid"]
    assert "lacks: t1" in pydicom.dcmread(folder / "report_capture.dcm").DerivationDescription


def test_optional_series_that_are_unclear_or_cannot_be_used_are_left_out_unless_chosen(tmp_path):
    place = dicom_study(tmp_path / "anna", ["AX FLAIR", "AX T2", "COR T2", "AX T1"])
    next((place / "s6").glob("*005.dcm")).unlink()
    (target,) = find_targets([str(place)], WANTED)
    assert tuple(target.study.series) == ("flair",)
    ambiguous = [line for line in target.notes if "ignored: 't2' in its description; ambiguous with" in line]
    assert [line.split()[-1] for line in ambiguous] == ["t2=4", "t2=5"]
    assert any("; cannot be used: " in line and "slices are missing" in line for line in target.notes)
    (target,) = find_targets([str(place)], WANTED, series={"t2": "5"})
    assert target.study.series["t2"].label.number == 5
    with pytest.raises(ScanError, match="slices are missing"):
        find_targets([str(place)], WANTED, series={"t1": "6"})


def test_a_raw_study_may_lack_a_series(model, tmp_path):
    """FLAIR is the reference, although T1 is the first channel."""
    movement = random_rigid(np.random.default_rng(8), 6.0, 5.0)
    places = {"t1": movement, "flair": np.eye(4)}
    files = {}
    for name, matrix in places.items():
        head = moved_head(name, matrix, thick_grid(matrix, (2.0, 2.0, 5.0), (100, 110, 30)))
        files[name] = tmp_path / f"anna_{name}.nii.gz"
        write_nifti(files[name], np.where(head.brain, head.voxels, 0), head.grid)
    report = segment_all(model, tmp_path, tmp_path / "out", raw="auto")
    assert report.segmented["anna"].missing_modalities == ["t2"]
    summary = summary_of(tmp_path / "out" / "anna")
    assert (summary["study"]["reference"], set(summary["study"]["series"])) == ("flair", {"flair", "t1"})
    mask = nib.nifti1.load(tmp_path / "out" / "anna" / "mask.nii.gz")
    np.testing.assert_allclose(mask.affine, nib.nifti1.load(files["flair"]).affine, atol=1e-4)
