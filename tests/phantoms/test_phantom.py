"""Phantoms: reproducible bytes, correct layouts and geometry, lesions that are neither trivial nor invisible."""

import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pytest
from scipy import ndimage

from anofpdm.choices import PhantomKind
from anofpdm.errors import AnoFPDMError, CohortError
from anofpdm.phantoms.atlas import load_atlas
from anofpdm.phantoms.phantom_cohort import Phantom, PhantomConfig, make_phantom, write_phantoms

SMALL: dict[str, Any] = {"size": 32, "slices": 12}
PATIENTS = 8
THICK = 30  # slices of 5 mm: half the time, and the same anatomy


def make_patients(kind: PhantomKind) -> list[Phantom]:
    return [make_phantom(PhantomConfig(kind, 0, slices=THICK), number) for number in range(PATIENTS)]


@pytest.fixture(scope="module")
def tumours() -> list[Phantom]:
    return make_patients(PhantomKind.TUMOUR)


@pytest.fixture(scope="module")
def strokes() -> list[Phantom]:
    return make_patients(PhantomKind.STROKE)


def digests(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock"]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def normalised(volume: np.ndarray) -> np.ndarray:
    return np.clip(volume / np.percentile(volume[volume > 0], 99), 0, 1)


def with_brain(volume: np.ndarray) -> np.ndarray:
    """bool [z]: the slices that preparation would keep."""
    return (volume > 0).mean((0, 1)) >= 0.025


def best_threshold_dice(patients: list[Phantom], modality: str, *, bright: bool) -> float:
    """Mean DICE over unhealthy slices at the best common threshold, chosen with the masks."""
    scores = []
    for patient in patients:
        scan, mask = normalised(patient.volumes[modality]), patient.mask > 0
        for k in np.flatnonzero(mask.any((0, 1)) & with_brain(scan)):
            image, truth = scan[:, :, k], mask[:, :, k]
            cuts = np.linspace(0.02, 0.98, 49)[:, None, None]
            predicted = image > cuts if bright else (image < cuts) & (image > 0)
            scores.append(2 * (predicted & truth).sum((1, 2)) / (predicted.sum((1, 2)) + truth.sum()))
    return float(np.mean(scores, axis=0).max())


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    """Two small patients of each kind."""
    folder = tmp_path_factory.mktemp("written")
    for kind in PhantomKind:
        workers = 2 if kind is PhantomKind.STROKE else 1  # which take long to start
        write_phantoms(folder / kind, kind, 2, 5, workers=workers, **SMALL)
    return folder


@pytest.mark.parametrize("kind", PhantomKind)
def test_equal_seeds_give_equal_bytes_and_other_patients_differ(kind, written, tmp_path):
    write_phantoms(tmp_path, kind, 1, 5, **SMALL)
    assert digests(tmp_path).items() < digests(written / kind).items()
    first, second, other_seed = (
        make_phantom(PhantomConfig(kind, seed, **SMALL), number).volumes["t1"]
        for seed, number in ((5, 0), (5, 1), (6, 0))
    )
    assert not np.array_equal(first, other_seed)
    assert not np.array_equal(first, second)


def test_layouts_are_those_of_brats_and_atlas(written):
    tumour = "PhantomTumour_0005_00000"
    stroke = "Training/R001/sub-phantom0005s00000/ses-1/anat/sub-phantom0005s00000_ses-1_space-MNI152NLin2009aSym"
    names = {
        "tumour": [f"{tumour}/{tumour}_{part}" for part in ("flair", "t1", "t1ce", "t2", "seg")],
        "stroke": [f"{stroke}_T1w", f"{stroke}_label-L_desc-T1lesion_mask"],
    }
    for kind, stems in names.items():
        files = {name for name in digests(written / kind) if "00001" not in name}
        assert files == {"phantom.json", *(f"{stem}.nii.gz" for stem in stems)}
    for path in written.rglob("*.nii.gz"):
        header = nib.Nifti1Image.from_filename(path).header
        assert (int(header["qform_code"]), int(header["sform_code"])) in {(1, 1), (2, 2)}
        assert header.get_xyzt_units()[0] == "mm"
        is_mask = "seg" in path.name or "mask" in path.name
        assert header.get_data_dtype() == (np.uint8 if is_mask else np.int16)


def test_types_grid_and_empty_background(tumours, strokes):
    for patient, codes, labels in ((tumours[0], "LPS", {1, 2, 4}), (strokes[0], "RAS", {1})):
        assert nib.aff2axcodes(patient.affine) == tuple(codes)
        np.testing.assert_allclose(nib.affines.voxel_sizes(patient.affine), (1.875, 1.875, 5.0))
        np.testing.assert_allclose(patient.affine @ (63.5, 63.5, (THICK - 1) / 2, 1), (0, -17, 6, 1))
        assert set(np.unique(patient.mask)) == {0} | labels
        for volume in patient.volumes.values():
            assert volume.shape == patient.mask.shape == (128, 128, THICK)
            assert (volume.dtype, patient.mask.dtype, volume.min()) == (np.int16, np.uint8, 0)
            assert (volume == 0).mean() > 0.7
            assert not (patient.mask > 0)[volume == 0].any()


def test_anatomy_has_the_right_orientation(tumours, strokes):
    """The cerebellum is inferior and posterior, the vertex narrow, the head near the MNI origin."""
    for patient in (*tumours[:3], *strokes[:3]):
        x, y, z = nib.affines.apply_affine(patient.affine, np.argwhere(patient.volumes["t1"] > 0)).T
        assert abs(x.mean()) < 6
        assert abs(y.mean() + 18) < 10
        assert abs(z.mean() - 8) < 10
        assert np.median(y[z < -45]) < -30
        assert np.ptp(x[z > 65]) < 0.8 * np.ptp(x[np.abs(z) < 20])


def test_a_quarter_is_healthy_and_so_are_about_half_of_the_slices(tumours, strokes):
    for patients in (tumours, strokes):
        assert sum(not patient.mask.any() for patient in patients) == PATIENTS // 4
        kept = [with_brain(patient.volumes["t1"]) for patient in patients]
        sick = [patient.mask.any((0, 1)) & keep for patient, keep in zip(patients, kept, strict=True)]
        healthy = 1 - np.concatenate(sick).sum() / np.concatenate(kept).sum()
        assert 0.4 < healthy < 0.7


def test_a_threshold_is_not_sufficient(tumours, strokes):
    assert 0.3 < best_threshold_dice(tumours, "flair", bright=True) <= 0.65
    assert 0.05 < best_threshold_dice(strokes, "t1", bright=False) <= 0.25


def test_few_lesion_slices_are_tiny(tumours, strokes):
    for patients in (tumours, strokes):
        areas = np.concatenate([(patient.mask > 0).sum((0, 1)) for patient in patients])
        assert np.percentile(areas[areas > 0], 5) > 25  # pixels of 1.875 mm


def test_tumours_are_bright_on_flair_and_their_rim_takes_up_contrast(tumours):
    for patient in tumours:
        normal = patient.mask == 0
        level = {name: np.median(scan[normal & (scan > 0)]) for name, scan in patient.volumes.items()}
        if patient.mask.any():
            assert patient.volumes["flair"][patient.mask == 2].mean() > 1.15 * level["flair"]
        rim = patient.mask == 4
        if rim.sum() > 20:
            t1, t1ce = (patient.volumes[name][rim].mean() / level[name] for name in ("t1", "t1ce"))
            assert t1ce > 1.3 * t1


def test_strokes_are_darker_than_the_white_matter_around_them(strokes):
    for patient in strokes:
        lesion, scan = patient.mask > 0, patient.volumes["t1"]
        around = ndimage.binary_dilation(lesion, iterations=4) & ~lesion
        white = around & (scan > np.median(scan[scan > 0]))
        assert not lesion.any() or scan[lesion].mean() < 0.9 * scan[white].mean()


def test_resuming_skips_complete_patients_and_replaces_others(written, tmp_path):
    reports, out = [], tmp_path / "out"
    shutil.copytree(written / "stroke", out)
    complete, partial = (sorted(folder.rglob("*.nii.gz")) for folder in sorted(out.glob("Training/R001/*")))
    times = [path.stat().st_mtime_ns for path in complete]
    partial[1].unlink()
    (partial[0].parent / ".half a file.tmp").touch()
    write_phantoms(out, "stroke", 2, 5, **SMALL, on_progress=lambda *report: reports.append(report[1:]))
    assert reports == [(1, 2), (2, 2)]
    assert times == [path.stat().st_mtime_ns for path in complete]
    assert digests(out) == digests(written / "stroke")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"kind": "stroke"}, "kind tumour, not stroke.*another folder"),
        ({"size": 16}, "size 32, not 16"),
        ({"patients": 0}, "use at least 1"),
        ({"kind": "cat"}, "cat"),
        ({"size": 15}, "size 15"),
        ({"slices": 1}, "1 slices"),
        ({"seed": -1}, "use 0 or more"),
    ],
)
def test_other_phantoms_and_invalid_settings_are_refused(tmp_path, change, match):
    record = {"kind": "tumour", "seed": 0, **SMALL, "generator": 1}
    (tmp_path / "phantom.json").write_text(json.dumps(record))
    with pytest.raises(AnoFPDMError, match=match):
        write_phantoms(tmp_path, **{"kind": "tumour", "patients": 1, "seed": 0, **SMALL, **change})


def test_a_damaged_record_is_refused(tmp_path):
    (tmp_path / "phantom.json").write_text('{"kind": "tumour", "seed": "a"}')
    with pytest.raises(CohortError, match=r"Expected `int`, got `str` - at `\$.seed`\); delete"):
        write_phantoms(tmp_path, "tumour", 1, 0, **SMALL)


def test_missing_nilearn_is_reported_with_a_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "nilearn", None)
    with pytest.raises(CohortError, match=r"pip install 'anofpdm\[demo\]'"):
        load_atlas.__wrapped__()
