"""The student with everything around it as one TorchScript module: a scan in, probabilities and mask out.

Slices are cut as in scans/slices.py, which is repeated here in torch; everything after that is the student's own code.
Tests compare both.
"""

import copy
import io
import warnings

import torch
from torch import Tensor, nn

from anofpdm.scans.slices import BRIGHT_PERCENTILE, LEAST_FOREGROUND
from anofpdm.student.decide import StudentDecision
from anofpdm.student.predict import BATCH_ON_CPU
from anofpdm.student.student import Student
from anofpdm.student.student_network import StudentNet, mirror_passes, nearest_slices


class BothPasses(nn.Module):
    """`mirror_passes` of a network."""

    def __init__(self, network: StudentNet):
        super().__init__()
        self.network = network

    def forward(self, slices: Tensor) -> tuple[Tensor, Tensor]:
        return mirror_passes(self.network, slices)


class WholeScan(nn.Module):
    """image [N, C, X, Y, Z], raw intensities, axes towards right, anterior and superior; spacing [N, 3] in mm ->
    [N, 2, X, Y, Z]: probability of lesion, and mask. The channels of a modality that a scan lacks are 0."""

    nominal_slice_mm: float | None

    def __init__(self, student: Student, network: nn.Module):
        super().__init__()
        self.network, self.size, self.batch = network, student.config.size, BATCH_ON_CPU
        self.decision = StudentDecision(student.calibration, self.size)
        self.neighbours_mm: list[float] = list(map(float, student.config.neighbours_mm))
        self.percentile, self.least_foreground = BRIGHT_PERCENTILE, LEAST_FOREGROUND
        self.nominal_slice_mm = student.expects.nominal_slice_mm

    def forward(self, image: Tensor, spacing: Tensor) -> Tensor:
        return torch.stack([self.segment(image[n].float(), spacing[n]) for n in range(image.shape[0])])

    def segment(self, volumes: Tensor, spacing: Tensor) -> Tensor:
        """[C, X, Y, Z] -> [2, X, Y, Z]."""
        axial = volumes.permute(3, 0, 2, 1).flip([2, 3])  # [z, C, y, x]: anterior row and right column first
        result = torch.zeros([axial.shape[0], 2, axial.shape[2], axial.shape[3]], device=volumes.device)
        dx, dy, dz = float(spacing[0]), float(spacing[1]), float(spacing[2])
        nominal = self.nominal_slice_mm
        if nominal is not None:
            dz = nominal
        kept = (axial > 0).any(dim=1).float().mean(dim=[1, 2]) >= self.least_foreground
        if bool(kept.any()):
            indices = torch.nonzero(kept)[:, 0]
            pixel = max(axial.shape[2] * dy, axial.shape[3] * dx) / self.size
            slices = self.to_network(self.normalise(axial)[indices], dy, dx, pixel)
            decided = self.decide(slices, indices.double() * dz)
            result[indices] = self.to_native(decided, axial.shape[2], dy, axial.shape[3], dx, pixel)
            result[:, 1] = (result[:, 1] >= 0.5).float()
        return result.flip([2, 3]).permute(1, 3, 2, 0)

    def decide(self, slices: Tensor, heights_mm: Tensor) -> Tensor:
        """Slices [n, C, size, size] -> [n, 2, size, size]: probability of lesion, and levels, 0.5 or more in masks."""
        rows = nearest_slices(heights_mm, self.neighbours_mm)
        passes: list[Tensor] = []
        slice_passes: list[Tensor] = []
        for start in range(0, slices.shape[0], self.batch):
            stacked = slices[rows[start : start + self.batch]].flatten(1, 2)  # [b, k * C, size, size]
            of_pixels, of_slices = self.network(stacked.contiguous(memory_format=torch.channels_last))
            passes.append(of_pixels)
            slice_passes.append(of_slices)
        decided = self.decision(torch.cat(passes), torch.cat(slice_passes), heights_mm)
        return torch.stack([decided.maps, decided.outlines], dim=1)

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


def compile_whole_scan(student: Student) -> bytes:
    """The contents of a TorchScript file."""
    config = student.config
    # As in student/predict.py: fast on a CPU, and group norms round in the same way.
    network = BothPasses(copy.deepcopy(student.network).cpu().eval())
    network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    example = torch.zeros(2, config.in_channels, config.size, config.size).contiguous(memory_format=torch.channels_last)
    buffer = io.BytesIO()
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(network, example, check_trace=False)
        torch.jit.save(torch.jit.script(WholeScan(student, traced).eval()), buffer)
    return buffer.getvalue()
