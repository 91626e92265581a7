"""Scans whose result would be wrong without a word: refused, or warned about in the summary."""

import nibabel as nib
import numpy as np
import pytest

from anofpdm.choices import PhantomKind
from anofpdm.errors import ScanError, ScanWarning
from anofpdm.phantoms.phantom_cohort import PhantomConfig, make_phantom
from anofpdm.scans import read_volume
from anofpdm.segment.model import load
from tests import toys
from tests.segment.known_model import BY_HEALTHY, known_model, save_dicom, scan_files, segment_all, summary_of

pytestmark = pytest.mark.filterwarnings("ignore::anofpdm.errors.ScanWarning")


def segment(files, **options):
    return known_model().segment(files, **BY_HEALTHY, **options)


def nibabel_voxels(path):
    return np.asarray(nib.Nifti1Image.from_filename(path).dataobj)


def warnings_of(files, **options):
    return segment(files, **options).summary.warnings


@pytest.fixture(scope="module")
def phantom(tmp_path_factory):
    folder = tmp_path_factory.mktemp("phantom")
    drawn = make_phantom(PhantomConfig(PhantomKind.TUMOUR, 1003, size=100, slices=60), 2)
    return {name: toys.save(folder / f"p_{name}.nii.gz", drawn.volumes[name], drawn.affine) for name in ("flair", "t2")}


@pytest.fixture(scope="module")
def phantom_model():
    return load("phantom-tumour", "cpu")


class TestSize:
    @pytest.mark.parametrize(("scale", "words"), [(0.1, "centimetres"), (10.0, "tenths of a millimetre")])
    def test_wrong_units_are_refused_unless_trusted(self, scale, words, tmp_path):
        files, _, _ = scan_files(tmp_path)
        resized(files, 4 * scale)
        with pytest.raises(
            ScanError, match=f"a.* (head|infant) .*sform and pixdim in its header, .*{words}.*--trust-header"
        ):
            segment(files)
        trusted = segment(files, trust_header=True)
        assert trusted.summary.settings["trust_header"] is True
        assert trusted.mask.any()

    @pytest.mark.parametrize("spacing", [(2.0, 2.0, 2.0), (4.0, 4.0, 4.0), (3.0, 3.0, 6.0)])
    def test_plausible_heads_are_not(self, spacing, tmp_path):
        files, _, _ = scan_files(tmp_path)
        assert "trust_header" not in segment(resized(files, spacing)).summary.settings

    def test_dicom_names_its_tags(self, tmp_path):
        voxels = np.zeros((20, 40, 40), np.int16)
        voxels[2:-2, 3:-3, 3:-3] = np.random.default_rng(0).integers(300, 700, (16, 34, 34))
        series = {"AX T2 FLAIR": voxels, "AX T2": voxels + 1}
        save_dicom(tmp_path / "anna", series, spacing=(0.5, 0.5), step=0.5)
        report = segment_all(known_model(), tmp_path / "anna", tmp_path / "out")
        assert "PixelSpacing and ImagePositionPatient" in report.failed["anna"]

    def test_pixdim_and_sform_that_disagree(self, tmp_path):
        image = nib.Nifti1Image(toys.head(), np.diag([4.0, 4.0, 4.0, 1.0]))
        image.set_qform(None, code=0)
        image.set_sform(image.affine, code=1)
        image.header["pixdim"][1:4] = (2.0, 2.0, 2.0)
        nib.save(image, tmp_path / "a.nii")
        with pytest.warns(ScanWarning, match="2 x 2 x 2 mm in pixdim and of 4 x 4 x 4 mm in sform"):
            read_volume(tmp_path / "a.nii")

    def test_a_lesion_of_a_third_of_the_brain(self, tmp_path):
        large, _, _ = scan_files(tmp_path / "large", radius=14.0, centre=(0.0, 0.0, 0.0))
        small, _, _ = scan_files(tmp_path / "small")
        assert any("% of the brain, more than nearly any lesion" in text for text in warnings_of(large))
        assert not any("of the brain" in text for text in warnings_of(small))


