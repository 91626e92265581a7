"""Fit of the distributions by which the contrast of series is told from their images.

    python benchmarks/contrast.py DATA --tools TOOLS --fit src/anofpdm/raw/contrast.json

DATA holds packs of slices (brats_gli_128, arc_t1_128), TOOLS the program that reads the packs (unpack.py). The fit uses
every second (arc_t1_128: eighth) training patient, and phantoms, each as it is and with slices three times as thick.
"""

import argparse
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from scipy import ndimage

from anofpdm.choices import PhantomKind
from anofpdm.phantoms.phantom_cohort import PhantomConfig, make_phantom
from anofpdm.raw.contrast import CONTRASTS, measure_contrast
from anofpdm.raw.register import Head
from anofpdm.scans.grid import Grid

PACKS = {"brats_gli_128": (240, 2), "arc_t1_128": (192, 8)}  # field of view in mm; training patients: one of so many
N_PHANTOMS = 3
THICK = 3  # slices
SHARED = 0.4  # of the covariance of each contrast: the mean of all, so that few scans suffice

Sample = tuple[str, np.ndarray]  # contrast, measured [11]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--tools", type=Path, required=True)
    parser.add_argument("--fit", type=Path, required=True, help="File for the distributions.")
    args = parser.parse_args()
    sys.path.insert(0, str(args.tools))
    fit(args.fit, [*packs(args.data), *phantoms()])


def packs(data: Path) -> Iterator[Sample]:
    """Every second training patient of one pack, every eighth of the other."""
    unpack = importlib.import_module("unpack")
    for name, (field_of_view, every) in PACKS.items():
        pack = unpack.load(data / name)
        affine = np.diag([-field_of_view / 128, -field_of_view / 128, 2.0, 1.0])
        for patient in np.unique(pack.patients[pack.split == "train"])[::every]:
            rows = np.flatnonzero(pack.patients == patient)
            rows = rows[np.argsort(pack.z[rows])]
            for channel, contrast in enumerate(pack.modalities):
                voxels = pack.images[rows, channel].transpose(2, 1, 0).astype(np.float32)
                foreground = ndimage.binary_opening(voxels > 0.06 * voxels.max())  # without traces of compression
                head = Head(voxels, ndimage.binary_fill_holes(foreground), Grid.from_affine(voxels.shape, affine))
                yield from measure(contrast, head)


def phantoms() -> Iterator[Sample]:
    for seed in range(N_PHANTOMS):
        phantom = make_phantom(PhantomConfig(PhantomKind.TUMOUR, 1000 + seed, size=120, slices=75), seed)
        grid = Grid.from_affine(phantom.mask.shape, phantom.affine)
        for contrast in CONTRASTS:
            voxels = phantom.volumes[contrast].astype(np.float32)
            head = Head(voxels, ndimage.binary_fill_holes(voxels > 0), grid)
            yield from measure(contrast, head)


def measure(contrast: str, head: Head) -> Iterator[Sample]:
    """As it is, and with thick slices."""
    yield contrast, measure_contrast(head)
    yield contrast, measure_contrast(thicken(head))


def thicken(head: Head) -> Head:
    i, j, k = head.grid.shape
    grid = Grid.from_affine((i, j, k // THICK), head.grid.affine @ np.diag([1, 1, THICK, 1.0]))
    voxels, brain = (
        array[:, :, : k // THICK * THICK].reshape(i, j, -1, THICK).mean(axis=3) for array in (head.voxels, head.brain)
    )
    return Head(voxels, brain >= 0.5, grid)


def fit(path: Path, samples: list[Sample]) -> None:
    groups = {name: np.array([measured for contrast, measured in samples if contrast == name]) for name in CONTRASTS}
    own = {name: np.cov(group.T) for name, group in groups.items()}
    shared = np.mean(list(own.values()), axis=0)
    numbers = {}
    for name, group in groups.items():
        covariance = (1 - SHARED) * own[name] + SHARED * shared
        numbers[name] = {"mean": group.mean(axis=0).round(4).tolist(), "covariance": covariance.round(6).tolist()}
    path.write_text(json.dumps(numbers) + "\n")


if __name__ == "__main__":
    main()
