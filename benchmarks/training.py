"""Training speed on a GPU, as a fraction of the matrix peak measured in the same run.

    python benchmarks/training.py [--presets small,paper] [--batch 64] [--steps 40]

Slices are random, 4 modalities of 128 x 128. The first step includes compilation. FLOPs are those of the forward pass
times three, for forward and backward.
"""

import argparse
import time

import torch
from torch.utils.flop_counter import FlopCounterMode

from anofpdm.network.config import UNetConfig, preset
from anofpdm.network.training.trainer import Trainer
from anofpdm.network.training.training_config import TrainingConfig
from anofpdm.network.unet import UNet
from anofpdm.study.bench.forward import matrix_peak

SIDE, MODALITIES = 128, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", default="small,paper")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--plain", action="store_true", help="also step by step, without recording")
    args = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    peak = matrix_peak(torch.device("cuda", 0), torch.bfloat16)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bf16 matrix peak {peak:.0f} TFLOP/s", flush=True)
    print("preset  way        first step   steps/s   TFLOP/s   of peak   GiB", flush=True)
    for name in args.presets.split(","):
        for plain in (False, True) if args.plain else (False,):
            measure(name, args.batch, args.steps, peak, plain=plain)


def measure(name: str, batch: int, steps: int, peak: float, *, plain: bool) -> None:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    config = preset(name, MODALITIES)
    start = time.perf_counter()
    trainer = Trainer(config, TrainingConfig(batch=batch), torch.device("cuda", 0))
    trainer._uses_graph = not plain
    slices = torch.rand(batch, MODALITIES, SIDE, SIDE).half().pin_memory()
    labels = torch.randint(0, 2, (batch,)).pin_memory()

    def step() -> torch.Tensor:
        return trainer.update(trainer.inputs(slices, labels))

    step().item()
    first = time.perf_counter() - start
    for _ in range(8):
        step()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(steps):
        step()
    end.record()
    torch.cuda.synchronize()
    speed = 1000 * steps / begin.elapsed_time(end)
    work = 3 * batch * forward_flops(config) * speed / 1e12
    memory = torch.cuda.max_memory_allocated() / 2**30
    way = "eager" if plain else "recorded"
    print(f"{name:7s} {way:9s} {first:9.1f} s {speed:9.2f} {work:9.0f} {work / peak:9.0%} {memory:6.1f}", flush=True)


def forward_flops(config: UNetConfig) -> float:
    with torch.device("meta"):
        network, x, t = UNet(config), torch.empty(1, MODALITIES, SIDE, SIDE), torch.zeros(1, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        network(x, t, t)
    return float(counter.get_total_flops())


if __name__ == "__main__":
    main()
