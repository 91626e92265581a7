"""Raw studies of phantoms, segmented with the bundled model: masks on the grid of every series."""

import json
import re
import sys
from dataclasses import replace

import nibabel as nib
import numpy as np
import pydicom
import pytest
from scipy import ndimage

from anofpdm.demo.run_demo import BUNDLED
from anofpdm.errors import ScanError
from anofpdm.options import Raw
from anofpdm.raw.geometry import resample
from anofpdm.raw.prepare_study import RawRun
from anofpdm.raw.register import Head
from anofpdm.raw.template import in_template_space
from anofpdm.report.page_data import build_page_data
from anofpdm.report.result_page import render_report
from anofpdm.scans import read_volume, write_nifti
from anofpdm.scans.expects import ScanExpectation
from anofpdm.scans.grid import Grid
from anofpdm.segment.inputs import find_targets
from anofpdm.segment.many import BatchSegmentation, OutputOptions
from anofpdm.segment.model import load
from anofpdm.segment.read import read
from tests.dicom_toys import Series
from tests.dicom_toys import head as noise
from tests.raw.worlds import dicom_series, moved_head, random_rigid, thick_grid, tumour_phantom
from tests.scans.test_dicom_out import rebuilt
from tests.segment.known_model import with_network
from tests.toys import dice

NAMES = {"flair": "AX T2 FLAIR", "t1": "SAG T1", "t1ce": "AX T1 +C", "t2": "AX T2 TSE"}
GRIDS = {
    "flair": ((1.5, 1.5, 4.0), (130, 150, 38)),
    "t1": ((1.6, 1.6, 4.5), (120, 140, 36)),
    "t1ce": ((1.5, 1.5, 4.0), (130, 150, 38)),
    "t2": ((1.8, 1.8, 5.0), (112, 120, 32)),
}
MOVEMENTS = {
    name: random_rigid(np.random.default_rng(seed), 0.0 if seed == 0 else 8.0, 0.0 if seed == 0 else 10.0)
    for seed, name in enumerate(NAMES)
}


@pytest.fixture(scope="module")
def model():
    return load(BUNDLED / "phantom-tumour", "cpu")


def stripped_head(name: str) -> Head:
    tilt = random_rigid(np.random.default_rng(7), 5.0, 3.0)
    head = moved_head(name, MOVEMENTS[name], thick_grid(MOVEMENTS[name] @ tilt, *GRIDS[name]))
    return Head(np.where(head.brain, head.voxels, 0), head.brain, head.grid)


def lesion_on(grid: Grid, name: str) -> np.ndarray:
    phantom = tumour_phantom()
    source = Grid.from_affine(phantom.mask.shape, phantom.affine)
    return resample(phantom.mask > 0, source, grid, np.linalg.inv(MOVEMENTS[name])) >= 0.5


def test_a_dicom_study_on_several_grids_becomes_a_dicom_seg_per_series(model, tmp_path):
    for number, (name, description) in enumerate(NAMES.items(), start=3):
        series = dicom_series(stripped_head(name), SeriesNumber=number, SeriesDescription=description)
        series.save(tmp_path / "anna" / name)
    Series(noise(3, 16, 16), SeriesNumber=1, SeriesDescription="LOCALIZER").save(tmp_path / "anna" / "scout")
    Series(SeriesNumber=9, SeriesDescription="ep2d_diff_4scan").save(tmp_path / "anna" / "diffusion")
    lines: list[str] = []
    request = model.request(engine="student", raw="auto")
    targets = find_targets([str(tmp_path / "anna")], request.modalities, raw=Raw.AUTO)
    run = BatchSegmentation(request, targets, tmp_path / "out", OutputOptions(dicom=True), True, lines.append)
    assert list(run.run().segmented) == ["anna"]
    assert "anna: series 1 'LOCALIZER' ignored: a localiser, by its description" in lines
    assert "anna: series 9 'ep2d_diff_4scan' ignored: diffusion, by its description" in lines
    folder = tmp_path / "out" / "anna"
    for name in request.modalities:
        nifti = nib.nifti1.load(folder / f"mask_on_{name}.nii.gz")
        mask = np.asarray(nifti.dataobj) > 0
        truth = lesion_on(Grid.from_affine(nifti.shape, nifti.affine), name)
        assert dice(mask, truth) > 0.6, (name, dice(mask, truth))
        seg = pydicom.dcmread(folder / ("mask_seg.dcm" if name == "flair" else f"mask_seg_on_{name}.dcm"))
        np.testing.assert_array_equal(rebuilt(seg, nifti.affine, nifti.shape), mask)
    assert (folder / "mask.nii.gz").read_bytes() == (folder / "mask_on_flair.nii.gz").read_bytes()
    for file in ("summary.json", "preparation/manifest.json"):
        assert "anofpdm-" not in (folder / file).read_text()  # the temporary folder of converted series
    assert json.loads((folder / "summary.json").read_text())["inputs"]["t2"]["series"] == 6
    assert list(run.run().skipped) == ["anna"]


