"""The student network: a plain U-Net with one output per pixel and one per slice.

Its inputs are slices, each stacked with neighbouring slices of its scan.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anofpdm.cohorts.store import Cohort
from anofpdm.errors import ConfigError
from anofpdm.method.context import SlicePositions
from anofpdm.network.blocks import apply_norm

MAX_COUNT = 4096
BACKGROUND = -0.95  # intensities below are outside the head
MISSING = -1.0  # of all pixels of a modality that a scan lacks: background
MIN_DISTANCE_MM = 2.0  # closer slices are nearly identical

Pixels = Callable[[np.ndarray], np.ndarray]  # rows -> slices [n, C, H, W] of the student's modalities


@dataclass(frozen=True)
class StudentConfig:
    modalities: tuple[str, ...]  # in the order of its channels
    size: int  # slices are size x size
    neighbours_mm: tuple[float, ...] = ()  # offsets of further input slices; negative: below
    width: int = 32
    multipliers: tuple[int, ...] = (1, 2, 4, 4)  # of the width, one per resolution
    optional: tuple[str, ...] = ()  # modalities that a scan may lack; their channels are then background

    def __post_init__(self) -> None:
        counts, halvings = (self.size, self.width, *self.multipliers), len(self.multipliers) - 1
        needs = {
            "modalities and multipliers": self.modalities and self.multipliers,
            "a width divisible by 8": self.width % 8 == 0,
            "distinct names of modalities": len(set(self.modalities)) == len(self.modalities),
            "optional modalities that are some of its modalities, and not all": {*self.optional} < {*self.modalities},
            f"size, width and multipliers from 1 to {MAX_COUNT}": all(0 < count <= MAX_COUNT for count in counts),
            "finite distances of neighbours": all(map(math.isfinite, self.neighbours_mm)),
            f"slices that can be halved {halvings} times": self.size % 2**halvings == 0,
        }
        for need, is_met in needs.items():
            if not is_met:
                raise ConfigError(f"a student needs {need}; got {self}")

    @property
    def needed(self) -> tuple[str, ...]:
        """Modalities that every scan must have."""
        return tuple(name for name in self.modalities if name not in self.optional)

    @property
    def in_channels(self) -> int:
        return len(self.modalities) * (1 + len(self.neighbours_mm))


class StudentNet(nn.Module):
    def __init__(self, config: StudentConfig):
        super().__init__()
        self.config = config
        widths = [config.width * multiplier for multiplier in config.multipliers]
        self.down = nn.ModuleList(
            Block(before, after) for before, after in zip([config.in_channels, *widths], widths, strict=False)
        )
        self.up = nn.ModuleList(
            UpBlock(widths[depth] + widths[depth - 1], widths[depth - 1]) for depth in range(len(widths) - 1, 0, -1)
        )
        self.last = nn.Conv2d(widths[0], 1, 1)
        self.whole = nn.Linear(2 * widths[-1], 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [N, C, H, W] in -1 to 1 -> logits of lesion [N, H, W], and of the slice being unhealthy [N]."""
        skips: list[Tensor] = []
        for depth, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if depth else x)
            skips.append(x)
        slice_logits = self.whole(torch.cat([x.mean(dim=(2, 3)), x.amax(dim=(2, 3))], dim=1))[:, 0]
        for depth, block in enumerate(self.up, start=2):
            x = block(x, skips[-depth])
        return self.last(x)[:, 0], slice_logits


class Block(nn.Sequential):
    def __init__(self, channels: int, out_channels: int):
        layers: list[nn.Module] = []
        for before in (channels, out_channels):
            conv = nn.Conv2d(before, out_channels, 3, padding=1, bias=False)
            layers += [conv, nn.GroupNorm(8, out_channels), nn.SiLU()]
        super().__init__(*layers)

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and x.is_cuda):
            return super().forward(x)
        for layer in self:
            if isinstance(layer, nn.GroupNorm):
                x = apply_norm(x, layer)  # kernels: training is twice as fast
            elif not isinstance(layer, nn.SiLU):  # which the kernels contain
                x = layer(x)
        return x


