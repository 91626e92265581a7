"""How well the contrast of series is told from their images: confusion tables, and the fit.

    python benchmarks/contrast.py DATA --tools TOOLS [--split val|test|none] [--raw]
    python benchmarks/contrast.py DATA --tools TOOLS --names
    python benchmarks/contrast.py DATA --tools TOOLS --fit src/anofpdm/raw/contrast.json

DATA holds packs of slices (brats_gli_128, arc_t1_128) and raw scans (brats_gli_raw, raw_glioma, raw_ms, arc_raw),
TOOLS the program that reads the packs (unpack.py). The fit uses every second (arc_t1_128: eighth) training patient, and
phantoms, each as it is and with slices three times as thick. The tables are of the patients of another split, of other
phantoms and, with --raw, of the raw scans (whose BraTS and ARC patients are test patients of the packs). Brains of
whole heads are found with deepbet. --names: how often right names of the glioma cohort (all splits) are contradicted,
and wrong ones reported.
"""

import argparse
import importlib
import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import ndimage

from anofpdm.choices import PhantomKind
from anofpdm.phantoms.phantom_cohort import PhantomConfig, make_phantom
from anofpdm.raw.brain import BrainFinder
from anofpdm.raw.contrast import (
    CONTRASTS,
    SURE,
    assign_series,
    compare_contrasts,
    measure_contrast,
    measure_stripped,
)
from anofpdm.raw.mixed_up import find_mixed_up
from anofpdm.raw.register import Head
from anofpdm.scans import read_volume
from anofpdm.scans.grid import Grid

PACKS = {"brats_gli_128": (240, 2), "arc_t1_128": (192, 8)}  # field of view in mm; training patients: one of so many
THICK = 3  # slices
SHARED = 0.4  # of the covariance of each contrast: the mean of all, so that few scans suffice
RAW = {
    "brats_gli_raw": {"_flair.": "flair", "_t1.": "t1", "_t1ce.": "t1ce", "_t2.": "t2"},
    "raw_glioma": {"6692_flair.": "flair", "6692_t1.": "t1", "6692_t1ce.": "t1ce", "6692_t2.": "t2"},
    "raw_ms": {"FLAIR.nii": "flair", "T1W.nii": "t1", "T2W.nii": "t2"},
    "arc_raw": {"_T1w.": "t1"},
}
PAIR = ("flair", "t2")
CASES = (  # series that are given, modalities that the model needs
    *((series, series) for series in (PAIR, ("flair", "t1"), ("t1", "t1ce"), ("flair", "t1", "t2"), CONTRASTS)),
    (CONTRASTS, PAIR), (("t1", "t2"), PAIR), (("t1ce", "t2"), PAIR), (("flair", "t1"), PAIR), (("t1", "t1ce"), PAIR),
)  # fmt: skip

NAMED = (  # as what series are given, and what they are
    *((given, given) for given in (("flair",), ("t1",), ("t1ce",), ("t2",), PAIR, CONTRASTS)),
    (("flair",), ("t1",)), (("flair",), ("t1ce",)), (("flair",), ("t2",)), (PAIR, ("t2", "flair")),
    (PAIR, ("t1", "t2")), (CONTRASTS, ("t2", "t1", "t1ce", "flair")), (CONTRASTS, ("t1", "flair", "t1ce", "t2")),
)  # fmt: skip


@dataclass(frozen=True)
class Sample:
    source: str
    patient: str
    contrast: str
    measured: np.ndarray  # [11]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--tools", type=Path, required=True)
    parser.add_argument("--split", choices=("val", "test", "none"), default="val", help="none: no packs, no phantoms.")
    parser.add_argument("--raw", action="store_true", help="Also the raw scans.")
    parser.add_argument("--fit", type=Path, help="Fit the distributions and write them to this file, no table.")
    parser.add_argument("--names", action="store_true", help="Check the names of series, no other table.")
    args = parser.parse_args()
    sys.path.insert(0, str(args.tools))
    if args.names:
        print_names(args.data / "brats_gli_128")
        return
    if args.fit:
        fit(args.fit, [*packs(args.data, "train"), *phantoms(range(3))])
        return
    samples = [] if args.split == "none" else [*packs(args.data, args.split), *phantoms(range(100, 106))]
    samples += raw_scans(args.data) if args.raw else ()
    print_alone(samples)
    print_together(samples)


def packs(data: Path, split: str) -> Iterator[Sample]:
    unpack = importlib.import_module("unpack")
    for name, (field_of_view, every) in PACKS.items():
        pack = unpack.load(data / name)
        affine = np.diag([-field_of_view / 128, -field_of_view / 128, 2.0, 1.0])
        for patient in np.unique(pack.patients[pack.split == split])[:: every if split == "train" else 1]:
            rows = np.flatnonzero(pack.patients == patient)
            rows = rows[np.argsort(pack.z[rows])]
            for channel, contrast in enumerate(pack.modalities):
                voxels = pack.images[rows, channel].transpose(2, 1, 0).astype(np.float32)
                foreground = ndimage.binary_opening(voxels > 0.06 * voxels.max())  # without traces of compression
                head = Head(voxels, ndimage.binary_fill_holes(foreground), Grid.from_affine(voxels.shape, affine))
                yield from measure(name, patient, contrast, head)


