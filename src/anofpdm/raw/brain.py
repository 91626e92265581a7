"""Brain extraction with the two networks of the deepbet package: the first finds the brain, the second outlines it.

Its weight files are loaded directly. The package's own code would import a user interface and pandas.
"""

import hashlib
import importlib.util
import io
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import nibabel as nib
import numpy as np
from scipy import ndimage

from anofpdm.errors import ConfigError, ScanError
from anofpdm.scans.grid import Grid

if TYPE_CHECKING:
    from anofpdm.raw.linknet import Weights

# File in the folder data/models of the installed package, size of its input, and sha256 of the file in deepbet 1.0.2.
FINDER = ("bbox_model.pt", 128, "39a7b2b5f799faa1391ea97bfcdc0b9299f20d84f2316a4ff8918dc4685e40aa")
OUTLINER = ("model.pt", 256, "de8ee7c69654d0dd3935dc4a5d84571d8ecf4637a6bfc01df399c4c2bc86e0fd")
INSTALL_HINT = "pip install 'anofpdm[raw]'"
DARK_QUANTILE, BRIGHT_QUANTILE = 0.005, 0.995  # scaled to 0 and 1
MARGIN = 0.1  # around the box of the brain, in sizes of the box
LEAST_OF_PLANE = 0.02  # fraction of a plane that is brain, for the plane to be in the box


@dataclass(frozen=True)
class Networks:
    finder: "Weights"
    outliner: "Weights"


def load_networks() -> Networks:
    folder = weights_folder()
    return Networks(_load(folder, FINDER), _load(folder, OUTLINER))


def weights_folder() -> Path:
    try:
        spec = importlib.util.find_spec("deepbet")  # without importing it
    except ValueError:
        spec = None
    if spec is None or spec.origin is None:
        raise ConfigError(
            f"brain extraction needs deepbet, which is not installed; run {INSTALL_HINT}, or give --skull-strip"
        )
    return Path(spec.origin).parents[1] / "data" / "models"


def _load(folder: Path, network: tuple[str, int, str]) -> "Weights":
    import torch

    name, _, sha256 = network
    path = folder / name
    data = path.read_bytes() if path.is_file() else b""
    if hashlib.sha256(data).hexdigest() != sha256:
        raise ConfigError(f"{path} is missing or not the file of deepbet 1.0.2; run {INSTALL_HINT} again")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit.load is deprecated, but this is its format
        return dict(torch.jit.load(io.BytesIO(data), map_location="cpu").state_dict())


def extract_brain(voxels: np.ndarray, grid: Grid, networks: Networks, path: Path | str) -> np.ndarray:
    """bool [i, j, k]: the brain in a scan of a whole head."""
    orientation = nib.io_orientation(grid.affine)
    head = np.ascontiguousarray(nib.apply_orientation(voxels, orientation), dtype=np.float32)  # RAS+
    brain = _extract_canonical(head, networks)
    if not brain.any():
        raise ScanError(f"{path}: no brain found; is it a scan of a head?")
    back = nib.orientations.ornt_transform(nib.orientations.axcodes2ornt("RAS"), orientation)
    return np.ascontiguousarray(nib.apply_orientation(brain, back))


def _extract_canonical(head: np.ndarray, networks: Networks) -> np.ndarray:
    coarse = _resize(head, FINDER[1])
    dark, bright = np.quantile(coarse, [DARK_QUANTILE, BRIGHT_QUANTILE])
    if bright <= dark:
        return np.zeros(head.shape, dtype=bool)
    normalise = partial(_normalise, dark=dark, bright=bright)
    found = _largest_component(_predict(networks.finder, normalise(coarse)) > 0.5)
    box = _bounding_box(found, head.shape)
    if box is None:
        return np.zeros(head.shape, dtype=bool)
    probability = _predict(networks.outliner, normalise(_resize(head[box], OUTLINER[1])))
    brain = np.zeros(head.shape, dtype=bool)
    brain[box] = _resize(probability, head[box].shape) > 0.5
    filled: np.ndarray = ndimage.binary_fill_holes(_largest_component(brain))
    return filled


def _resize(voxels: np.ndarray, size: int | tuple[int, ...]) -> np.ndarray:
    """Nearest voxels, as in the training of the networks."""
    import torch

    shape = (size,) * 3 if isinstance(size, int) else size
    resized = torch.nn.functional.interpolate(torch.from_numpy(voxels)[None, None], shape, mode="nearest-exact")
    return resized[0, 0].numpy()


def _normalise(voxels: np.ndarray, dark: float, bright: float) -> np.ndarray:
    """To the mean and deviation of the images that the networks were trained with."""
    scaled = np.clip((voxels - np.float32(dark)) / np.float32(bright - dark), 0, 1)
    return np.float32(0.226) * (scaled - scaled.mean()) / scaled.std(ddof=1) + np.float32(0.449)


def _predict(weights: "Weights", voxels: np.ndarray) -> np.ndarray:
    import torch

    from anofpdm.raw.linknet import predict_brain

    with torch.inference_mode():
        return predict_brain(weights, torch.from_numpy(voxels)[None, None]).numpy()


def _largest_component(region: np.ndarray) -> np.ndarray:
    labels, count = ndimage.label(region, np.ones((3, 3, 3)))
    if not count:
        return region
    return np.asarray(labels == 1 + np.bincount(labels.ravel())[1:].argmax())


def _bounding_box(found: np.ndarray, shape: tuple[int, ...]) -> tuple[slice, ...] | None:
    """Of the brain on the coarse grid, in voxels of a head of this shape; None where there is hardly any brain."""
    box = []
    for axis, size in enumerate(shape):
        others = tuple(other for other in range(3) if other != axis)
        planes = np.flatnonzero(found.mean(axis=others) > LEAST_OF_PLANE)
        if not len(planes):
            return None
        scale = size / found.shape[axis]
        first, end = planes[0] * scale, (planes[-1] + 1) * scale
        margin = MARGIN * (end - first)
        box.append(slice(max(0, int(first - margin)), min(size, int(end + margin))))
    return tuple(box)
