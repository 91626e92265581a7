"""From a scan to the network's slices, and back onto the scan's grid.

Slices are axial by the scan's orientation, whatever its array axes: inferior slices first; in a slice, the first row is
anterior and the first column is the patient's right (radiological convention). Both directions are sparse matrices
derived from the scan's geometry.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import nibabel as nib
import numpy as np
from scipy import sparse

from anofpdm.errors import ScanError
from anofpdm.scans.grid import Grid, check_same_grid
from anofpdm.scans.nifti import read_volume

BRIGHT_PERCENTILE = 99.0  # of a volume's foreground; scaled to 1
AXIAL = nib.orientations.axcodes2ornt("SPL")  # slices towards superior, rows towards posterior, columns towards left
LEAST_FOREGROUND = 0.025  # of a slice's area; slices with less are skipped


@dataclass(frozen=True)
class Scan:
    """One subject at one time: several modalities on one grid."""

    modalities: tuple[str, ...]
    volumes: tuple[np.ndarray, ...]  # one [i, j, k] per modality
    grid: Grid


@dataclass(frozen=True)
class ScanSlices:
    """The network's input for a scan."""

    pixels: np.ndarray  # [n, C, size, size] in [-1, 1]
    indices: np.ndarray  # [n], axial positions in the scan, counted from the inferior end


def read_scan(files: dict[str, Path]) -> Scan:
    """Read a subject's modalities (name to file), which must share a grid."""
    volumes = [read_volume(path) for path in files.values()]
    for volume in volumes[1:]:
        check_same_grid(volumes[0].grid, volumes[0].path, volume.grid, volume.path)
    for first, second in itertools.combinations(volumes, 2):
        if np.array_equal(first.voxels, second.voxels):
            raise ScanError(f"{second.path}: exactly the image of {first.path}; give the file of each modality")
    for volume in volumes:
        if not (volume.voxels > 0).any():
            raise ScanError(f"{volume.path}: no voxel is above 0; check the scan's scaling")
    return Scan(tuple(files), tuple(volume.voxels for volume in volumes), volumes[0].grid)