class UpBlock(Block):
    def forward(self, x: Tensor, skip: Tensor) -> Tensor:  # type: ignore[override]
        """x [N, C, H, W] and the skip connection [N, D, 2 H, 2 W] -> [N, out, 2 H, 2 W]."""
        return super().forward(torch.cat([F.interpolate(x, scale_factor=2), skip], dim=1))


def mirror_passes(network: StudentNet, x: Tensor) -> tuple[Tensor, Tensor]:
    """[N, C, H, W] -> float32 [N, 2, H, W] and [N, 2]: the logits of each slice, and of its mirror image, mirrored
    back."""
    (pixel_logits, slice_logits), (mirrored, slice_mirrored) = network(x), network(x.flip(-1))
    passes = torch.stack([pixel_logits, mirrored.flip(-1)], dim=1)
    return passes.float(), torch.stack([slice_logits, slice_mirrored], dim=1).float()


# ---- inputs ----------------------------------------------------------------------------------------------------------


def cohort_pixels(cohort: Cohort, rows: np.ndarray, modalities: Sequence[str]) -> Pixels:
    """Slices of these modalities, indexed within `rows`."""
    channels = [cohort.modalities.index(name) for name in modalities]
    return lambda indices: cohort.pixels(rows[indices])[:, channels]


def fill_missing(pixels: np.ndarray, given: Sequence[str], modalities: Sequence[str]) -> np.ndarray:
    """[n, len(given), H, W] -> [n, len(modalities), H, W]: channels of modalities that are not given are background, as
    in training; given ones that are not wanted are left out."""
    if list(given) == list(modalities):
        return pixels
    filled = np.full((len(pixels), len(modalities), *pixels.shape[2:]), MISSING, pixels.dtype)
    shared = [name for name in given if name in modalities]
    filled[:, [modalities.index(name) for name in shared]] = pixels[:, [given.index(name) for name in shared]]
    return filled


def stack_slices(pixels: Pixels, rows: np.ndarray) -> np.ndarray:
    """Rows [n, k] -> [n, k * C, H, W] float32."""
    unique, inverse = np.unique(rows, return_inverse=True)
    slices = pixels(unique)[inverse.reshape(rows.shape)]  # [n, k, C, H, W]
    return slices.reshape(len(rows), -1, *slices.shape[-2:]).astype(np.float32)


def scan_rows(positions: SlicePositions) -> list[np.ndarray]:
    """The rows of each scan's slices, from the lowest to the highest."""
    of_scans = (np.flatnonzero(positions.scans == scan) for scan in np.unique(positions.scans))
    return [rows[np.argsort(positions.heights_mm[rows])] for rows in of_scans]


def neighbour_rows(positions: SlicePositions, offsets_mm: Sequence[float]) -> np.ndarray:
    """[N, 1 + offsets] rows: each slice and those of its scan by `nearest_slices`."""
    neighbours = np.empty((len(positions.scans), 1 + len(offsets_mm)), int)
    for rows in scan_rows(positions):
        heights_mm = torch.from_numpy(positions.heights_mm[rows].astype(float))
        neighbours[rows] = rows[nearest_slices(heights_mm, list(map(float, offsets_mm))).numpy()]
    return neighbours


def nearest_slices(heights_mm: Tensor, offsets_mm: list[float]) -> Tensor:
    """[n, 1 + offsets] slices of a scan: each, and the nearest to each offset; the slice itself where none lies within
    half the offset. Exported, too."""
    own = torch.arange(heights_mm.shape[0], device=heights_mm.device)
    columns = [own]
    for offset in offsets_mm:
        gap, nearest = (heights_mm[:, None] + offset - heights_mm[None, :]).abs().min(dim=1)
        columns.append(torch.where(gap <= abs(offset) / 2, nearest, own))
    return torch.stack(columns, dim=1)


def default_neighbours_mm(positions: SlicePositions) -> tuple[float, float]:
    """One slice on each side, at the median distance between slices."""
    gaps = np.concatenate([np.diff(positions.heights_mm[rows]) for rows in scan_rows(positions)])
    distance = max(float(np.median(gaps)) if len(gaps) else 0.0, MIN_DISTANCE_MM)
    return -distance, distance