def resized(files, spacing):
    """The same voxels with another voxel size."""
    for path in files.values():
        voxels = nibabel_voxels(path)
        toys.save(path, voxels, toys.affine_of("LPS", np.broadcast_to(spacing, 3), shape=voxels.shape))
    return files


class TestContrast:
    def test_an_exchange_takes_the_estimate_away(self, phantom, phantom_model, tmp_path):
        right = phantom_model.segment(phantom)
        assert not any("given as" in text for text in right.summary.warnings)
        assert right.estimated_dice > 0
        files = {name: tmp_path / f"{name}.nii.gz" for name in phantom}
        for name, path in files.items():
            path.write_bytes(phantom[{"flair": "t2", "t2": "flair"}[name]].read_bytes())
        result = phantom_model.segment(files)
        (text,) = [text for text in result.summary.warnings if "given as" in text]
        assert "is given as flair, but its image looks like t2" in text
        assert "DICE" in text
        assert not any("unlike" in text for text in result.summary.warnings)  # of one cause, one warning
        result.save(tmp_path / "out", picture=False, report=False)
        assert summary_of(tmp_path / "out")["estimated_dice"] is None

    def test_a_file_named_as_another_modality(self, tmp_path):
        files, _, _ = scan_files(tmp_path)
        other = files["flair"].rename(tmp_path / "p_t1.nii.gz")
        (text,) = warnings_of({**files, "flair": other})
        assert text.startswith(f"{other}: given as flair, but its name is that of a t1 image")


class TestParts:
    def test_empty_slices(self, tmp_path):
        files, _, _ = scan_files(tmp_path)
        for path in files.values():
            voxels = nibabel_voxels(path).copy()
            voxels[:, :, 10:26:2] = 0
            toys.save(path, voxels, nib.Nifti1Image.from_filename(path).affine)
        (text,) = [text for text in warnings_of(files) if "empty" in text]
        assert "8 of its 34 axial slices inside the head are empty (the first is number 11 in the file)" in text

    @pytest.mark.parametrize(
        ("axes", "kept", "missing"),
        [("LPS", slice(27), True), ("LPI", slice(9, None), True), ("LPS", slice(9, None), False)],
        ids=["top", "top, first in the file", "lower slices, which is usual"],
    )
    def test_missing_slices(self, axes, kept, missing, tmp_path):
        files, _, _ = scan_files(tmp_path, axes=axes)
        texts = warnings_of({name: recut(path, axes, kept) for name, path in files.items()})
        assert any("upper edge" in text and "missing at the top" in text for text in texts) == missing
        assert any("edge" in text for text in texts) == missing


def recut(path, axes, kept):
    voxels = nibabel_voxels(path)[:, :, kept]
    return toys.save(path, voxels, toys.affine_of(axes, (4.0, 4.0, 4.0), shape=voxels.shape))


class TestOneSlice:
    def test_nifti_of_one_slice(self, tmp_path):
        files, lesion, _ = scan_files(tmp_path)
        for flat in (True, False):
            for path in files.values():
                voxels = nibabel_voxels(path).reshape(40, 44, -1)
                plane = voxels[:, :, voxels.shape[2] // 2 + 2 * (voxels.shape[2] > 1)]
                affine = toys.affine_of("LPS", (4.0, 4.0, 6.0), shape=(40, 44, 1))
                toys.save(path, plane if flat else plane[:, :, None], affine)
            result = segment(files)
            result.save(tmp_path / "out")
            mask = nibabel_voxels(tmp_path / "out" / "mask.nii.gz").reshape(40, 44)
            assert toys.dice(mask > 0, lesion[:, :, 20]) > 0.9

    def test_a_sagittal_slice_is_refused(self, tmp_path):
        shape, affine = (1, 40, 40), np.diag([6.0, 4.0, 4.0, 1.0])
        voxels = np.random.default_rng(0).integers(300, 700, shape)
        files = {
            name: toys.save(tmp_path / f"{name}.nii", (voxels + seed).astype(np.int16), affine)
            for seed, name in enumerate(("flair", "t2"))
        }
        with pytest.raises(ScanError, match="a single slice that is not axial"):
            segment(files)
