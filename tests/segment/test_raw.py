"""Raw studies of phantoms, segmented with the bundled model: masks on the grid of every series."""

import json

import nibabel as nib
import numpy as np
import pydicom
import pytest

from anofpdm.cohorts.inputs import find_targets
from anofpdm.demo.run import BUNDLED
from anofpdm.errors import ScanError
from anofpdm.options import Raw
from anofpdm.scans.grid import Grid
from anofpdm.scans.raw.geometry import resample
from anofpdm.scans.raw.register import Head
from anofpdm.segment.many import BatchSegmentation, OutputOptions
from anofpdm.segment.model import load
from tests.dicom_toys import Series
from tests.dicom_toys import head as noise
from tests.scans.raw.worlds import dicom_series, moved_head, random_rigid, thick_grid, tumour_phantom
from tests.scans.test_dicom_out import rebuilt
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
    return load(BUNDLED / "tumour", "cpu")


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
    run = BatchSegmentation(model, request, targets, tmp_path / "out", OutputOptions(dicom=True), True, lines.append)
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


def test_without_raw_a_dicom_study_on_two_grids_is_refused_with_the_remedy(tmp_path):
    for number, name in enumerate(("flair", "t2")):
        series = dicom_series(stripped_head(name), SeriesNumber=number, SeriesDescription=NAMES[name])
        series.save(tmp_path / "anna" / name)
    with pytest.raises(ScanError, match=r"is not on the grid of flair, series 0 .*--raw auto"):
        find_targets([str(tmp_path / "anna")], ("flair", "t2"))
