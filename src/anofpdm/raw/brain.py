"""Brain extraction with the two networks of the deepbet package: the first finds the brain, the second outlines it.

Its weight files are loaded directly. The package's own code would import a user interface and pandas.
"""

import hashlib
import importlib.util
import io
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import nibabel as nib
import numpy as np
from scipy import ndimage

from anofpdm.errors import ConfigError, ScanError
from anofpdm.scans.grid import Grid, on_one_grid
from anofpdm.scans.nifti import Volume, read_volume
from anofpdm.scans.plausible import is_stripped

if TYPE_CHECKING:
    from anofpdm.raw.linknet import Weights

DEEPBET = "deepbet 1.0.2"
# File in the folder data/models of the installed package, size of its input, and sha256 of the file in deepbet 1.0.2.
FINDER = ("bbox_model.pt", 128, "39a7b2b5f799faa1391ea97bfcdc0b9299f20d84f2316a4ff8918dc4685e40aa")
OUTLINER = ("model.pt", 256, "de8ee7c69654d0dd3935dc4a5d84571d8ecf4637a6bfc01df399c4c2bc86e0fd")
INSTALL_HINT = "pip install 'anofpdm[raw]'"
DARK_QUANTILE, BRIGHT_QUANTILE = 0.005, 0.995  # scaled to 0 and 1
MARGIN = 0.1  # around the box of the brain, in sizes of the box
LEAST_OF_PLANE = 0.02  # fraction of a plane that is brain, for the plane to be in the box


@dataclass(frozen=True)
class BrainFinder:
    """The brain of a series: by the user's mask or command; all of it where it is stripped; else by deepbet."""

    mask: Path | None = None  # for the series on its grid
    command: Callable[[Path], Volume] | None = None
    method: str = DEEPBET  # for the manifest: what was used, if mask or command are given
    # Packed brains, some kilobytes each, by the content of the series: a DICOM series that was chosen by its image is
    # known again after its conversion to NIfTI.
    extracted: dict[str, bytes] = field(default_factory=dict)

    def __call__(self, volume: Volume) -> np.ndarray:
        """bool [i, j, k]"""
        if self.command is not None:
            return np.asarray(self.command(volume.path).voxels > 0)
        if self.mask is not None:
            mask = read_volume(self.mask, allow_constant=True)
            if on_one_grid([volume.grid, mask.grid]):
                return np.asarray(mask.voxels > 0)
        if is_stripped(volume.voxels, volume.grid):
            return np.asarray(ndimage.binary_fill_holes(volume.voxels > 0))
        layout = f"{volume.voxels.shape} {nib.aff2axcodes(volume.grid.affine)}"
        values = np.ascontiguousarray(volume.voxels, dtype=np.float32)
        content = hashlib.sha256(layout.encode() + values.tobytes()).hexdigest()
        if content not in self.extracted:
            brain = extract_brain(volume.voxels, volume.grid, volume.path)
            self.extracted[content] = zlib.compress(np.packbits(brain).tobytes())
        packed = np.frombuffer(zlib.decompress(self.extracted[content]), np.uint8)
        return np.unpackbits(packed, count=volume.voxels.size).reshape(volume.voxels.shape).astype(bool)


@cache
def load_networks() -> tuple["Weights", "Weights"]:
    """That find the brain, and outline it; 16 MiB."""
    folder = weights_folder()
    return _load(folder, FINDER), _load(folder, OUTLINER)


def weights_folder() -> Path:
    spec = importlib.util.find_spec("deepbet")  # without importing it
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


def extract_brain(voxels: np.ndarray, grid: Grid, path: Path | str) -> np.ndarray:
    """bool [i, j, k]: the brain in a scan of a whole head."""
    orientation = nib.io_orientation(grid.affine)
    head = np.ascontiguousarray(nib.apply_orientation(voxels, orientation), dtype=np.float32)  # RAS+
    brain = _extract_canonical(head)
    if not brain.any():
        raise ScanError(f"{path}: no brain found; is it a scan of a head?")
    back = nib.orientations.ornt_transform(nib.orientations.axcodes2ornt("RAS"), orientation)
    return np.ascontiguousarray(nib.apply_orientation(brain, back))


def _extract_canonical(head: np.ndarray) -> np.ndarray:
    finder, outliner = load_networks()
    brain = np.zeros(head.shape, dtype=bool)
    coarse = _resize(head, (FINDER[1],) * 3)
    dark, bright = np.quantile(coarse, [DARK_QUANTILE, BRIGHT_QUANTILE])
    if bright <= dark:
        return brain
    box = _bounding_box(_largest_component(_predict(finder, coarse, dark, bright) > 0.5), head.shape)
    if box is None:
        return brain
    probability = _predict(outliner, _resize(head[box], (OUTLINER[1],) * 3), dark, bright)
    brain[box] = _resize(probability, head[box].shape) > 0.5
    return np.asarray(ndimage.binary_fill_holes(_largest_component(brain)))


def _resize(voxels: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Nearest voxels, as in the training of the networks."""
    import torch

    resized = torch.nn.functional.interpolate(torch.from_numpy(voxels)[None, None], shape, mode="nearest-exact")
    return resized[0, 0].numpy()


def _predict(weights: "Weights", voxels: np.ndarray, dark: float, bright: float) -> np.ndarray:
    """Of values that are scaled to the mean and deviation of the images that the networks were trained with."""
    import torch

    from anofpdm.raw.linknet import predict_brain

    scaled = np.clip((voxels - np.float32(dark)) / np.float32(bright - dark), 0, 1)
    normal = np.float32(0.226) * (scaled - scaled.mean()) / scaled.std(ddof=1) + np.float32(0.449)
    with torch.inference_mode():
        return predict_brain(weights, torch.from_numpy(normal)[None, None]).numpy()


def _largest_component(region: np.ndarray) -> np.ndarray:
    labels, count = ndimage.label(region, np.ones((3, 3, 3)))
    return np.asarray(labels == 1 + np.bincount(labels.ravel())[1:].argmax()) if count else region


def _bounding_box(coarse: np.ndarray, shape: tuple[int, ...]) -> tuple[slice, ...] | None:
    """Of the brain on the coarse grid, in voxels of a head of this shape; None where there is hardly any brain."""
    box = []
    for axis, size in enumerate(shape):
        planes = np.flatnonzero(np.moveaxis(coarse, axis, 0).mean(axis=(1, 2)) > LEAST_OF_PLANE)
        if not len(planes):
            return None
        scale = size / len(coarse)
        first, end = planes[0] * scale, (planes[-1] + 1) * scale
        margin = MARGIN * (end - first)
        box.append(slice(max(0, int(first - margin)), min(size, int(end + margin))))
    return tuple(box)