def in_template_space_of(model):
    return with_network(model, expects=ScanExpectation(template="mni152"))


def write_stripped(folder, names=("flair", "t2")):
    files = {name: folder / f"{name}.nii.gz" for name in names}
    for name, path in files.items():
        head = stripped_head(name)
        write_nifti(path, head.voxels, head.grid)
    return files


def test_findings_are_explained_and_shown_at_their_slices_in_template_space(model, tmp_path):
    """Slices are those of the template, findings are on the grid of the reference."""
    files = write_stripped(tmp_path, model.diffusion.network.modalities)
    result = in_template_space_of(model).segment(files, engine="student", explain="findings", raw="auto")
    masks = result.decisions.masks > 0  # [n, H, W], on the slices of the template
    labels, _ = ndimage.label(masks, np.ones((3, 3, 3)))
    largest = 1 + np.bincount(labels.ravel())[1:].argmax()
    centre = ndimage.center_of_mass(labels == largest)[0]
    explained = result.decisions.evidence.rows
    assert abs(explained - centre).min() <= 2
    assert masks[explained].any(axis=(1, 2)).all()
    (first, *_) = build_page_data(result).findings
    assert abs(first.row - centre) <= 2
    assert first.row in explained
    (shown,) = re.findall(r"slices \d+ to (\d+) of (\d+)", render_report(result, "anna").decode())
    assert int(shown[0]) < int(shown[1])


def test_a_model_in_template_space_gets_the_scan_there_and_the_mask_comes_back(model, tmp_path):
    in_space = in_template_space_of(model)
    files = write_stripped(tmp_path)
    lines: list[str] = []
    run = RawRun(tmp_path / "preparation", lines.append)
    result = in_space.segment(files, engine="student", raw="auto", raw_run=run)
    assert any("registered to mni152, affine, brains overlap by 0.9" in line for line in lines)
    prepared = read_volume(tmp_path / "preparation" / "t2.nii.gz")
    assert in_template_space(prepared.voxels > 0, prepared.grid)
    assert result.grid.shape == GRIDS["flair"][1]
    assert dice(result.mask, lesion_on(result.grid, "flair")) > 0.6
    prepared_files = {name: tmp_path / "preparation" / f"{name}.nii.gz" for name in files}
    request = in_space.request(engine="student", raw="auto")
    request = replace(request, scans=replace(request.scans, foreground=(0.0, 1.0)))
    assert read(prepared_files, request, RawRun()).study is None  # in template space: used as it is


