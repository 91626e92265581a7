"""Small worlds with a known answer, for every test."""

import importlib.util
import itertools
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import nibabel as nib
import numpy as np
from scipy.spatial.transform import Rotation

SPACING = (4.0, 4.0, 4.0)  # mm; few voxels are then as large as a head


def affine_of(
    codes: str = "LPS", spacing: tuple[float, ...] = (1, 1, 1), tilt: tuple[float, ...] = (0, 0, 0), shape=(40, 40, 40)
) -> np.ndarray:
    """[4, 4]: array axes pointing along `codes`, then tilted by Euler angles in degrees, centred on the origin."""
    axes = np.zeros((3, 3))
    for column, code in enumerate(codes):
        world, sign = {"R": (0, 1), "L": (0, -1), "A": (1, 1), "P": (1, -1), "S": (2, 1), "I": (2, -1)}[code]
        axes[world, column] = sign * spacing[column]
    axes = Rotation.from_euler("xyz", tilt, degrees=True).as_matrix() @ axes
    affine = np.eye(4)
    affine[:3, :3] = axes
    affine[:3, 3] = -axes @ ((np.array(shape) - 1) / 2)
    return affine


ORIENTATIONS = [
    "".join(pair[sign] for pair, sign in zip(order, signs, strict=True))
    for order in itertools.permutations(["RL", "AP", "SI"])
    for signs in itertools.product((0, 1), repeat=3)
]  # all 48


def ball(affine: np.ndarray, shape: tuple[int, ...], centre: tuple[float, ...], radius: float) -> np.ndarray:
    """bool [i, j, k]: a ball given in millimetres; empty where the radius is negative."""
    i, j, k = np.ogrid[tuple(slice(n) for n in shape)]
    squared = np.zeros(shape)
    for (a, b, c, first), middle in zip(affine[:3], centre, strict=True):
        squared += ((a * i + b * j) + (c * k + (first - middle))) ** 2
    return np.sqrt(squared) <= radius


def head(shape: tuple[int, ...] = (24, 24, 20), seed: int = 0, affine: np.ndarray | None = None) -> np.ndarray:
    """int16 [i, j, k]: a bright, noisy ball in the dark."""
    affine = affine_of(shape=shape, spacing=SPACING) if affine is None else affine
    corners = np.array([*itertools.product(*((0, n - 1) for n in shape))])
    extent = np.abs(corners @ affine[:3, :3].T + affine[:3, 3]).max(axis=0).min()
    inside = ball(affine, shape, (0, 0, 0), 0.9 * extent)
    noise = np.random.default_rng(seed).integers(300, 700, shape)
    return np.where(inside, noise, 0).astype(np.int16)


def save(path: Path, voxels: np.ndarray, affine: np.ndarray | None = None, *, codes=(1, 1)) -> Path:
    """A plain nibabel file: independent of our own writer."""
    affine = affine_of(shape=voxels.shape[:3], spacing=SPACING) if affine is None else affine
    image = nib.Nifti1Image(voxels, affine)
    image.set_qform(affine, code=codes[0])
    image.set_sform(affine, code=codes[1])
    image.header.set_xyzt_units("mm")
    path.parent.mkdir(parents=True, exist_ok=True)
    nib.save(image, path)
    return path


def dice(a: np.ndarray, b: np.ndarray) -> float:
    return 2 * float((a & b).sum()) / float(a.sum() + b.sum())


def brats_cohort(
    root: Path, patients: int = 4, shape: tuple[int, ...] = (24, 24, 20), *, masks: bool = True, slice_mm: float = 4.0
) -> Path:
    """FLAIR and T2 of a few heads in the BraTS21 layout; odd patients have a ball of a lesion, even ones none."""
    affine = affine_of(shape=shape, spacing=(*SPACING[:2], slice_mm))
    for number in range(patients):
        stem = f"p{number}/p{number}_"
        for seed, modality in enumerate(("flair", "t2")):
            save(root / f"{stem}{modality}.nii.gz", head(shape, 10 * number + seed, affine), affine)
        if masks:
            lesion = ball(affine, shape, (12, -8, 4), 16 if number % 2 else -1)
            save(root / f"{stem}seg.nii.gz", lesion.astype(np.uint8), affine)
    return root


def untrained(folder: Path, channels: int = 4) -> Path:
    """A cohort of small heads, and an untrained model whose predictions depend on the label."""
    import torch

    from anofpdm.cohorts.plan import plan_cohort
    from anofpdm.cohorts.prepare import prepare
    from anofpdm.network.config import preset
    from anofpdm.network.unet import UNet

    prepare(plan_cohort("brats21", brats_cohort(folder / "scans", 8), size=16), folder / "cohort")
    torch.manual_seed(0)
    network = UNet(preset("tiny", 2, channels=channels, multipliers=(1, 2), attention=(2,)))
    save_untrained(folder / "model", network, task="guided")
    return folder


def save_untrained(folder: Path, network: Any, **header: Any) -> None:
    """A network for FLAIR and T2 in slices of 16 x 16, without the zeros that layers start with."""
    import torch

    from anofpdm.network import checkpoint

    for parameter in network.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.05)
    header |= {"format": checkpoint.FORMAT, "modalities": ["flair", "t2"], "size": 16, "network": vars(network.config)}
    folder.mkdir(parents=True)
    checkpoint.save_model(folder, network.state_dict(), header)


def benchmark(name: str) -> ModuleType:
    """benchmarks/NAME.py, which is no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
