"""The student with everything around it as one TorchScript module: a scan in, probabilities and mask out.

It repeats scans/slices.py, student/student.py and method/mask.py in the subset of Python that TorchScript compiles.
Tests compare the two.
"""

import copy
import io
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anofpdm.method.context import REACH
from anofpdm.method.mask import SMALLEST, smallest_pixels
from anofpdm.scans.slices import BRIGHT_PERCENTILE, LEAST_FOREGROUND
from anofpdm.student.faint import LOWEST
from anofpdm.student.linked import CLEAR
from anofpdm.student.outlines import SPREAD
from anofpdm.student.predict import BATCH_ON_CPU
from anofpdm.student.student import DetectBy, Student
from anofpdm.student.student_network import StudentNet, mirror_mean


class MirrorMean(nn.Module):
    """Mean logits of each slice and its mirror image."""

    def __init__(self, network: StudentNet):
        super().__init__()
        self.network = network

    def forward(self, slices: Tensor) -> tuple[Tensor, Tensor]:
        return mirror_mean(self.network, slices)


class WholeScan(nn.Module):
    """image [N, C, X, Y, Z], raw intensities, axes towards right, anterior and superior; spacing [N, 3] in mm ->
    [N, 2, X, Y, Z]: probability of lesion, and mask. The channels of a modality that a scan lacks are 0."""

    def __init__(self, student: Student, network: nn.Module):
        super().__init__()
        calibration, detector, size = student.calibration, student.calibration.detector, student.config.size
        self.network = network
        self.size = size
        self.neighbours_mm: list[float] = list(map(float, student.config.neighbours_mm))
        self.context_mm = float(calibration.context_mm)
        self.detection_mm = float(calibration.detection_mm)
        self.by_pixels = calibration.detect_by != DetectBy.SLICE
        self.by_slice = calibration.detect_by != DetectBy.PIXELS
        self.centre: list[float] = detector.centre.tolist()  # of one number per slice, or two
        self.scale: list[float] = detector.scale.tolist()
        self.weights: list[float] = detector.weights.tolist()
        self.offset = float(detector.offset)
        self.faint_span = float(calibration.faint_span or 0.0)  # 0: none
        self.lowest = LOWEST
        self.spread = SPREAD
        self.smallest = smallest_pixels((size, size), calibration.smallest)
        self.clear = CLEAR
        self.smallest_lesion = max(1, smallest_pixels((size, size), SMALLEST))
        self.percentile, self.least_foreground = BRIGHT_PERCENTILE, LEAST_FOREGROUND
        self.reach, self.batch = REACH, BATCH_ON_CPU
        nominal = None if student.expects is None else student.expects.nominal_slice_mm
        self.nominal_slice_mm = float(nominal or 0.0)  # 0: the distance in the header counts

    def forward(self, image: Tensor, spacing: Tensor) -> Tensor:
        results: list[Tensor] = []
        for n in range(image.shape[0]):
            results.append(self.segment(image[n].float(), spacing[n].double()))
        return torch.stack(results)

    def segment(self, volumes: Tensor, spacing: Tensor) -> Tensor:
        """[C, X, Y, Z] -> [2, X, Y, Z]."""
        axial = volumes.permute(3, 0, 2, 1).flip([2, 3])  # [z, C, y, x]: anterior row and right column first
        result = torch.zeros([axial.shape[0], 2, axial.shape[2], axial.shape[3]], device=volumes.device)
        dx, dy, dz = float(spacing[0]), float(spacing[1]), float(spacing[2])
        if self.nominal_slice_mm > 0:
            dz = self.nominal_slice_mm
        kept = (axial > 0).any(dim=1).float().mean(dim=[1, 2]) >= self.least_foreground
        if bool(kept.any()):
            indices = torch.nonzero(kept)[:, 0]
            pixel = max(axial.shape[2] * dy, axial.shape[3] * dx) / self.size
            pixels = self.to_network(self.normalise(axial)[indices], dy, dx, pixel)
            found = self.decide(pixels, indices.double() * dz)
            result[indices] = self.to_native(found, axial.shape[2], dy, axial.shape[3], dx, pixel)
            result[:, 1] = (result[:, 1] >= 0.5).float()
        return result.flip([2, 3]).permute(1, 3, 2, 0)

    def normalise(self, axial: Tensor) -> Tensor:
        """Intensities of each modality from 0 to 1, where 1 is the percentile of its foreground."""
        scaled = torch.zeros_like(axial)
        for channel in range(axial.shape[1]):
            volume = axial[:, channel]
            foreground = volume[volume > 0]
            if foreground.numel() > 0:
                rank = self.percentile / 100 * (foreground.numel() - 1)
                below = int(rank)
                low = float(foreground.kthvalue(below + 1).values)
                high = float(foreground.kthvalue(min(below + 2, foreground.numel())).values)
                scaled[:, channel] = (volume * (1 / (low + (rank - below) * (high - low)))).clamp(0, 1)
        return scaled

    def to_network(self, planes: Tensor, dy: float, dx: float, pixel: float) -> Tensor:
        """[n, C, y, x] -> [n, C, size, size], from -1 to 1: mean over the area of each pixel."""
        rows = self.overlaps(planes.shape[2], dy, self.size, pixel, max(pixel, dy), planes.device)
        columns = self.overlaps(planes.shape[3], dx, self.size, pixel, max(pixel, dx), planes.device)
        return rows @ planes @ columns.t() * 2 - 1

    def to_native(self, slices: Tensor, ny: int, dy: float, nx: int, dx: float, pixel: float) -> Tensor:
        """[n, 2, size, size] -> [n, 2, y, x]: linear interpolation."""
        rows = self.overlaps(self.size, pixel, ny, dy, pixel, slices.device)
        columns = self.overlaps(self.size, pixel, nx, dx, pixel, slices.device)
        rows, columns = rows / rows.sum(dim=1, keepdim=True), columns / columns.sum(dim=1, keepdim=True)
        return rows @ slices @ columns.t()

    def overlaps(self, n_in: int, d_in: float, n_out: int, d_out: float, width: float, device: torch.device) -> Tensor:
        """[n_out, n_in]: the fraction of a box around each output cell that each input cell covers."""
        centres_in = (torch.arange(n_in, device=device).double() - (n_in - 1) / 2) * d_in
        centres_out = (torch.arange(n_out, device=device).double() - (n_out - 1) / 2) * d_out
        distance = (centres_out[:, None] - centres_in[None, :]).abs()
        overlap = ((d_in + width) / 2 - distance).clamp(0, min(d_in, width))
        return (torch.where(overlap < 1e-6 * width, torch.zeros_like(overlap), overlap) / width).float()

    def decide(self, pixels: Tensor, heights: Tensor) -> Tensor:
        """Slices [n, C, size, size] -> [n, 2, size, size]: probability of lesion, and levels, 0.5 or more in masks."""
        pixel_logits, slice_logits = self.predict(pixels, self.neighbour_rows(heights))
        logits = self.smooth(pixel_logits, heights, self.context_mm)
        score = self.score(pixel_logits, slice_logits, heights)
        rank = min(self.size * self.size, self.smallest + 1)
        raised = logits - self.lower_thresholds(logits)
        raised = raised - self.kth_largest(raised, rank).clamp(max=0.0)[:, None, None]
        drawn, has_large = self.drop_unlinked(raised >= 0, heights)
        shown = (score >= 0) & (has_large | (score >= self.clear))
        levels = self.outline_levels(raised, drawn & shown[:, None, None])
        return torch.stack([logits.sigmoid(), levels], dim=1)

    def outline_levels(self, raised: Tensor, masks: Tensor) -> Tensor:
        """As student/outlines.py."""
        levels = (raised / self.spread).clamp(-1, 1) / 2 + 0.5
        drawn = masks | ((raised < 0) & masks.flatten(1).any(dim=1)[:, None, None])
        return torch.where(drawn, levels, torch.zeros_like(levels))

    def score(self, pixel_logits: Tensor, slice_logits: Tensor, heights: Tensor) -> Tensor:
        """[n]: unhealthy from 0 on."""
        values: list[Tensor] = []
        if self.by_pixels:
            pixels_mm = self.context_mm if self.by_slice else self.detection_mm
            values.append(self.kth_largest(self.smooth(pixel_logits, heights, pixels_mm), self.smallest_lesion))
        if self.by_slice:
            values.append(self.smooth(slice_logits, heights, self.detection_mm))
        score = torch.full_like(heights, self.offset)
        for number, value in enumerate(values):
            score = score + (value.double() - self.centre[number]) / self.scale[number] * self.weights[number]
        return score

    def lower_thresholds(self, logits: Tensor) -> Tensor:
        """As student/faint.py: the threshold at each pixel [n, size, size]. Slices from the lowest to the highest."""
        if self.faint_span <= 0:
            return torch.zeros_like(logits)
        inside = logits > self.lowest
        below = torch.full_like(logits, self.lowest)
        peaks = torch.where(inside, logits, below)
        spreading = True
        while spreading:  # every lesion takes its largest logit
            spread = F.max_pool3d(peaks[None, None], 3, 1, 1)[0, 0]
            spread = torch.where(inside, spread, below)
            spreading = not torch.equal(spread, peaks)
            peaks = spread
        lowered = (peaks - self.faint_span).clamp(self.lowest, 0.0)
        return torch.where(peaks >= 0, lowered, torch.zeros_like(lowered))

    def predict(self, pixels: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Logits of lesion [n, size, size], and of each slice being unhealthy [n]."""
        of_pixels: list[Tensor] = []
        of_slices: list[Tensor] = []
        for start in range(0, pixels.shape[0], self.batch):
            stacked = pixels[rows[start : start + self.batch]].flatten(1, 2)  # [b, k * C, size, size]
            logits, slice_logits = self.network(stacked.contiguous(memory_format=torch.channels_last))
            of_pixels.append(logits)
            of_slices.append(slice_logits)
        return torch.cat(of_pixels), torch.cat(of_slices)

    def neighbour_rows(self, heights: Tensor) -> Tensor:
        """[n, 1 + neighbours]: each slice, and the nearest to each offset, or the slice itself if none is near."""
        own = torch.arange(heights.shape[0], device=heights.device)
        columns = [own]
        for offset in self.neighbours_mm:
            gaps = (heights[:, None] + offset - heights[None, :]).abs()
            nearest = gaps.argmin(dim=1)
            near = gaps.gather(1, nearest[:, None])[:, 0] <= abs(offset) / 2
            columns.append(torch.where(near, nearest, own))
        return torch.stack(columns, dim=1)

    def smooth(self, values: Tensor, heights: Tensor, sigma_mm: float) -> Tensor:
        """[n, ...]: Gaussian across slices."""
        if sigma_mm <= 0:
            return values
        apart = (heights[:, None] - heights[None, :]).abs() / sigma_mm
        weights = torch.where(apart <= self.reach, torch.exp(-apart * apart / 2), torch.zeros_like(apart))
        weights = (weights / weights.sum(dim=1, keepdim=True)).float()
        return (weights @ values.reshape(values.shape[0], -1)).reshape(values.shape)

    def kth_largest(self, images: Tensor, k: int) -> Tensor:
        """[n, size, size] -> [n]."""
        return images.flatten(1).topk(k, dim=1).values[:, -1]

    def drop_unlinked(self, above: Tensor, heights: Tensor) -> tuple[Tensor, Tensor]:
        """As student/linked.py: bool [n, size, size] without components of `smallest` pixels or fewer, unless they
        overlap a kept component of the next or previous slice; and bool [n], whether a slice has a larger one."""
        labels, sizes = self.label_components(above)
        kept = above & (sizes > self.smallest)
        has_large = kept.flatten(1).any(dim=1)
        order = heights.argsort()
        for rows in [order, order.flip(0)]:
            for number in range(rows.shape[0] - 1):
                row, following = int(rows[number]), int(rows[number + 1])
                touched = labels[following][kept[row]]
                touched = touched[touched > 0]
                if touched.numel() > 0:
                    kept[following] = kept[following] | torch.isin(labels[following], touched)
        return kept, has_large

    def label_components(self, above: Tensor) -> tuple[Tensor, Tensor]:
        """Of bool [n, size, size], by pixel: the number of its component (8 neighbours), and the size of that."""
        n, pixels = above.shape[0], self.size * self.size
        inside = above.float()
        numbers = torch.arange(1, pixels + 1, device=above.device).float()  # exact up to 4096 x 4096
        labels = inside * numbers.reshape(1, self.size, self.size)
        spreading = True
        while spreading:  # every component takes its largest number
            spread = F.max_pool2d(labels[:, None], 3, 1, 1)[:, 0] * inside
            spreading = not torch.equal(spread, labels)
            labels = spread
        flat = labels.flatten(1).long()
        sizes = torch.zeros([n, pixels + 1], device=above.device).scatter_add(1, flat, torch.ones_like(flat).float())
        return labels, sizes.gather(1, flat).reshape(above.shape)


def compile_whole_scan(student: Student) -> bytes:
    """The contents of a TorchScript file."""
    config = student.config
    copied = copy.deepcopy(student.network).cpu().eval()
    # As in student/cpu_passes.py: fast on a CPU, and group norms round in the same way.
    network = MirrorMean(copied).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    shape = (2, config.in_channels, config.size, config.size)
    example = torch.zeros(shape).contiguous(memory_format=torch.channels_last)
    buffer = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(network, example, check_trace=False)
        module = torch.jit.script(WholeScan(student, traced).eval())
        torch.jit.save(module, buffer)
    return buffer.getvalue()
