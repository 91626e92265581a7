"""The TorchScript module of a whole scan computes what `Model.segment` does."""

import io
from dataclasses import replace
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
import torch

from anofpdm.export.whole_scan import WholeScan, compile_whole_scan
from anofpdm.method.detection import CurveDetector
from anofpdm.models.registry import shipped_models
from anofpdm.scans.expects import ScanExpectation
from anofpdm.segment.model import Model, load
from anofpdm.student.student import Student
from tests import toys
from tests.export.export_toys import MAX_GAP, scan_with_lesions
from tests.optional_toys import CHANNELS, make_student

SHAPE = (30, 26, 17)


def students() -> dict[str, Student]:
    """All slices detected and any size kept; some slices by both outputs, and faint lesions lowered; slices counted."""
    student = make_student(bias=None)
    detector = CurveDetector(np.zeros(2), np.ones(2), np.ones(2), offset=0.0, strength=1.0)
    fitted = replace(student.calibration, detector=detector, smallest=60, faint_span=0.5)
    counted = replace(student, expects=ScanExpectation(nominal_slice_mm=4.0))
    return {"all": student, "fitted": replace(student, calibration=fitted), "counted": counted}


def canonical(image: nib.Nifti1Image) -> np.ndarray:
    """Axes towards right, anterior and superior."""
    return np.asarray(nib.as_closest_canonical(image).dataobj, dtype=np.float32)


def run(student: Student, files: dict[str, Path]) -> np.ndarray:
    """[2, X, Y, Z]; channels of modalities that are not there are 0."""
    module = torch.jit.load(io.BytesIO(compile_whole_scan(student)))
    images = {name: nib.Nifti1Image.from_filename(path) for name, path in files.items()}
    volumes = {name: canonical(image) for name, image in images.items()}
    first = next(iter(images))
    stacked = np.stack([volumes.get(name, 0 * volumes[first]) for name in student.config.modalities])
    affine = nib.as_closest_canonical(images[first]).affine
    spacing = torch.from_numpy(np.linalg.norm(affine[:3, :3], axis=0))
    with torch.no_grad():
        return module(torch.from_numpy(stacked)[None], spacing[None])[0].numpy()


def compare(model: Model, files: dict[str, Path], *, differing: float) -> np.ndarray:
    """The mask of `segment`; at most this share of voxels, those at the threshold, may differ."""
    result = model.segment(files, engine="student")
    volumes = (result.anomaly_map, result.mask.astype(np.uint8))
    probability, mask = (canonical(nib.Nifti1Image(volume, result.grid.affine)) for volume in volumes)
    exported = run(model.student, files)
    np.testing.assert_allclose(exported[0], probability, atol=MAX_GAP)
    assert np.ptp(probability) > 0.01
    assert (exported[1] != mask).mean() <= differing
    return mask


@pytest.mark.filterwarnings("ignore::anofpdm.errors.ScanWarning")
@pytest.mark.parametrize(
    ("kind", "codes", "spacing", "given"),
    [
        ("all", "LPS", (5.0, 5.0, 4.0), CHANNELS),
        ("fitted", "PIR", (3.0, 3.5, 5.0), CHANNELS),
        ("fitted", "RAS", (5.0, 5.0, 8.5), ("flair",)),  # slices too far apart to be neighbours
        ("counted", "SRA", (5.0, 5.0, 8.5), CHANNELS),  # the distance between slices does not count
    ],
)
def test_it_agrees_with_segment(kind, codes, spacing, given, tmp_path):
    affine = toys.affine_of(codes, spacing, (4, -3, 6), SHAPE)
    heads = {name: toys.head(SHAPE, seed, affine) for seed, name in enumerate(given)}
    files = {name: toys.save(tmp_path / f"{name}.nii.gz", head, affine) for name, head in heads.items()}
    assert compare(Model(None, students()[kind]), files, differing=1e-3).any()


@pytest.mark.filterwarnings("ignore::anofpdm.errors.ScanWarning")
@pytest.mark.parametrize("name", shipped_models())
def test_every_shipped_model_agrees_with_segment(name, tmp_path):
    model = load(name, "cpu")
    files = scan_with_lesions(tmp_path, model.student.config.modalities)
    assert compare(model, files, differing=1e-5).any()


def test_an_empty_scan_has_no_lesion():
    with torch.no_grad():
        exported = WholeScan(make_student(), torch.nn.Identity())(torch.zeros(1, 3, 8, 9, 10), torch.ones(1, 3))
    assert exported.shape == (1, 2, 8, 9, 10)
    assert not exported.any()
