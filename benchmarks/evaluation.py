"""Memory and time of scoring, by number of slices.

    python benchmarks/evaluation.py [--slices 2000,10000]

Synthetic maps and masks of 128 x 128, 60 slices per patient; each size runs in its own process, whose peak memory is
reported.
"""

import argparse
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from anofpdm.evaluation.comparison.predictions import PredictionStore
from anofpdm.evaluation.comparison.scores import GroundTruth, Predictions, score_predictions

SIDE, SLICES_A_PATIENT, LESION = 128, 60, 24


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slices", default="2000,10000")
    args = parser.parse_args()
    print("slices   seconds   GiB at most", flush=True)
    for count in map(int, args.slices.split(",")):
        process = multiprocessing.get_context("spawn").Process(target=measure, args=(count,))
        process.start()
        process.join()


def measure(count: int) -> None:
    rng = np.random.default_rng(0)
    truth, inside = np.zeros((count, SIDE, SIDE), dtype=bool), np.zeros((count, SIDE, SIDE), dtype=bool)
    inside[:, 24:104, 24:104] = True
    truth[::2, 40 : 40 + LESION, 50 : 50 + LESION] = True
    known = GroundTruth(truth, inside, np.arange(count) // SLICES_A_PATIENT, np.ones(count))
    with tempfile.TemporaryDirectory() as folder:
        store = PredictionStore(Path(folder) / "store", count, SIDE, create=True)
        for start in range(0, count, 500):
            some = np.arange(start, min(start + 500, count))
            maps = rng.random((len(some), SIDE, SIDE), dtype=np.float32) + 0.5 * truth[some]
            store.put(
                some,
                maps=maps,
                masks=maps > 1.0,
                detected=np.asarray(truth[some].any(axis=(1, 2))),
                threshold=np.ones(len(some)),
            )
        begin = time.perf_counter()
        masks, detected, score = (np.array(store[name]) for name in ("masks", "detected", "score"))
        score_predictions(Predictions(store["maps"][:], masks, detected, score), known)
        seconds = time.perf_counter() - begin
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{count:6d}   {seconds:7.1f}   {memory:11.2f}", flush=True)


if __name__ == "__main__":
    main()
