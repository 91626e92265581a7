"""Training speed on a GPU, as a fraction of the matrix peak measured in the same run.

    python benchmarks/training.py

Slices are random, in batches of 64 with four modalities of 128 x 128. The first step includes compilation. FLOPs are
those of the forward pass times three, for forward and backward.
"""

import argparse
import time

import torch

from anofpdm.network.config import preset
from anofpdm.network.training.trainer import Trainer
from anofpdm.network.training.training_config import TrainingConfig
from anofpdm.study.bench.forward import matrix_peak, slice_flops

SIDE, MODALITIES, BATCH, STEPS = 128, 4, 64, 40


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.backends.cudnn.benchmark = True
    peak = matrix_peak(torch.device("cuda", 0), torch.bfloat16)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bf16 matrix peak {peak:.0f} TFLOP/s", flush=True)
    print("preset   first step   steps/s   TFLOP/s   of peak   GiB", flush=True)
    for name in ("small", "paper"):
        measure(name, peak)


def measure(name: str, peak: float) -> None:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    config = preset(name, MODALITIES)
    start = time.perf_counter()
    trainer = Trainer(config, TrainingConfig(batch=BATCH), torch.device("cuda", 0))
    slices = torch.rand(BATCH, MODALITIES, SIDE, SIDE).half().pin_memory()
    labels = torch.randint(0, 2, (BATCH,)).pin_memory()

    def step() -> torch.Tensor:
        return trainer.update(trainer.inputs(slices, labels))

    step().item()
    first = time.perf_counter() - start
    for _ in range(8):
        step()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(STEPS):
        step()
    end.record()
    torch.cuda.synchronize()
    speed = 1000 * STEPS / begin.elapsed_time(end)
    work = 3 * BATCH * slice_flops(config, SIDE) * speed / 1e12
    memory = torch.cuda.max_memory_allocated() / 2**30
    print(f"{name:7s} {first:9.1f} s {speed:9.2f} {work:9.0f} {work / peak:9.0%} {memory:6.1f}", flush=True)


if __name__ == "__main__":
    main()
