"""`anofpdm segment --seg-nrrd --label-table`."""

import gzip

import nibabel as nib
import numpy as np

from anofpdm.segment import outputs
from tests.commands import run
from tests.optional_toys import save_model, scan_files


def segment(folder, *words) -> str:
    common = ["--out", folder / "out", "--device", "cpu", "--no-report", "--no-pictures", "--raw", "never"]
    scan = [f"flair={folder / 'p_flair.nii.gz'}"]
    return run("segment", folder / "model", *scan, *common, *words).output


def test_files_for_viewers(tmp_path):
    save_model(tmp_path / "model")
    scan_files(tmp_path, modalities=("flair",))
    segment(tmp_path)
    (result,) = (path.parent for path in (tmp_path / "out").rglob(outputs.MASK))
    assert not (result / outputs.SEG_NRRD).exists()
    assert "1 scan segmented" in segment(tmp_path, "--seg-nrrd", "--label-table")
    voxels = gzip.decompress((result / outputs.SEG_NRRD).read_bytes().split(b"\n\n", 1)[1])
    mask = np.asarray(nib.Nifti1Image.from_filename(result / outputs.MASK).dataobj)
    np.testing.assert_array_equal(np.frombuffer(voxels, np.uint8).reshape(mask.shape, order="F"), mask)
    assert (result / outputs.LABEL_TABLE).is_file()
    assert "1 already complete" in segment(tmp_path, "--seg-nrrd", "--label-table")
    (result / outputs.SEG_NRRD).unlink()
    assert "1 scan segmented" in segment(tmp_path, "--seg-nrrd")