class AxialPlanes:
    """Conversion between a grid's axial slices and the square slices of the network."""

    def __init__(self, grid: Grid, size: int):
        self.grid, self.size = grid, size
        on_disk = nib.io_orientation(grid.affine)  # [3, 2]: world axis and direction of each array axis
        self._to_axial = nib.orientations.ornt_transform(on_disk, AXIAL)
        self._to_disk = nib.orientations.ornt_transform(AXIAL, on_disk)
        order = self._to_disk[:, 0].astype(int)  # array axes of z, y, x
        self.shape = tuple(grid.shape[axis] for axis in order)
        self.spacing_mm, dy, dx = grid.spacing_mm[order].tolist()
        _, ny, nx = self.shape
        self.pixel_mm = max(ny * dy, nx * dx) / size
        self._sides = ((ny, dy), (nx, dx))  # of a slice: voxels and their size

    def axial(self, volume: np.ndarray) -> np.ndarray:
        """[i, j, k] as on disk -> [z, y, x] as in the module's docstring; a view, without a copy."""
        return np.asarray(nib.apply_orientation(volume, self._to_axial))

    def to_network(self, planes: np.ndarray) -> np.ndarray:
        """[n, y, x] -> [n, size, size] float32: aspect ratio kept, centred, zeros around."""
        return _apply(self._network_matrix, planes, (self.size, self.size))

    def to_native(self, slices: np.ndarray, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """[n, size, size] at these axial positions -> float32 [i, j, k] on the scan's grid, 0 between slices."""
        axial = np.zeros(self.shape, dtype=np.float32)
        axial[np.asarray(indices, dtype=int)] = _apply(self._native_matrix, slices, self.shape[1:])
        return np.asarray(nib.apply_orientation(axial, self._to_disk))

    @cached_property
    def _network_matrix(self) -> sparse.csr_array:
        """[size * size, y * x]: mean over each pixel's area; linear interpolation if pixels are smaller than voxels."""
        rows, columns = (
            _overlaps(count, mm, self.size, self.pixel_mm, width=max(self.pixel_mm, mm)) for count, mm in self._sides
        )
        return sparse.csr_array(sparse.kron(rows, columns, format="csr"))

    @cached_property
    def _native_matrix(self) -> sparse.csr_array:
        """[y * x, size * size]: linear interpolation at each voxel's centre."""
        sides = [_overlaps(self.size, self.pixel_mm, count, mm, width=self.pixel_mm) for count, mm in self._sides]
        rows, columns = (side * (1 / np.asarray(side.sum(axis=1)))[:, None] for side in sides)  # equal weight at edges
        return sparse.csr_array(sparse.kron(rows, columns, format="csr"))


def scan_slices(scan: Scan, size: int, dtype: type = np.float32) -> ScanSlices:
    """Normalise each modality by its foreground, keep axial slices with enough foreground, resize them."""
    planes = AxialPlanes(scan.grid, size)
    volumes = [planes.axial(volume) for volume in scan.volumes]  # each [z, y, x]
    kept = select_slices(volumes)
    pixels: np.ndarray = np.empty((len(kept), len(volumes), size, size), dtype)
    for channel, volume in enumerate(volumes):
        bright = foreground_percentile(volume)
        if 1 / bright > np.finfo(np.float32).max:
            raise ScanError(f"{scan.modalities[channel]}: intensities of {bright:.3g} are too small; check its scaling")
        for row, z in enumerate(kept):  # plane by plane, to stay in the CPU cache
            scaled = np.multiply(volume[z], np.float32(1 / bright), dtype=np.float32)
            pixels[row, channel] = planes.to_network(np.clip(scaled, 0, 1, out=scaled)[None])[0] * 2 - 1
    return ScanSlices(pixels, kept)


def select_slices(volumes: Sequence[np.ndarray]) -> np.ndarray:
    """Positions of slices of [z, y, x] volumes with enough foreground (above 0 in any modality)."""
    return np.flatnonzero(foreground_of(volumes).mean(axis=(1, 2)) >= LEAST_FOREGROUND)


def foreground_of(volumes: Sequence[np.ndarray]) -> np.ndarray:
    """bool, above 0 in any of the volumes."""
    return np.asarray(np.logical_or.reduce([volume > 0 for volume in volumes]))


def foreground_percentile(volume: np.ndarray) -> float:
    """The 99th percentile of the voxels above 0."""
    voxels = volume.ravel(order="K")
    foreground = voxels[voxels > 0]
    rank = BRIGHT_PERCENTILE / 100 * (foreground.size - 1)
    below = int(rank)
    ordered = np.partition(foreground, below)  # several times faster than np.percentile, which partitions at two ranks
    low, high = float(ordered[below]), float(ordered[below + 1 :].min(initial=ordered.max()))
    return low + (rank - below) * (high - low)


def mask_slices(mask: np.ndarray, planes: AxialPlanes, indices: np.ndarray) -> np.ndarray:
    """A native mask [i, j, k] (any label above 0) in network slices: bool [n, size, size], by majority of area."""
    axial = planes.axial(mask)[indices] > 0
    slices = np.zeros((len(indices), planes.size, planes.size), dtype=bool)
    nonempty = axial.any(axis=(1, 2))
    slices[nonempty] = planes.to_network(axial[nonempty]) >= 0.5
    return slices


def _apply(matrix: sparse.csr_array, planes: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    out = np.empty((len(planes), *shape), dtype=np.float32)
    for plane, result in zip(planes, out, strict=True):
        result[...] = (matrix @ plane.astype(np.float32, copy=False).ravel()).reshape(shape)
    return out


def _overlaps(n_in: int, d_in: float, n_out: int, d_out: float, *, width: float) -> sparse.csr_array:
    """[n_out, n_in]: the fraction of a box of `width` around each output cell's centre that each input cell covers.

    Both rows of cells have the same centre. A box as wide as the output cell gives the area mean; one as wide as the
    input cell gives linear interpolation, because two unit boxes a distance d < 1 apart overlap by 1 - d.
    """
    centres_in = (np.arange(n_in) - (n_in - 1) / 2) * d_in
    centres_out = (np.arange(n_out) - (n_out - 1) / 2) * d_out
    distance = np.abs(centres_out[:, None] - centres_in[None, :])
    overlap = np.clip((d_in + width) / 2 - distance, 0, min(d_in, width))
    overlap[overlap < 1e-6 * width] = 0  # rounding errors
    return sparse.csr_array((overlap / width).astype(np.float32))
