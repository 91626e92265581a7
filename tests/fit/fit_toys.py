"""A cohort that a fit can be made of in seconds."""

from pathlib import Path

import numpy as np

from tests import toys
from tests.commands import run

SHAPE = (24, 24, 12)
PATIENTS = 10


def lesion(number: int) -> np.ndarray:
    """Odd patients have one, of a size of their own."""
    return toys.ball(toys.affine_of(shape=SHAPE), SHAPE, (2, -2, 0), 2.5 + 0.5 * (number // 2) if number % 2 else -1)


def write_cohort(folder: Path) -> tuple[Path, Path]:
    """FLAIR of ten heads as plain NIfTI; labels of every slice where there is a lesion, else of the scan."""
    rows = ["subject,slice,label"]
    for number in range(PATIENTS):
        voxels, mask = toys.head(SHAPE, number), lesion(number)
        voxels[mask] = 1500
        toys.save(folder / "scans" / f"p{number}_flair.nii.gz", voxels)
        slices = [f"p{number},{index},{int(mask[:, :, index].any())}" for index in range(SHAPE[2])]
        rows += slices if mask.any() else [f"p{number},,healthy"]
    (folder / "labels.csv").write_text("\n".join(rows))
    return folder / "scans", folder / "labels.csv"


def fit(*words: object, code: int = 0) -> str:
    quick = ("--preset", "tiny", "--size", "16", "--workers", "1", "--device", "cpu")
    return run("fit", *quick, *words, code=code).output
