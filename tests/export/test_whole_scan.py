"""The TorchScript module of a whole scan computes what `Model.segment` does."""

import io
from dataclasses import replace

import nibabel as nib
import numpy as np
import pytest
import torch
from anofpdm.student.faint import lower_thresholds
from anofpdm.student.linked import drop_unlinked

from anofpdm.export.whole_scan import WholeScan, compile_whole_scan
from anofpdm.method.context import SlicePositions
from anofpdm.method.detection import CurveDetector
from anofpdm.method.mask import drop_small_components
from anofpdm.scans.expects import ScanExpectation
from anofpdm.segment.model import Model
from anofpdm.student.student import DetectBy, Student
from tests import toys
from tests.export.export_toys import MAX_GAP, canonical, ours
from tests.optional_toys import CHANNELS, make_student

SHAPE = (30, 26, 17)


def detector(kind: DetectBy) -> CurveDetector:
    return CurveDetector(np.zeros(kind.numbers), np.ones(kind.numbers), np.ones(kind.numbers), offset=0.0, strength=1.0)


def students() -> dict[str, Student]:
    """All slices detected and any size kept; some slices by their own output; some by their pixels; some by both, and
    faint lesions lowered."""
    student = make_student(bias=None)
    calibration = replace(student.calibration, smallest=60)
    by = {kind: replace(calibration, detect_by=kind, detector=detector(kind)) for kind in DetectBy}
    by[DetectBy.BOTH] = replace(by[DetectBy.BOTH], faint_span=0.5)
    counted = replace(student, expects=ScanExpectation(nominal_slice_mm=4.0))
    found = {str(kind): replace(student, calibration=one) for kind, one in by.items()}
    return {"all": student, "counted": counted, **found}


def run(student: Student, images: dict[str, nib.Nifti1Image]) -> np.ndarray:
    """[2, X, Y, Z]; channels of modalities that are not there are 0."""
    module = torch.jit.load(io.BytesIO(compile_whole_scan(student)))
    volumes = {name: canonical(image) for name, image in images.items()}
    empty = np.zeros_like(volumes["flair"])
    stacked = np.stack([volumes.get(name, empty) for name in student.config.modalities])
    affine = nib.as_closest_canonical(images["flair"]).affine
    spacing = torch.from_numpy(np.linalg.norm(affine[:3, :3], axis=0))
    with torch.no_grad():
        return module(torch.from_numpy(stacked)[None], spacing[None])[0].numpy()


@pytest.mark.filterwarnings("ignore::anofpdm.errors.ScanWarning")
@pytest.mark.parametrize(
    ("kind", "codes", "spacing", "given"),
    [
        ("all", "LPS", (5.0, 5.0, 4.0), CHANNELS),
        ("slice", "PIR", (3.0, 3.5, 5.0), CHANNELS),
        ("pixels", "SRA", (2.5, 5.0, 5.0), CHANNELS),
        ("both", "RAS", (5.0, 5.0, 4.0), CHANNELS),
        ("slice", "RAS", (5.0, 5.0, 8.5), ("flair",)),  # slices too far apart to be neighbours
        ("counted", "RAS", (5.0, 5.0, 8.5), CHANNELS),  # the distance between slices does not count
    ],
)
def test_it_agrees_with_segment(kind, codes, spacing, given, tmp_path):
    student = students()[kind]
    affine = toys.affine_of(codes, spacing, (4, -3, 6), SHAPE)
    heads = {name: toys.head(SHAPE, seed, affine) for seed, name in enumerate(given)}
    files = {name: toys.save(tmp_path / f"{name}.nii.gz", head, affine) for name, head in heads.items()}
    result = Model(None, student).segment(files)
    probability, mask = ours(result)
    found = run(student, {name: nib.Nifti1Image.from_filename(path) for name, path in files.items()})
    np.testing.assert_allclose(found[0], probability, atol=MAX_GAP)
    assert np.ptp(probability) > 0.01
    assert (found[1] != mask).mean() < 1e-3  # voxels at the threshold
    assert mask.any()


def test_an_empty_scan_has_no_lesion():
    student = make_student(bias=None)
    with torch.no_grad():
        found = WholeScan(student, torch.nn.Identity())(torch.zeros(1, 3, 8, 9, 10), torch.ones(1, 3))
    assert found.shape == (1, 2, 8, 9, 10)
    assert not found.any()


def test_faint_lesions_are_lowered_as_by_the_student():
    module = WholeScan(students()["both"], torch.nn.Identity())
    logits = np.random.default_rng(0).normal(-4, 2, (6, 32, 32)).astype(np.float32)
    expected = lower_thresholds(logits, SlicePositions(np.zeros(6), np.arange(6.0)), 0.5)
    np.testing.assert_array_equal(module.lower_thresholds(torch.from_numpy(logits)).numpy(), expected)
    assert expected.any()


def test_components_are_those_of_scipy_and_linked_as_the_students():
    student = students()["slice"]
    module = WholeScan(student, torch.nn.Identity())
    images = np.random.default_rng(0).random((6, 32, 32)) < np.linspace(0.2, 0.5, 6)[:, None, None]
    heights = np.array([4.0, 2.0, 8.0, 0.0, 6.0, 10.0])
    expected, has_large = drop_unlinked(images, module.smallest, SlicePositions(np.zeros(6), heights))
    kept, large = module.drop_unlinked(torch.from_numpy(images), torch.from_numpy(heights))
    np.testing.assert_array_equal(kept.numpy(), expected)
    np.testing.assert_array_equal(large.numpy(), has_large)
    alone = np.stack([drop_small_components(image, module.smallest) for image in images])
    _, sizes = module.label_components(torch.from_numpy(images))
    np.testing.assert_array_equal(images & (sizes.numpy() > module.smallest), alone)
    assert alone.sum() < expected.sum() < images.sum()
