"""Time of simplex noise: ours and the package opensimplex, on the same machine in one run.

    python benchmarks/simplex.py [--batch 50] [--channels 4] [--size 128] [--rounds 3] [--device cpu]

Ours generates all octaves of the whole batch, with one level for all slices (as in sampling: median of the rounds, each
at a new level) or one level per slice (as in training: one round). opensimplex, as installed by pip (without numba), is
timed on one octave of one channel of one slice, median of the rounds; its time per slice is scaled by octaves and
channels, not measured.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from anofpdm.network.simplex import FIRST_WAVELENGTH, OCTAVES, random_permutations, simplex_noise

LEVEL = 200


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--channels", type=int, default=4)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    device, size = torch.device(args.device), args.size
    fields = random_permutations(args.batch * args.channels, torch.Generator(device).manual_seed(0))
    each = torch.full((len(fields),), LEVEL, device=device)
    simplex_noise(fields, LEVEL - 1, size, size)  # to warm up
    simplex_noise(fields[:2], each[:2], size, size)

    theirs = timed(lambda _: opensimplex_octave(size), args.rounds, device) * OCTAVES * args.channels
    for_all = timed(lambda n: simplex_noise(fields, LEVEL + n, size, size), args.rounds, device) / args.batch
    for_each = timed(lambda _: simplex_noise(fields, each, size, size), 1, device) / args.batch
    where = f"{device}, {torch.get_num_threads()} threads" if device.type == "cpu" else torch.cuda.get_device_name()
    print(f"{args.batch} slices of {args.channels} x {size} x {size}, {where}")
    print("                           ms/slice   times faster")
    print(f"opensimplex, scaled       {1000 * theirs:9.1f}")
    print(f"ours, one level for all   {1000 * for_all:9.1f} {theirs / for_all:14.0f}")
    print(f"ours, a level for each    {1000 * for_each:9.1f} {theirs / for_each:14.0f}")


def timed(make: Callable[[int], object], rounds: int, device: torch.device) -> float:
    """Median seconds of a round; `make` receives its number."""
    seconds = []
    for number in range(rounds):
        start = time.perf_counter()
        make(number)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def opensimplex_octave(size: int) -> object:
    """One channel, one wavelength."""
    import opensimplex

    pixels = np.arange(size) / FIRST_WAVELENGTH
    return opensimplex.noise3array(pixels, pixels, np.array([LEVEL / FIRST_WAVELENGTH]))


if __name__ == "__main__":
    main()
