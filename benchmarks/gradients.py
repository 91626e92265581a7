"""Time of a convolution and of its gradients on this CPU, with oneDNN and without."""

import argparse
import platform
import time

import torch
from torch import Tensor, nn

SIDES = {8: 32, 16: 32, 32: 64, 64: 64}  # channels: pixels along a side
BATCH, REPEATS = 8, 5


def milliseconds(convolution: nn.Module, x: Tensor, *, onednn: bool) -> tuple[float, float]:
    """Of the forward and the backward pass, the fastest of several."""
    with torch.backends.mkldnn.flags(enabled=onednn):
        forward, backward = [], []
        for _ in range(REPEATS + 1):
            start = time.perf_counter()
            y = convolution(x)
            middle = time.perf_counter()
            y.backward(torch.ones_like(y))
            forward.append(middle - start)
            backward.append(time.perf_counter() - middle)
    return 1000 * min(forward), 1000 * min(backward)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--channels", type=int, nargs="+", choices=SIDES, default=list(SIDES))
    chosen = parser.parse_args().channels
    print(
        f"{platform.machine()}, torch {torch.__version__}, {torch.get_num_threads()} threads, batch {BATCH}, 3 x 3, ms"
    )
    print("layout         channels  pixels   forward: oneDNN   torch   backward: oneDNN   torch")
    for layout in (torch.contiguous_format, torch.channels_last):
        for channels in chosen:
            side = SIDES[channels]
            convolution = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
            convolution.weight.data = convolution.weight.data.contiguous(memory_format=layout)
            x = torch.randn(BATCH, channels, side, side).contiguous(memory_format=layout).requires_grad_()
            (onednn, onednn_back), (plain, back) = (milliseconds(convolution, x, onednn=on) for on in (True, False))
            name = "channels last" if layout == torch.channels_last else "plain"
            print(
                f"{name:13} {channels:9} {side:4}x{side:<4} {onednn:14.1f} {plain:7.1f} {onednn_back:18.1f} {back:7.1f}"
            )


if __name__ == "__main__":
    main()
