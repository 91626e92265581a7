"""What a wrong distance between slices costs: scans with another one in their headers, scored by their masks.

    python benchmarks/slice_distance.py MODEL FILES --split split.csv --distances 2,5.5

FILES: a folder of scans with lesion masks; those of the validation split are used (--part test: of the test split).
"""

import argparse
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from raw_masks import dice

from anofpdm.cohorts.inputs import find_targets
from anofpdm.cohorts.subjects import Subject
from anofpdm.cohorts.tables import read_split
from anofpdm.errors import ScanWarning
from anofpdm.options import Split
from anofpdm.scans import read_volume, write_nifti
from anofpdm.scans.grid import Grid
from anofpdm.segment.model import Model, load


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("files", type=Path)
    parser.add_argument("--split", type=Path, required=True, help="Table with the columns patient and split.")
    parser.add_argument("--part", type=Split, default=Split.VAL)
    parser.add_argument("--distances", default="2,5.5", help="Millimetres between slices.")
    args = parser.parse_args()
    warnings.simplefilter("ignore", ScanWarning)
    model, split = load(args.model, "cpu"), read_split(args.split)
    targets = find_targets([str(args.files)], model.modalities, None, None)
    subjects = [one.subject for one in targets if split.get(one.subject.patient) == args.part]
    print(f"{len(subjects)} scans\n\n| mm between slices | volume DICE, mean | median | worst |\n" + "| --- " * 4 + "|")
    for word in args.distances.split(","):
        scores = [score(model, subject, float(word)) for subject in subjects]
        print(f"| {word} | {np.mean(scores):.3f} | {np.median(scores):.3f} | {min(scores):.3f} |", flush=True)


def score(model: Model, subject: Subject, slice_mm: float) -> float:
    """Volume DICE of the mask of a scan whose headers have this distance."""
    truth = read_volume(subject.masks[0]).voxels > 0
    with tempfile.TemporaryDirectory() as folder:
        return dice(model.segment(stretch(subject.images, slice_mm, Path(folder)), raw="never").mask, truth)


def stretch(images: Mapping[str, Path], slice_mm: float, folder: Path) -> dict[str, Path]:
    """The same voxels, with another distance between slices along the last axis."""
    files = {}
    for name, path in images.items():
        volume = read_volume(path)
        scale = np.diag([1, 1, slice_mm / volume.grid.spacing_mm[2], 1])
        files[name] = folder / f"scan_{name}.nii.gz"
        write_nifti(files[name], volume.voxels, Grid.from_affine(volume.grid.shape, volume.grid.affine @ scale))
    return files


if __name__ == "__main__":
    main()
