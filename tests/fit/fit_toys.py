"""A cohort that a fit can be made of in seconds, and a network small enough for it."""

from pathlib import Path

import numpy as np
from typer.testing import CliRunner

from anofpdm.cli.main import app
from tests import toys

NARROW = {"channels": 8, "multipliers": (1, 2), "blocks": 1, "attention": (2,)}
SHAPE = (24, 24, 12)
QUICK = ("--preset", "tiny", "--size", "16", "--workers", "1", "--device", "cpu")
PATIENTS = 10


def lesion(number: int) -> np.ndarray:
    """Odd patients have one, of a size of their own."""
    return toys.ball(toys.affine_of(shape=SHAPE), SHAPE, (2, -2, 0), 2.5 + 0.5 * (number // 2) if number % 2 else -1)


def write_scans(folder: Path, spacing: tuple[float, ...] = toys.SPACING) -> list[str]:
    """FLAIR of ten heads as plain NIfTI; rows of labels for every slice of patients with a lesion."""
    rows = ["subject,slice,label"]
    affine = toys.affine_of(shape=SHAPE, spacing=spacing)
    for number in range(PATIENTS):
        voxels = toys.head(SHAPE, number, affine)
        mask = lesion(number)
        voxels[mask] = 1500
        toys.save(folder / f"p{number}_flair.nii.gz", voxels, affine)
        if not mask.any():
            rows.append(f"p{number},,healthy")
            continue
        rows += [f"p{number},{index},{int(mask[:, :, index].any())}" for index in range(SHAPE[2])]
    return rows


def write_cohort(folder: Path, spacing: tuple[float, ...] = toys.SPACING) -> tuple[Path, Path]:
    """The folder of scans, and the file of labels."""
    rows = write_scans(folder / "scans", spacing)
    (folder / "labels.csv").write_text("\n".join(rows))
    return folder / "scans", folder / "labels.csv"


def fit(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["fit", *map(str, words)])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.output
