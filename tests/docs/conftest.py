"""Small things that stand for what the pages name: scans, cohorts, models, results. All of it is made in a moment."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from anofpdm.demo import run_demo as demo
from anofpdm.method import mask
from anofpdm.network import blocks, config, unet
from anofpdm.phantoms import phantom_cohort as phantoms
from anofpdm.study.comparison.methods import METHODS, ReconstructionMethod
from tests import dicom_toys, toys
from tests.commands import run

TOY_NETWORK = {"channels": 8, "multipliers": (1, 2), "blocks": 1, "attention": (2,)}
TOY_SETTING = {"level": 20, "scale": 1.0, "invert": 1, "strength": 1.0, "steps": 3}  # of every comparison method
TOY_PHANTOMS = ("--size", "32", "--slices", "8", "--workers", "1")
MODALITIES = ("flair", "t1", "t1ce", "t2")


@pytest.fixture(scope="module")
def shelf(tmp_path_factory):
    """A folder with one thing for each name, and a program that is so small that all is quick."""
    with pytest.MonkeyPatch.context() as patch:
        for preset in config.PRESETS:
            patch.setitem(config.PRESETS, preset, TOY_NETWORK)
        for module in (blocks, unet):
            patch.setattr(module, "zero_init", random_init)
        patch.setattr(mask, "MEDIAN", 1)  # slices are so small that a median would leave nothing of a lesion
        for name, method in METHODS.items():
            if isinstance(method, ReconstructionMethod):
                patch.setitem(METHODS, name, replace(method, grid=(TOY_SETTING,)))
        for module in (phantoms, demo):
            patch.setattr(module, "write_phantoms", write_small_phantoms)
        folder = tmp_path_factory.mktemp("shelf")
        patch.setattr(demo, "BUNDLED", folder / "bundled")
        with pytest.MonkeyPatch.context() as elsewhere:
            elsewhere.chdir(folder)
            fill()
        yield folder


def write_small_phantoms(*args, write=phantoms.write_phantoms, **options) -> None:
    write(*args, **{**options, "size": 32, "slices": 8})


def random_init(module: nn.Module) -> nn.Module:
    """With layers that start at zero, the output of a network after two steps would be constant."""
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.05)
    return module


def fill() -> None:
    """The folder we are in."""
    run("phantom", "BraTS2021_Training_Data", "--kind", "tumour", "--patients", 8, "--seed", 1, *TOY_PHANTOMS)
    shutil.copytree("BraTS2021_Training_Data", "SCANS")
    run("phantom", "ATLAS_2", "--kind", "stroke", "--patients", 8, "--seed", 1, *TOY_PHANTOMS)
    scans = sorted(path for path in Path("BraTS2021_Training_Data").iterdir() if path.is_dir())
    Path("parts.csv").write_text("\n".join(["patient,split", *parts(scans)]))
    prepare = ("prepare", "brats21", "BraTS2021_Training_Data", "COHORT", "--split", "parts.csv")
    run(*prepare, "--size", 16, "--workers", 1)
    run("prepare", "atlas2", "ATLAS_2/Training", "strokes", "--size", 16, "--workers", 1)
    shutil.copytree("COHORT", "cohort")
    shutil.copytree(scans[0], "SCAN")
    fill_files(scans[0])
    fill_own_scans()
    fill_study()
    fill_masks()
    fill_models()
    run("segment", "MODEL", "SCAN", "--out", "DIR", "--device", "cpu")
    shutil.copytree("MODEL", "with_student")
    run("distill", "with_student", "COHORT", "--steps", 1, "--width", 8, "--device", "cpu")


def parts(scans: list[Path]) -> list[str]:
    """Both kinds of slices everywhere."""
    names = ["train"] * 4 + ["val"] * 2 + ["test"] * 2
    return [f"{scan.name},{name}" for scan, name in zip(scans, names, strict=True)]


def fill_files(scan: Path) -> None:
    """One scan under the names that pages give to its files."""
    for modality, names in {
        "flair": ("p1_flair", "f", "a"), "t1": ("p1_t1", "t1", "b"), "t1ce": ("p1_t1ce", "t1c", "c"),
        "t2": ("p1_t2", "t2", "d", "brain"),
    }.items():  # fmt: skip
        for name in names:
            shutil.copyfile(scan / f"{scan.name}_{modality}.nii.gz", f"{name}.nii.gz")
    Path("bin").mkdir()
    tool = Path("bin/hd-bet")
    tool.write_text('#!/bin/sh\ncp "$2" "$4"\n')
    tool.chmod(0o755)


def fill_own_scans() -> None:
    """As a user has them: without a mask, with labels and a split in tables."""
    labels, own_labels, split = ["subject,slice,label"], ["subject,slice,label"], ["patient,split"]
    for number in range(6):
        patient = f"patient{number:02d}"
        for seed, modality in enumerate(MODALITIES):
            toys.save(Path("my_scans", f"{patient}_{modality}.nii.gz"), toys.head(seed=10 * number + seed))
        for seed, suffix in enumerate(("T1w", "FLAIR")):
            name = f"sub-{number}_acq-iso_{suffix}.nii.gz"
            toys.save(Path("my_bids", f"sub-{number}", "anat", name), toys.head(seed=10 * number + seed))
        own_labels += [f"{patient},,{'unhealthy' if number % 2 else 'healthy'}"]
        own_labels += [f"{patient},9,unhealthy"] * (number % 2)
        labels += [f"sub-{number},,healthy"]
        split += [f"{patient},{'val' if number < 2 else 'train'}"]
    Path("my_bids/dataset_description.json").write_text('{"Name": "mine", "BIDSVersion": "1.9.0"}')
    Path("my_scans/labels.csv").write_text("\n".join(own_labels))
    Path("labels.csv").write_text("\n".join(labels))
    Path("split.csv").write_text("\n".join(split))


def fill_study() -> None:
    names = {3: "AX T2 FLAIR", 4: "AX T1", 5: "AX T1 +C", 6: "AX T2"}
    for number, name in names.items():
        voxels = np.ascontiguousarray(toys.head((20, 20, 12), number).transpose(2, 1, 0))
        dicom_toys.Series(voxels, spacing=(6, 6), step=10, SeriesNumber=number, SeriesDescription=name).save(
            Path("STUDY", name)
        )


def fill_masks() -> None:
    """Predicted masks beside true ones, in folders and alone; one folder has the labels of BraTS."""
    mask = toys.ball(toys.affine_of(shape=(24, 24, 20)), (24, 24, 20), (2, 0, 0), 6).astype(np.uint8)
    for number in (1, 2):
        toys.save(Path("PREDICTED", f"p{number}.nii.gz"), np.roll(mask, number, axis=0))
        toys.save(Path("TRUTH", f"p{number}.nii.gz"), mask)
        toys.save(Path("labelled", f"p{number}.nii.gz"), 2 * mask)
    toys.save(Path("predicted.nii.gz"), np.roll(mask, 1, axis=1))
    toys.save(Path("truth.nii.gz"), mask)
    Path("pairs.csv").write_text("predicted,truth\np1.nii.gz,p1.nii.gz\n")


def fill_models() -> None:
    """The model itself, those of the methods it is compared with, and the two that are bundled."""
    for name, cohort, words in (
        ("MODEL", "COHORT", ()),
        ("M1", "COHORT", ("--task", "healthy")),
        ("M2", "COHORT", ("--task", "healthy", "--noise", "simplex")),
        ("M3", "COHORT", ("--task", "unconditional")),
        ("M4", "COHORT", ("--task", "classifier")),
        ("bundled/phantom-stroke", "strokes", ()),
    ):
        train = ("train", cohort, "--out", name, "--preset", "tiny", "--batch", 4, "--steps", 2)
        run(*train, "--device", "cpu", *words)
    quick = ("--levels", 3, "--strengths", "0,2", "--split", "train", "--device", "cpu")
    run("calibrate", "MODEL", "COHORT", *quick)
    run("calibrate", "bundled/phantom-stroke", "strokes", *quick)
    shutil.copytree("MODEL", "bundled/phantom-tumour")
    shutil.copytree("MODEL", "OTHER")
