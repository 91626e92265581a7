"""Raw studies of phantoms, segmented with the bundled model: masks on the grid of every series."""

import json
import re
from dataclasses import replace

import nibabel as nib
import numpy as np
import pydicom
import pytest
from scipy import ndimage

from anofpdm.choices import Raw
from anofpdm.demo.run_demo import BUNDLED
from anofpdm.errors import ScanError
from anofpdm.raw.cache import StudyCache
from anofpdm.report.result_page import render_report
from anofpdm.scans import write_nifti
from anofpdm.scans.expects import ScanExpectation
from anofpdm.scans.grid import Grid
from anofpdm.segment.inputs import find_targets
from anofpdm.segment.many import BatchSegmentation
from anofpdm.segment.model import load
from anofpdm.segment.outputs import DICOM_SEG
from anofpdm.segment.segment_scan import read
from tests.dicom_toys import Series
from tests.dicom_toys import head as noise
from tests.raw.toy_studies import dicom_series, lesion_on, random_rigid, stripped_head, thick_grid, tumour_phantom
from tests.scans.test_dicom_out import rebuilt
from tests.segment.known_model import segment_all, with_network
from tests.toys import dice

NAMES = {"flair": "AX T2 FLAIR", "t1": "SAG T1", "t1ce": "AX T1 +C", "t2": "AX T2 TSE"}
GRIDS = {
    "flair": ((1.5, 1.5, 4.0), (130, 150, 38)),
    "t1": ((1.6, 1.6, 4.5), (120, 140, 36)),
    "t1ce": ((1.5, 1.5, 4.0), (130, 150, 38)),
    "t2": ((1.8, 1.8, 5.0), (112, 120, 32)),
}
MOVEMENTS = {name: random_rigid(np.random.default_rng(seed), 8.0, 10.0) for seed, name in enumerate(NAMES)}
MOVEMENTS["flair"] = np.eye(4)


@pytest.fixture(scope="module")
def model():
    return load(BUNDLED / "phantom-tumour", "cpu")


@pytest.fixture(scope="module")
def heads():
    tilt = random_rigid(np.random.default_rng(7), 5.0, 3.0)
    grids = {name: thick_grid(MOVEMENTS[name] @ tilt, *GRIDS[name]) for name in NAMES}
    return {name: stripped_head(name, MOVEMENTS[name], grid) for name, grid in grids.items()}


def test_a_dicom_study_on_several_grids_becomes_a_dicom_seg_per_series(model, heads, tmp_path):
    for number, (name, description) in enumerate(NAMES.items(), start=3):
        series = dicom_series(heads[name], SeriesNumber=number, SeriesDescription=description)
        series.save(tmp_path / "anna" / name)
    Series(noise(3, 16, 16), SeriesNumber=1, SeriesDescription="LOCALIZER").save(tmp_path / "anna" / "scout")
    Series(SeriesNumber=9, SeriesDescription="ep2d_diff_4scan").save(tmp_path / "anna" / "diffusion")
    lines: list[str] = []
    request = model.request(engine="student", raw="auto")
    targets = find_targets([str(tmp_path / "anna")], request.modalities, raw=Raw.AUTO)
    run = BatchSegmentation(request, targets, tmp_path / "out", (DICOM_SEG,), True, lines.append)
    assert list(run.run().segmented) == ["anna"]
    assert "anna: series 1 'LOCALIZER' ignored: a localiser, by its description" in lines
    assert "anna: series 9 'ep2d_diff_4scan' ignored: diffusion, by its description" in lines
    folder = tmp_path / "out" / "anna"
    for name in request.modalities:
        nifti = nib.nifti1.load(folder / f"mask_on_{name}.nii.gz")
        mask = np.asarray(nifti.dataobj) > 0
        truth = lesion_on(Grid.from_affine(nifti.shape, nifti.affine), MOVEMENTS[name])
        assert dice(mask, truth) > 0.6, (name, dice(mask, truth))
        seg = pydicom.dcmread(folder / ("mask_seg.dcm" if name == "flair" else f"mask_seg_on_{name}.dcm"))
        np.testing.assert_array_equal(rebuilt(seg, nifti.affine, nifti.shape), mask)
    assert (folder / "mask.nii.gz").read_bytes() == (folder / "mask_on_flair.nii.gz").read_bytes()
    for file in ("summary.json", "preparation/manifest.json"):
        assert "anofpdm-" not in (folder / file).read_text()  # the temporary folder of converted series
    assert json.loads((folder / "summary.json").read_text())["inputs"]["t2"]["series"] == 6
    assert list(run.run().skipped) == ["anna"]


