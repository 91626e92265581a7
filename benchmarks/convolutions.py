"""The diffusion engine's network on this CPU: direct or Winograd convolutions, threads within layers or over slices.

    python benchmarks/convolutions.py [MODEL]

CPU seconds, which other programs on the machine disturb least, and seconds; the fastest of several turns.
"""

import argparse
import os
import platform
import time
from collections.abc import Callable
from functools import partial
from unittest import mock

os.environ.setdefault("MIMALLOC_PURGE_DELAY", "100")  # before torch is imported; see keep_freed_memory

import torch
from torch import nn

from anofpdm.labels import HEALTHY, NULL
from anofpdm.models.registry import model_folder
from anofpdm.network import predictor
from anofpdm.network.cpu import SliceThreads
from anofpdm.network.predictor import NoisePredictor, TrainedModel, load_trained
from anofpdm.network.winograd import WinogradConvolution
from anofpdm.util.memory import keep_freed_memory

LAYERS = ((32, 32, 64), (64, 32, 64), (64, 64, 64), (128, 64, 32), (64, 64, 16), (192, 96, 8))  # in, out, pixels
BATCH = 8


def seconds(function: Callable[[], object], turns: int) -> tuple[float, float]:
    """CPU seconds and seconds."""
    found = []
    for _ in range(turns + 1):
        cpu, start = time.process_time(), time.perf_counter()
        function()
        found.append((time.process_time() - cpu, time.perf_counter() - start))
    return min(cpu for cpu, _ in found), min(wall for _, wall in found)


def time_layers(turns: int) -> None:
    print("  in  out  pixels   direct  Winograd   ms of CPU, one thread, 16 slices")
    for channels, out, side in LAYERS:
        direct = nn.Conv2d(channels, out, 3, padding=1, bias=False).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        winograd = WinogradConvolution(direct)
        x = torch.randn(2 * BATCH, channels, side, side).contiguous(memory_format=torch.channels_last)
        plain, fast = (1000 * seconds(partial(layer, x), turns)[0] for layer in (direct, winograd))
        print(f"{channels:4} {out:4}  {side:2} x {side:2}  {plain:7.1f}  {fast:8.1f}")


def load(name: str, *, winograd: bool) -> TrainedModel:
    with mock.patch.object(predictor, "is_faster_here", return_value=winograd):
        return load_trained(model_folder(name), torch.device("cpu"))


def time_network(name: str, turns: int) -> None:
    print(f"\n{name}, 8 slices, two labels       CPU s     s")
    threads = torch.get_num_threads()
    for winograd in (False, True):
        model = load(name, winograd=winograd)
        channels = len(model.modalities)
        x = torch.randn(BATCH, channels, model.size, model.size)
        for over_slices in (False, True):
            use_threads(model.predict, threads if over_slices else 0)
            cpu, wall = seconds(partial(model.predict.predict_pair, x, 300, (HEALTHY, NULL)), turns)
            kind = "Winograd" if winograd else "direct"
            print(f"{kind:8}, threads {'over slices  ' if over_slices else 'within layers'}   {cpu:5.2f} {wall:5.2f}")


def use_threads(predict: NoisePredictor, count: int) -> None:
    predict._threads = SliceThreads(count) if count > 1 else None


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="phantom-tumour")
    parser.add_argument("--turns", type=int, default=5)
    args = parser.parse_args()
    keep_freed_memory()
    threads = torch.get_num_threads()
    print(f"{platform.machine()}, torch {torch.__version__}, {threads} threads\n")
    torch.set_num_threads(1)
    time_layers(args.turns)
    torch.set_num_threads(threads)
    time_network(args.model, args.turns)


if __name__ == "__main__":
    main()