def phantoms(seeds: range) -> Iterator[Sample]:
    for seed in seeds:
        phantom = make_phantom(PhantomConfig(PhantomKind.TUMOUR, 1000 + seed, size=120, slices=75), seed)
        grid = Grid.from_affine(phantom.mask.shape, phantom.affine)
        for contrast in CONTRASTS:
            voxels = phantom.volumes[contrast].astype(np.float32)
            head = Head(voxels, ndimage.binary_fill_holes(voxels > 0), grid)
            yield from measure("phantoms", str(seed), contrast, head)


def measure(source: str, patient: str, contrast: str, head: Head) -> Iterator[Sample]:
    yield Sample(source, patient, contrast, measure_contrast(head))
    yield Sample(f"{source}, thick slices", patient, contrast, measure_contrast(thicken(head)))


def thicken(head: Head) -> Head:
    i, j, k = head.grid.shape
    grid = Grid.from_affine((i, j, k // THICK), head.grid.affine @ np.diag([1, 1, THICK, 1.0]))
    voxels, brain = (
        array[:, :, : k // THICK * THICK].reshape(i, j, -1, THICK).mean(axis=3) for array in (head.voxels, head.brain)
    )
    return Head(voxels, brain >= 0.5, grid)


def raw_scans(data: Path) -> Iterator[Sample]:
    find_brain = BrainFinder()
    for name, contrasts in RAW.items():
        for path in sorted((data / name).rglob("*.nii.gz")):
            for pattern, contrast in contrasts.items():
                if pattern in path.name and "reference" not in path.name:
                    volume = read_volume(path)
                    head = Head(volume.voxels.astype(np.float32), find_brain(volume), volume.grid)
                    yield Sample(name, str(path.parent), contrast, measure_contrast(head))


def fit(path: Path, samples: list[Sample]) -> None:
    groups = {name: np.array([sample.measured for sample in samples if sample.contrast == name]) for name in CONTRASTS}
    own = {name: np.cov(group.T) for name, group in groups.items()}
    shared = np.mean(list(own.values()), axis=0)
    numbers = {}
    for name, group in groups.items():
        covariance = (1 - SHARED) * own[name] + SHARED * shared
        numbers[name] = {"mean": group.mean(axis=0).round(4).tolist(), "covariance": covariance.round(6).tolist()}
    path.write_text(json.dumps(numbers) + "\n")


def print_alone(samples: list[Sample]) -> None:
    """What each series is, taken alone."""
    columns = (*CONTRASTS, "refused")
    print(f"\n| one series alone | contrast | {' | '.join(columns)} |\n|{'---|' * (len(columns) + 2)}")
    for source, contrast in itertools.product(dict.fromkeys(sample.source for sample in samples), CONTRASTS):
        rows = [sample for sample in samples if (sample.source, sample.contrast) == (source, contrast)]
        answers = [answer_alone(sample.measured) for sample in rows]
        if rows:
            print(f"| {source} | {contrast} | {' | '.join(str(answers.count(name)) for name in columns)} |")


def answer_alone(measured: np.ndarray) -> str:
    likelihoods = compare_contrasts(measured)
    answers = {name: assign_series({"it": likelihoods}, (name,)) for name in CONTRASTS}
    return next((name for name, (_, probability) in answers.items() if probability >= SURE), "refused")


def print_together(samples: list[Sample]) -> None:
    """Where a modality is not among the series, refusing is right."""
    print("\n| studies | series | needed | right | wrong | refused |\n|---|---|---|---|---|---|")
    for source, (given, needed) in itertools.product(dict.fromkeys(sample.source for sample in samples), CASES):
        studies: dict[str, dict[str, dict[str, float]]] = {}
        for sample in samples:
            if sample.source == source and sample.contrast in given:
                studies.setdefault(sample.patient, {})[sample.contrast] = compare_contrasts(sample.measured)
        assigned = [assign_series(study, needed) for study in studies.values() if len(study) == len(given)]
        sure = [answer for answer, probability in assigned if probability >= SURE]
        right = sum(all(name == series for name, series in answer.items()) for answer in sure)
        if assigned:
            counts = f"{right} | {len(sure) - right} | {len(assigned) - len(sure)}"
            print(f"| {source} | {', '.join(given)} | {', '.join(needed)} | {counts} |")


def print_names(folder: Path) -> None:
    """Series given under right and wrong names; as `anofpdm segment` compares them."""
    pack = importlib.import_module("unpack").load(folder)
    affine = np.diag([-240 / 128, -240 / 128, 2.0, 1.0])
    patients = []
    for patient in np.unique(pack.patients):
        rows = np.flatnonzero(pack.patients == patient)
        voxels = pack.images[rows[np.argsort(pack.z[rows])]].transpose(1, 3, 2, 0).astype(np.float32)
        measured = measure_stripped(list(voxels), Grid.from_affine(voxels.shape[1:], affine))
        patients.append(dict(zip(pack.modalities, map(compare_contrasts, measured), strict=True)))
    print("| given as | image | patients | reported | as an exchange |\n|---|---|---|---|---|")
    for given, images in NAMED:
        named = [{name: of[image] for name, image in zip(given, images, strict=True)} for of in patients]
        reported = [wrong for wrong in map(find_mixed_up, named) if wrong]
        exchanged = sum(set(wrong) == {contrast for contrast, _ in wrong.values()} for wrong in reported)
        print(f"| {', '.join(given)} | {', '.join(images)} | {len(named)} | {len(reported)} | {exchanged} |")


if __name__ == "__main__":
    main()