def test_a_model_in_template_space_gets_the_scan_there_and_the_mask_comes_back(model, heads, tmp_path):
    """Explained slices are those of the template; mask and findings are on the grid of the reference."""
    files = {name: tmp_path / f"{name}.nii.gz" for name in heads}
    for name, head in heads.items():
        write_nifti(files[name], head.voxels, head.grid)
    expects = ScanExpectation(template="mni152")
    in_space, lines = with_network(model, expects=expects), list[str]()
    cache = StudyCache(tmp_path / "preparation", lines.append)
    result = in_space.segment(files, engine="student", explain="findings", raw="auto", raw_run=cache)
    assert any("registered to mni152, affine, brains overlap by 0.9" in line for line in lines)
    assert result.grid.shape == GRIDS["flair"][1]
    assert dice(result.mask, lesion_on(result.grid)) > 0.6

    masks = result.decisions.masks > 0  # [n, H, W], on the slices of the template
    labels, _ = ndimage.label(masks, np.ones((3, 3, 3)))
    centre = ndimage.center_of_mass(labels == 1 + np.bincount(labels.ravel())[1:].argmax())[0]
    explained = result.decisions.evidence.rows
    assert abs(explained - centre).min() <= 2
    assert masks[explained].any(axis=(1, 2)).all()
    first, *_ = result.display.space.central_rows(result.findings, result.display.indices)
    assert abs(first - centre) <= 2
    assert first in explained
    (shown,) = re.findall(r"slices \d+ to (\d+) of (\d+)", render_report(result, "anna").decode())
    assert int(shown[0]) < int(shown[1])

    prepared = {name: tmp_path / "preparation" / f"{name}.nii.gz" for name in files}
    request = in_space.request(engine="student", raw="auto")
    request = replace(request, scans=replace(request.scans, foreground=(0.0, 1.0)))
    assert read(prepared, request, StudyCache()).study is None  # in template space: used as it is


def test_a_result_with_raw_is_not_complete_without_it(model, tmp_path):
    out = tmp_path / "out"
    (tmp_path / "in").mkdir()
    for name in ("flair", "t2"):  # stripped, on one grid
        write_nifti(tmp_path / "in" / f"p_{name}.nii.gz", tumour_phantom().volumes[name], tumour_phantom().affine)

    def run(raw: Raw, **changes):
        return segment_all(model, tmp_path / "in", out, engine="student", raw=raw, **changes)

    assert list(run(Raw.ALWAYS).segmented) == ["p"]
    assert (out / "p" / "mask_on_t2.nii.gz").is_file()
    assert list(run(Raw.ALWAYS).skipped) == ["p"]
    assert "was made with other options (raw always, now never)" in run(Raw.NEVER).failed["p"]
    assert (out / "p" / "mask_on_t2.nii.gz").is_file()
    # Auto leaves stripped scans on one grid as they are.
    results = []
    for raw in (Raw.NEVER, Raw.AUTO):
        assert list(run(raw, overwrite=True).segmented) == ["p"]
        assert not (out / "p" / "mask_on_t2.nii.gz").exists()
        tables = ("mask.nii.gz", "anomaly_map.nii.gz", "findings.csv", "slices.csv")
        results.append([(out / "p" / file).read_bytes() for file in tables])
    assert results[0] == results[1]
    assert list(run(Raw.AUTO).skipped) == ["p"]


def test_without_raw_a_dicom_study_on_two_grids_is_refused_with_the_remedy(heads, tmp_path):
    for number, name in enumerate(("flair", "t2")):
        series = dicom_series(heads[name], SeriesNumber=number, SeriesDescription=NAMES[name])
        series.save(tmp_path / "anna" / name)
    with pytest.raises(ScanError, match=r"is not on the grid of flair, series 0 .*--raw auto"):
        find_targets([str(tmp_path / "anna")], ("flair", "t2"))
