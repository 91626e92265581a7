"""Masks of thick slices: as they are, divided by linear interpolation, and divided and restored (scans/raw/thick.py).

    python benchmarks/thick_slices.py MODEL FILES --split split.csv [--count 8] [--mm 1]

Every needed or optional series of a registered, stripped validation scan is sampled on a tilted grid of its own with
slices of 3 to 5 mm. Registration is perfect. DICE of the mask to that of the scan as it was; and of both to the
reference mask. A model in template space sees the series where the scan was: there is no "as they are". --mm: scans of
other voxels (the packs have 1.5 to 2 mm) are resampled first, by cubic splines.
"""

import argparse
import sys
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from raw_disturbed import Disturbance, draw_disturbance, read_heads, scan_head
from raw_masks import dice
from scipy import ndimage

from anofpdm.cohorts.inputs import find_targets
from anofpdm.cohorts.subjects import Subject
from anofpdm.cohorts.tables import read_split
from anofpdm.errors import ScanWarning
from anofpdm.options import Split
from anofpdm.scans import read_volume, write_nifti
from anofpdm.scans.grid import Grid
from anofpdm.scans.raw.geometry import apply, resample
from anofpdm.scans.raw.register import Head
from anofpdm.scans.raw.thick import divide_slices, resample_series
from anofpdm.segment.model import Model, load
from anofpdm.segment.raw_input import study_options

DEGREES, MM = 30.0, 40.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("files", type=Path)
    parser.add_argument("--split", type=Path, required=True, help="Table with the columns patient and split.")
    parser.add_argument("--count", type=int, default=8, help="Scans.")
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("--mm", type=float, help="Edges of voxels; default: as they are.")
    args = parser.parse_args()
    warnings.simplefilter("ignore", ScanWarning)
    model, split, rng = load(args.model, "cpu"), read_split(args.split), np.random.default_rng(args.seed)
    targets = find_targets([str(args.files)], model.request().modalities, None, None)
    part = [split.get(one.subject.patient, split.get(one.subject.name)) for one in targets]  # or by scan
    subjects = [one.subject for one, split in zip(targets, part, strict=True) if split == Split.VAL][: args.count]
    if not subjects:
        sys.exit(f"{args.split}: no scan of {args.files} is in its validation split")
    with tempfile.TemporaryDirectory() as folder:
        if args.mm:
            subjects = [with_voxels(subject, args.mm, Path(folder)) for subject in subjects]
        scores = [compare(model, subject, rng) for subject in subjects]
    print(f"\n| {len(scores)} scans | DICE to undisturbed: mean | median | worst | to the reference mask, mean |")
    print("| --- " * 5 + "|")
    for name in scores[0]:
        same, truth = np.array([one[name] for one in scores]).T
        print(f"| {name} | {same.mean():.3f} | {np.median(same):.3f} | {same.min():.3f} | {truth.mean():.3f} |")


def with_voxels(subject: Subject, mm: float, folder: Path) -> Subject:
    """The same scan with cubic voxels, in files of the folder; its mask with voxels of which half is lesion."""
    images = {name: folder / f"{subject.name}_{name}.nii.gz" for name in subject.images}
    for name, path in images.items():
        volume = read_volume(subject.images[name])
        brain, grid = zoom(volume.voxels > 0, volume.grid, mm, 1)
        voxels = np.where(brain >= 0.5, np.clip(zoom(volume.voxels, volume.grid, mm, 3)[0], 1, None), 0)
        write_nifti(path, np.round(voxels).astype(np.int16), grid)
    truth = read_volume(subject.masks[0])
    mask, grid = zoom(truth.voxels > 0, truth.grid, mm, 1)
    write_nifti(folder / f"{subject.name}_mask.nii.gz", (mask >= 0.5).astype(np.uint8), grid)
    return replace(subject, images=images, masks=(folder / f"{subject.name}_mask.nii.gz",))


def zoom(voxels: np.ndarray, grid: Grid, mm: float, order: int) -> tuple[np.ndarray, Grid]:
    scale = mm / grid.spacing_mm  # of the new voxels, in old ones
    shape = tuple(int(n) for n in np.floor(np.array(grid.shape) / scale))
    affine = grid.affine @ np.diag([*scale, 1.0])
    affine[:3, 3] = apply(grid.affine, (scale - 1) / 2)
    found = ndimage.affine_transform(voxels.astype(np.float32), np.diag(scale), (scale - 1) / 2, shape, order=order)
    return found, Grid.from_affine((shape[0], shape[1], shape[2]), affine)


def compare(model: Model, subject: Subject, rng: np.random.Generator) -> dict[str, tuple[float, float]]:
    """By variant: DICE to the undisturbed mask, and to the reference mask."""
    names = [name for name in model.request().modalities if name in subject.images]
    heads = read_heads({name: subject.images[name] for name in names})
    disturbance = draw_disturbance(names, heads[names[0]].centre_mm, rng, DEGREES, MM)
    grid, there = disturbance.grids[names[0]], np.linalg.inv(disturbance.movements[names[0]])
    before = model.segment({name: subject.images[name] for name in names}, raw="never")
    truth = read_volume(subject.masks[0]).voxels > 0
    same, true = (resample(mask, before.grid, grid, there) >= 0.5 for mask in (before.mask, truth))
    found = {"undisturbed": same}
    for name, (onto, restored) in working_grids(model, heads[names[0]].grid, grid).items():
        found[name] = segment_thick(model, heads, disturbance, onto, restored)
    print(subject.name, *(f"{name} {dice(mask, same):.3f}" for name, mask in found.items()), sep=", ", flush=True)
    return {name: (dice(mask, same), dice(mask, true)) for name, mask in found.items()}


def working_grids(model: Model, scan: Grid, thick: Grid) -> dict[str, tuple[Grid, bool]]:
    """By variant: the grid that the model sees, and whether series are restored on it."""
    if model.expects.template is not None:
        return {"linear": (scan, False), "restored": (scan, True)}
    divided = divide_slices(thick, study_options(model.request(), model.expects).slice_mm or np.inf)
    return {"as they are": (thick, False), "divided": (divided, False), "divided and restored": (divided, True)}


def segment_thick(
    model: Model, heads: Mapping[str, Head], disturbance: Disturbance, onto: Grid, restored: bool
) -> np.ndarray:
    """The mask on the grid of the first series."""
    first = next(iter(heads))
    template = model.expects.template is not None
    start = disturbance.movements[first] if template else np.eye(4)  # from the working grid to the first series
    with tempfile.TemporaryDirectory() as folder:
        files = {}
        for name, head in heads.items():
            thick = scan_head(head, disturbance.grids[name], disturbance.movements[name])
            matrix = disturbance.true_matrix(first, name) @ start
            sampled = resample_series if restored else resample_linearly
            files[name] = Path(folder, f"scan_{name}.nii.gz")
            write_nifti(files[name], np.round(sampled(thick, onto, matrix)).astype(np.int16), onto)
        result = model.segment(files, raw="never")
    mask = resample(result.mask, result.grid, disturbance.grids[first], np.linalg.inv(start))
    return np.asarray(mask >= 0.5)


def resample_linearly(series: Head, onto: Grid, matrix: np.ndarray) -> np.ndarray:
    return resample(series.voxels, series.grid, onto, matrix)


if __name__ == "__main__":
    main()