@pytest.mark.filterwarnings("ignore::anofpdm.errors.ScanWarning")  # of the distance between slices
def test_a_model_with_skull_gets_the_skull(model, tmp_path):
    """The whole head of one series, whose brain is given, on another grid than the other series."""
    with_skull = with_network(model, expects=ScanExpectation(skull=True))
    files = {}
    for name in ("flair", "t2"):
        head = stripped_head(name)
        shell = ndimage.binary_dilation(head.brain, iterations=4) & ~ndimage.binary_dilation(head.brain, iterations=2)
        files[name] = tmp_path / f"{name}.nii.gz"
        write_nifti(files[name], np.where(shell, 0.8 * head.voxels.max(), head.voxels + 1), head.grid)
        write_nifti(tmp_path / f"{name}_brain.nii.gz", head.brain.astype(np.uint8), head.grid)
    command = f"{sys.executable} -c 'import shutil,sys; shutil.copy(sys.argv[1][:-7] + \"_brain.nii.gz\", sys.argv[2])'"
    options = {"raw": "auto", "skull_strip": command + " {input} {output}", "engine": "student"}
    with_skull.segment(files, raw_run=RawRun(tmp_path / "with"), **options)
    model.segment(files, raw_run=RawRun(tmp_path / "without"), **options)
    for kept, folder in ((True, "with"), (False, "without")):
        prepared = read_volume(tmp_path / folder / "t2.nii.gz").voxels
        brain = read_volume(tmp_path / folder / "brain.nii.gz").voxels > 0
        assert (prepared[~brain] > 0).any() == kept


def test_auto_leaves_stripped_scans_on_one_grid_as_they_are(model, tmp_path):
    phantom = tumour_phantom()
    files = {name: tmp_path / f"{name}.nii.gz" for name in ("flair", "t2")}
    for name, path in files.items():
        write_nifti(path, phantom.volumes[name], phantom.affine)
    for raw in Raw.AUTO, Raw.NEVER:
        model.segment(files, engine="student", raw=raw).save(tmp_path / raw, picture=False, report=False)
    for file in ("mask.nii.gz", "anomaly_map.nii.gz", "findings.csv", "slices.csv"):
        assert (tmp_path / "auto" / file).read_bytes() == (tmp_path / "never" / file).read_bytes()
    assert not (tmp_path / "auto" / "mask_on_t2.nii.gz").exists()


def test_a_result_with_raw_is_not_complete_without_it(model, tmp_path):
    phantom = tumour_phantom()
    (tmp_path / "in" / "p").mkdir(parents=True)
    for name in ("flair", "t2"):
        write_nifti(tmp_path / "in" / "p" / f"p_{name}.nii.gz", phantom.volumes[name], phantom.affine)
    targets = find_targets([str(tmp_path / "in")], ("flair", "t2"))

    def run(raw: Raw, **changes):
        request = model.request(engine="student", raw=raw)
        outputs = OutputOptions(False, False)
        return BatchSegmentation(request, targets, tmp_path / "out", outputs, **changes).run()

    assert list(run(Raw.ALWAYS).segmented) == ["p"]
    assert (tmp_path / "out" / "p" / "mask_on_t2.nii.gz").is_file()
    assert list(run(Raw.ALWAYS).skipped) == ["p"]
    assert "was made with other options (raw always, now never)" in run(Raw.NEVER).failed["p"]
    assert (tmp_path / "out" / "p" / "mask_on_t2.nii.gz").is_file()
    assert list(run(Raw.NEVER, overwrite=True).segmented) == ["p"]
    assert not (tmp_path / "out" / "p" / "mask_on_t2.nii.gz").exists()
    assert list(run(Raw.AUTO, overwrite=True).segmented) == ["p"]
    assert list(run(Raw.AUTO).skipped) == ["p"]


def test_without_raw_a_dicom_study_on_two_grids_is_refused_with_the_remedy(tmp_path):
    for number, name in enumerate(("flair", "t2")):
        series = dicom_series(stripped_head(name), SeriesNumber=number, SeriesDescription=NAMES[name])
        series.save(tmp_path / "anna" / name)
    with pytest.raises(ScanError, match=r"is not on the grid of flair, series 0 .*--raw auto"):
        find_targets([str(tmp_path / "anna")], ("flair", "t2"))
