"""A raw study written as DICOM and segmented from there: its DICOM-SEG, compared with the NIfTI mask.

    python benchmarks/raw_dicom.py MODEL DATA/raw_glioma

The series of the study become DICOM series on the same grids. `anofpdm segment MODEL FOLDER --dicom` writes a mask per
series as NIfTI and as DICOM-SEG. Every segment pixel is put at the position in its own header, and has to lie in a
voxel of the NIfTI mask, and the reverse.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pydicom
from raw import SERIES, series_files

from anofpdm.scans import read_volume
from anofpdm.scans.nifti import Volume

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.dicom_toys import Series  # writes DICOM series

DESCRIPTIONS = {"flair": "AX T2 FLAIR", "t1": "AX T1", "t1ce": "AX T1 +C", "t2": "AX T2 TSE"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        study, out = Path(temporary, "study"), Path(temporary, "out")
        for number, (name, path) in enumerate(series_files(args.folder).items(), start=2):
            write_series(read_volume(path), study / name, SeriesNumber=number, SeriesDescription=DESCRIPTIONS[name])
        words = ["segment", args.model, study, "--out", out, "--dicom", "--device", "cpu"]
        subprocess.run([sys.executable, "-m", "anofpdm", *map(str, words)], check=True)
        print("| series | ml | voxels in NIfTI | in DICOM-SEG | in both |\n|---|---|---|---|---|")
        for name in SERIES:
            if (mask := out / "study" / f"mask_on_{name}.nii.gz").is_file():
                own = mask.with_name(f"mask_seg_on_{name}.dcm")
                print_row(name, mask, own if own.is_file() else mask.with_name("mask_seg.dcm"))


def write_series(volume: Volume, folder: Path, **tags: object) -> None:
    """Columns, rows and slices are the axes of the grid; DICOM counts in LPS+, and its axes are right-handed here."""
    affine, (across, down, step) = np.diag([-1.0, -1.0, 1.0, 1.0]) @ volume.grid.affine, volume.grid.spacing_mm
    voxels = np.round(volume.voxels * (4000 / volume.voxels.max())).astype(np.int16).transpose(2, 1, 0)
    if np.linalg.det(affine[:3, :3]) < 0:  # from the other end
        voxels = voxels[::-1]
        affine = affine @ np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, -1, len(voxels) - 1], [0, 0, 0, 1.0]])
    Series(
        voxels,
        cosines=(affine[:3, :2] / (across, down)).T,
        spacing=(down, across),
        step=step,
        origin=affine[:3, 3],
        **tags,
    ).save(folder)


def print_row(name: str, mask: Path, seg: Path) -> None:
    volume = read_volume(mask, allow_constant=True)
    nifti = {tuple(voxel) for voxel in np.argwhere(volume.voxels > 0).tolist()}
    dicom = {tuple(voxel) for voxel in voxels_of(seg, np.linalg.inv(volume.grid.affine)).tolist()}
    ml = len(nifti) * abs(np.linalg.det(volume.grid.affine[:3, :3])) / 1000
    print(f"| {name} | {ml:.1f} | {len(nifti)} | {len(dicom)} | {len(nifti & dicom)} |")


def voxels_of(path: Path, to_voxels: np.ndarray) -> np.ndarray:
    """[n, 3]: the voxels of a grid in which the segment's pixels lie, by the headers of its frames."""
    seg = pydicom.dcmread(path)
    shared = seg.SharedFunctionalGroupsSequence[0]
    across, down = np.array(shared.PlaneOrientationSequence[0].ImageOrientationPatient, float).reshape(2, 3)
    row_mm, column_mm = (float(mm) for mm in shared.PixelMeasuresSequence[0].PixelSpacing)
    found = []
    frames = seg.pixel_array.reshape(-1, seg.Rows, seg.Columns)
    for pixels, group in zip(frames, seg.PerFrameFunctionalGroupsSequence, strict=True):
        origin = np.array(group.PlanePositionSequence[0].ImagePositionPatient, float)
        rows, columns = np.nonzero(pixels)
        lps = origin + columns[:, None] * column_mm * across + rows[:, None] * row_mm * down
        ras = lps * (-1, -1, 1)
        found.append(np.round(ras @ to_voxels[:3, :3].T + to_voxels[:3, 3]).astype(int))
    return np.concatenate(found)


if __name__ == "__main__":
    main()
