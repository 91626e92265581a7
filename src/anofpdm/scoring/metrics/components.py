"""Connected components of 3D masks, and dilation. Masks have background at each side of the array."""

import functools
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components


@dataclass(frozen=True)
class Components:
    """Voxels that touch at a face, an edge or a corner (26 neighbours) are one component."""

    voxels: np.ndarray  # [n], flat indices of the mask's voxels, ascending
    labels: np.ndarray  # [n], from 0
    count: int

    @functools.cached_property
    def sizes(self) -> np.ndarray:
        """[count], voxels."""
        return np.bincount(self.labels, minlength=self.count)

    def label_at(self, voxels: np.ndarray) -> np.ndarray:
        """Labels of voxels of the mask, by flat index."""
        return self.labels[np.searchsorted(self.voxels, voxels)]

    def labels_inside(self, mask: np.ndarray) -> np.ndarray:
        """Labels of the voxels that are also in another mask of the same shape, by ascending index."""
        return self.labels[mask.reshape(-1)[self.voxels]]


def find_components(mask: np.ndarray) -> Components:
    """bool [i, j, k], C-contiguous. Works on runs of voxels along the last axis: most of a mask is inside of runs."""
    voxels = np.flatnonzero(mask)
    if not len(voxels):
        return Components(voxels, voxels, 0)
    cuts = np.flatnonzero(np.diff(voxels) != 1)
    first, last = np.concatenate([[0], cuts + 1]), np.concatenate([cuts, [len(voxels) - 1]])
    begin, end = voxels[first], voxels[last]
    line, plane = mask.shape[2], mask.shape[1] * mask.shape[2]
    links = [_touching(begin, end, step) for step in (line, plane - line, plane, plane + line)]
    rows, columns = (np.concatenate(parts) for parts in zip(*links, strict=True))
    graph = coo_array((np.ones(len(rows), dtype=bool), (rows, columns)), shape=(len(begin), len(begin)))
    count, labels = connected_components(graph, directed=False)
    return Components(voxels, np.repeat(labels, last - first + 1), int(count))


def _touching(begin: np.ndarray, end: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Pairs of runs, the second on the line that is `step` voxels after the first's, that touch."""
    low = np.searchsorted(end, begin - 1 + step)
    counts = np.searchsorted(begin, end + 1 + step, side="right") - low
    runs = np.repeat(np.arange(len(begin)), counts)
    within = np.arange(len(runs)) - np.repeat(np.cumsum(counts) - counts, counts)
    return runs, low[runs] + within


def dilate(mask: np.ndarray, times: int) -> np.ndarray:
    """By the voxel and its 18 neighbours at faces and edges, the union of a 3 x 3 square in each of three planes.

    The margin of background must be wider than `times`, and the last axis a multiple of 8: a byte is eight voxels.
    """
    bits, line, plane = pack_bits(mask)
    for _ in range(times):
        i, j = _spread(bits, plane), _spread(bits, line)
        bits = _spread(i, line) | _spread_bits(i | j)
    return np.unpackbits(bits, bitorder="little").view(bool).reshape(mask.shape)


def pack_bits(mask: np.ndarray) -> tuple[np.ndarray, int, int]:
    """Flat uint8 of eight voxels each, and the bytes from one line or plane to the next."""
    _, rows, columns = mask.shape
    if columns % 8:
        raise ValueError(f"a last axis of {columns} voxels is not a multiple of 8")
    return np.packbits(mask.reshape(-1), bitorder="little"), columns // 8, rows * columns // 8


def _spread(bits: np.ndarray, step: int) -> np.ndarray:
    """With the voxels of the lines (or planes) before and after."""
    wide = bits.copy()
    wide[step:] |= bits[:-step]
    wide[:-step] |= bits[step:]
    return wide


def _spread_bits(bits: np.ndarray) -> np.ndarray:
    """With the voxels before and after on the same line."""
    wide = bits | bits << 1 | bits >> 1
    wide[1:] |= bits[:-1] >> 7
    wide[:-1] |= bits[1:] << 7
    return wide
