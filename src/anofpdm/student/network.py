"""The student: a plain U-Net that draws a lesion in one look, and says whether the slice has one."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anofpdm.errors import ConfigError


@dataclass(frozen=True)
class StudentConfig:
    modalities: tuple[str, ...]  # that it looks at, in the order of its channels
    size: int  # slices are size x size
    neighbours_mm: tuple[float, ...] = ()  # how far above (or below, if negative) the slices lie that it also sees
    width: int = 32
    multipliers: tuple[int, ...] = (1, 2, 4, 4)  # of the width, one per resolution

    def __post_init__(self) -> None:
        if not self.modalities or self.width < 8 or self.width % 8 or not self.multipliers:
            raise ConfigError(f"a student needs modalities and a width that 8 divides, got {self}")
        if self.size % self.side_divisor:
            raise ConfigError(f"slices of {self.size} x {self.size} cannot be halved {len(self.multipliers) - 1} times")

    @property
    def in_channels(self) -> int:
        return len(self.modalities) * (1 + len(self.neighbours_mm))

    @property
    def side_divisor(self) -> int:
        return 2 ** (len(self.multipliers) - 1)


class StudentNet(nn.Module):
    def __init__(self, config: StudentConfig):
        super().__init__()
        self.config = config
        widths = [config.width * multiplier for multiplier in config.multipliers]
        self.down = nn.ModuleList(
            Block(before, after) for before, after in zip([config.in_channels, *widths], widths, strict=False)
        )
        self.up = nn.ModuleList(
            Block(widths[depth] + widths[depth - 1], widths[depth - 1]) for depth in range(len(widths) - 1, 0, -1)
        )
        self.last = nn.Conv2d(widths[0], 1, 1)
        self.whole = nn.Linear(2 * widths[-1], 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [N, C, H, W] in -1 to 1 -> log odds of lesion [N, H, W], and of the whole slice being unhealthy [N]."""
        seen: list[Tensor] = []
        for depth, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if depth else x)
            seen.append(x)
        whole: Tensor = self.whole(torch.cat([x.mean(dim=(2, 3)), x.amax(dim=(2, 3))], dim=1))[:, 0]
        for depth, block in enumerate(self.up, start=2):
            x = block(torch.cat([F.interpolate(x, scale_factor=2), seen[-depth]], dim=1))
        odds: Tensor = self.last(x)[:, 0]
        return odds, whole


class Block(nn.Sequential):
    def __init__(self, channels: int, out_channels: int):
        layers: list[nn.Module] = []
        for before in (channels, out_channels):
            layers += [
                nn.Conv2d(before, out_channels, 3, padding=1, bias=False),
                nn.GroupNorm(8, out_channels),
                nn.SiLU(),
            ]
        super().__init__(*layers)


@torch.no_grad()
def log_odds(network: StudentNet, x: Tensor) -> tuple[Tensor, Tensor]:
    """[N, C, H, W] -> [N, H, W] and [N]: the mean of what it says of a slice and of its mirror image."""
    (odds, whole), (mirrored, whole_mirrored) = network(x), network(x.flip(-1))
    return ((odds + mirrored.flip(-1)) / 2).float(), ((whole + whole_mirrored) / 2).float()
