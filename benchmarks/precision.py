"""Precision of fp16 and bf16: error of the difference between the predictions for two labels.

    python benchmarks/precision.py MODEL COHORT [--slices 4]

Runs on a CPU. Outputs and weights of every layer, except the last norm and layer, are rounded to the type; the
difference between the predictions for HEALTHY and NULL is then compared with float32.
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anofpdm.cohorts import open_cohort
from anofpdm.labels import HEALTHY, NULL, UNHEALTHY
from anofpdm.network.predictor import load_trained
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.network.unet import UNet

LEVELS = (50, 300, 590)
KEPT = ("norm", "norm.norm", "last")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--slices", type=int, default=4)
    args = parser.parse_args()
    network = load_trained(args.model, torch.device("cpu")).predict.network
    cohort = open_cohort(args.cohort)
    rows = np.flatnonzero(cohort.labels == UNHEALTHY)
    rows = rows[np.linspace(0, len(rows) - 1, args.slices + 2).astype(int)[1:-1]]
    x0 = torch.from_numpy(cohort.pixels(rows))
    exact = [difference(network, x0, t) for t in LEVELS]
    print("level   difference (rms)   error in bf16   error in fp16")
    errors = {}
    for name, dtype in (("bf16", torch.bfloat16), ("fp16", torch.float16)):
        with rounded(network, dtype):
            errors[name] = [difference(network, x0, t) for t in LEVELS]
    for number, t in enumerate(LEVELS):
        off = [rms(errors[name][number] - exact[number]) for name in ("bf16", "fp16")]
        print(f"{t:5d}   {rms(exact[number]):16.5f}   {off[0]:13.5f}   {off[1]:13.5f}")
    print(f"largest activation: {largest_activation(network, x0):.0f}")


@torch.no_grad()
def difference(network: UNet, x0: Tensor, t: int) -> Tensor:
    noise = torch.randn(x0.shape, generator=torch.Generator().manual_seed(0))
    x = NoiseSchedule.linear().add_noise(x0, t, noise)
    labels = torch.tensor([HEALTHY, NULL]).repeat_interleave(len(x))
    healthy, unguided = network(torch.cat([x, x]), torch.full((2 * len(x),), t), labels).chunk(2)
    return healthy - unguided


@contextmanager
def rounded(network: UNet, dtype: torch.dtype) -> Iterator[None]:
    before = {name: weight.clone() for name, weight in network.state_dict().items()}
    network.load_state_dict({n: w if n.startswith("last") else w.to(dtype).float() for n, w in before.items()})

    def rounding(_module: nn.Module, _inputs: Any, output: Any) -> Any:
        return output.to(dtype).float() if isinstance(output, Tensor) else output

    hooks = [one.register_forward_hook(rounding) for name, one in network.named_modules() if name and name not in KEPT]
    yield
    for hook in hooks:
        hook.remove()
    network.load_state_dict(before)


def largest_activation(network: UNet, x0: Tensor) -> float:
    seen = [0.0]

    def look(_module: nn.Module, _inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor):
            seen.append(float(output.abs().max()))

    hooks = [one.register_forward_hook(look) for one in network.modules()]
    for t in LEVELS:
        difference(network, x0, t)
    for hook in hooks:
        hook.remove()
    return max(seen)


def rms(x: Tensor) -> float:
    return float(x.square().mean().sqrt())


if __name__ == "__main__":
    main()
