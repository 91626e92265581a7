"""Why maps of the plain gradient need many noise levels, or one less.

    python benchmarks/lowest_level.py MODEL COHORT [--slices 30] [--levels 10,60,600] [--strength 5]

The gradient is divided by 1 - a_t, which is 1e-4 at level 0. Slices with a lesion, evenly from the test split; the
paper's quantile, its largest divergence taken from these slices. Masks only measure.
"""

import argparse
import time
from pathlib import Path

import numpy as np

from anofpdm.cli.options import resolve_device
from anofpdm.cohorts import open_cohort
from anofpdm.cohorts.store import foreground
from anofpdm.evaluation.metrics.pixels import average_precision, dice
from anofpdm.evaluation.truth import Truth
from anofpdm.method.evidence import EvidenceSettings, spread_levels
from anofpdm.method.many_slices import EvidenceRequest, batch_for, gather_evidence, slice_seeds
from anofpdm.method.mask import MaskSettings, mask, mask_quantiles, median_filtered, thresholds
from anofpdm.network.predictor import load_trained
from anofpdm.options import Signal

SIGNALS = {Signal.GRADIENT: "all levels", Signal.GRADIENT_ABOVE: "without level 0"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("cohort", type=Path)
    parser.add_argument("--slices", type=int, default=30)
    parser.add_argument("--levels", default="10,60,600")
    parser.add_argument("--strength", type=float, default=5.0)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    device = resolve_device(args.device)
    model, cohort = load_trained(args.model, device), open_cohort(args.cohort)
    rows = cohort.rows("test")
    lesions = Truth(cohort).masks(rows)
    ill = np.flatnonzero(lesions.any(axis=(1, 2)))
    some = ill[np.linspace(0, len(ill) - 1, min(args.slices, len(ill))).round().astype(int)]
    rows, lesions = rows[some], lesions[some]
    inside = foreground(cohort.pixels(rows))
    print("| levels | of them | unhealthy DICE | AUPRC | s |\n| --- | --- | --- | --- | --- |")
    for count in (int(word) for word in args.levels.split(",")):
        start = time.perf_counter()
        settings = EvidenceSettings(spread_levels(count), model.channels(()))
        found = gather_evidence(
            model.predict,
            lambda few: cohort.pixels(rows[few]),
            slice_seeds(cohort.indices[rows]),
            EvidenceRequest(settings, [args.strength], device, batch_for(device), tuple(SIGNALS)),
        )
        seconds = time.perf_counter() - start
        for signal, words in SIGNALS.items():
            maps = found.with_signal(signal).maps[:, 0].float().cpu().numpy()
            largest = found.end_divergence[:, 0].double().cpu().numpy()
            cuts = thresholds(maps, mask_quantiles(largest, float(largest.max())), None, MaskSettings())
            smooth = median_filtered(maps)
            drawn = mask(smooth, cuts)
            ranked = average_precision(smooth[inside], lesions[inside])
            print(
                f"| {count} | {words} | {dice(drawn, lesions).mean():.3f} | {ranked:.3f} | {seconds:.0f} |", flush=True
            )


if __name__ == "__main__":
    main()
