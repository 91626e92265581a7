"""How large a movement between series registration recovers, on real series whose true position is known.

    python benchmarks/movements.py DATA/brats_gli_raw [--repeats 1] [--sizes 0,0 70,60]

The series of a patient lie on one grid. T2 is moved by a random rigid transform of given size, and resampled to thick
slices (1.5 x 1.5 x 5 mm) that do not follow the movement; FLAIR is resampled to 1.2 x 1.2 x 4 mm. A movement counts
as recovered where the mean error inside the brain is at most 1 mm, and as refused where a check of the registration
fails. Without any movement (0 degrees, 0 mm), the error is how far registration moves series as they were published.
"""

import argparse
import warnings
from pathlib import Path

import numpy as np
from scipy import ndimage

from anofpdm.errors import ScanError
from anofpdm.scans import read_volume
from anofpdm.scans.grid import Grid
from anofpdm.scans.raw.checks import check_registration, measure_agreement
from anofpdm.scans.raw.geometry import apply, resample, rigid_matrix
from anofpdm.scans.raw.register import Head, register_rigid

SIZES = ((0.0, 0.0), (5.0, 5.0), (15.0, 20.0), (30.0, 40.0), (45.0, 60.0), (70.0, 60.0))  # degrees, mm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scans", type=Path)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--sizes", type=parse_size, nargs="+", default=SIZES, help="DEGREES,MM; default: all.")
    args = parser.parse_args()
    folders = sorted(path for path in args.scans.iterdir() if path.is_dir())
    names = ", ".join(folder.name for folder in folders)
    print(f"| degrees, mm | cases | recovered to 1 mm | refused | neither | mean error mm | largest | {names} |")
    print("|---|---|---|---|---|---|---|---|")
    for degrees, mm in args.sizes:
        found = [measure(folder, degrees, mm, seed) for folder in folders for seed in range(args.repeats)]
        errors = np.array([error for error, refused in found if not refused])
        refused = len(found) - len(errors)
        good = int((errors <= 1).sum())
        numbers = f"{errors.mean():.2f} | {errors.max():.2f}" if len(errors) else "- | -"
        each = ", ".join("refused" if failed else f"{error:.2f}" for error, failed in found)
        counts = f"{len(found)} | {good} | {refused} | {len(errors) - good}"
        print(f"| {degrees:g}, {mm:g} | {counts} | {numbers} | {each} |", flush=True)


def parse_size(text: str) -> tuple[float, float]:
    degrees, mm = text.split(",")
    return float(degrees), float(mm)


def measure(folder: Path, degrees: float, mm: float, seed: int) -> tuple[float, bool]:
    """Mean error in mm inside the brain, and whether a check refused the registration."""
    rng = np.random.default_rng(seed)
    angles, shift = rng.normal(size=3), rng.normal(size=3)
    flair, t2 = (read_head(next(folder.glob(f"*_{name}.nii.gz"))) for name in ("flair", "t2"))
    centre = flair.centre_mm
    target = centre + mm * shift / np.linalg.norm(shift)
    movement = rigid_matrix(tuple(degrees * angles / np.linalg.norm(angles)), centre, target)
    reference = scanned(flair, np.eye(4), centre, (1.2, 1.2, 4.0))
    series = scanned(t2, movement, target, (1.5, 1.5, 5.0))
    found = register_rigid(reference, series)
    positions = apply(reference.grid.affine, np.argwhere(reference.brain)[::20])
    error = np.linalg.norm(apply(found.matrix, positions) - apply(movement, positions), axis=1).mean()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            agreement = measure_agreement(reference, series.brain, series.grid, found.matrix)
            check_registration(found, agreement, "t2", "flair")
    except ScanError:
        return float(error), True
    return float(error), False


def read_head(path: Path) -> Head:
    volume = read_volume(path)
    brain = ndimage.binary_fill_holes(volume.voxels > 0)
    return Head(volume.voxels.astype(np.float32), np.asarray(brain), volume.grid)


def scanned(head: Head, movement: np.ndarray, centre: np.ndarray, spacing: tuple[float, float, float]) -> Head:
    """After a movement of the patient, on an upright grid around the brain."""
    i, j, k = (int(np.ceil(240 / step)) for step in spacing)
    affine = np.diag([*spacing, 1.0])
    affine[:3, 3] = centre - affine[:3, :3] @ (np.array([i, j, k]) - 1) / 2
    grid = Grid.from_affine((i, j, k), affine)
    back = np.linalg.inv(movement)
    brain = resample(head.brain, head.grid, grid, back) >= 0.5
    return Head(np.where(brain, resample(head.voxels, head.grid, grid, back), 0), brain, grid)


if __name__ == "__main__":
    main()
