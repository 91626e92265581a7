"""Whether a series of another patient is refused, on real series.

    python benchmarks/patients.py DATA/brats_gli_raw [DATA/raw_glioma DATA/raw_ms]

T2 of every patient is registered to FLAIR of every patient, as thick slices (benchmarks/movements.py). Brains of whole
heads are found with deepbet. A pair is refused where a check of the registration fails.
"""

import argparse
import itertools
import warnings
from pathlib import Path

import numpy as np
from movements import scanned

from anofpdm.errors import ScanError, ScanWarning
from anofpdm.scans import read_volume
from anofpdm.scans.raw.checks import check_registration, measure_agreement
from anofpdm.scans.raw.register import Head, register_rigid
from anofpdm.scans.raw.run import BrainFinder

SPACINGS = {"flair": (1.2, 1.2, 4.0), "t2": (1.5, 1.5, 5.0)}
ENDS = {"flair": ("_flair.nii.gz", "_FLAIR.nii.gz"), "t2": ("_t2.nii.gz", "_T2W.nii.gz")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("studies", type=Path, nargs="+", help="Folders of one study, or of folders of studies.")
    args = parser.parse_args()
    folders = [one for path in args.studies for one in (sorted(p for p in path.iterdir() if p.is_dir()) or [path])]
    find_brain = BrainFinder()
    heads = {(folder, name): read_head(folder, name, find_brain) for folder in folders for name in ENDS}
    print("| FLAIR of | T2 of | mutual information | brain masks, DICE | |\n|---|---|---|---|---|")
    for one, other in itertools.product(folders, repeat=2):
        print(f"| {one.name} | {other.name} | {compare(heads[one, 'flair'], heads[other, 't2'])} |", flush=True)


def read_head(folder: Path, name: str, find_brain: BrainFinder) -> Head:
    paths = [path for end in ENDS[name] for path in folder.glob(f"*{end}")]
    (path,) = [path for path in paths if "reference" not in path.name]
    volume = read_volume(path)
    head = Head(volume.voxels.astype(np.float32), find_brain(volume), volume.grid)
    return scanned(head, np.eye(4), head.centre_mm, SPACINGS[name])


def compare(flair: Head, t2: Head) -> str:
    found = register_rigid(flair, t2)
    agreement = measure_agreement(flair, t2.brain, t2.grid, found.matrix)
    with warnings.catch_warnings(record=True) as doubts:
        warnings.simplefilter("always", ScanWarning)
        try:
            check_registration(found, agreement, "T2", "FLAIR")
            outcome = "warned" if doubts else "accepted"
        except ScanError:
            outcome = "refused"
    return f"{found.best_information:.2f} | {agreement.dice:.2f} | {outcome}"


if __name__ == "__main__":
    main()
