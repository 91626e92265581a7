"""A student exported, against `anofpdm segment` on the same files."""

from pathlib import Path

from tests import toys

MAX_GAP = 1e-4  # of probabilities
LESIONS = (((30, 10, 0), 20, 2.2), ((-35, -10, 6), 14, 1.5), ((0, 50, -12), 6, 2.0))  # centre, radius, brightness


def scan_with_lesions(folder: Path, modalities, codes: str = "RAS") -> dict[str, Path]:
    """A head with lesions of several sizes, bright, but dark in T1; array axes along `codes`."""
    shape, spacing = (tuple(flat if code in "SI" else edge for code in codes) for flat, edge in ((12, 48), (6.0, 4.0)))
    affine, files = toys.affine_of(codes, spacing, shape=shape), {}
    for seed, modality in enumerate(modalities):
        head = toys.ball(affine, shape, (0, 0, 0), 80) * (400.0 + toys.head(shape, seed, affine) / 10)
        for centre, radius, factor in LESIONS:
            head[toys.ball(affine, shape, centre, radius)] *= 1 / factor if modality == "t1" else factor
        files[modality] = toys.save(folder / f"p_{modality}.nii.gz", head, affine)
    return files
