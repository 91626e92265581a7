"""Differences in DICE between methods, on the same slices: the paper's claims and ours, or any two evaluations.

    python benchmarks/claims.py claims SCORES [ABLATIONS]
    python benchmarks/claims.py gain --of SCORES --over SCORES [--method anofpdm-student] [--than NAME]

SCORES are folders of `anofpdm evaluate`, of which the first noise seed is read; ABLATIONS is a folder of `anofpdm
ablate` for the same model. Differences are paired by slice, with 95% intervals from a bootstrap over patients. A claim
is held if the interval lies above 0, not held if it lies below, open if it contains 0. Claims about ablations are
measured on the split of the ablations, without intervals.

claims: SCORES come from `anofpdm evaluate --method all`. gain: of a method in one folder over a method in another.
"""

import argparse
import csv
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anofpdm.scoring.metrics.bootstrap import mean_estimate

TUNED = ("anoddpm-gaussian", "anoddpm-simplex", "ddim-classifier", "ddim-classifier-free")
GRADIENTS = ("gradient", "gradient-above", "gradient-last", "gradient-weighted")
OF_THE_PAPER = (
    *(("DDIM encoding beats DDPM", "unhealthy", "anofpdm-ddim", "anofpdm-ddpm"),),
    *(
        ("aggregation beats the last map", "unhealthy", f"anofpdm-{encoding}", f"anofpdm-{encoding}-last")
        for encoding in ("ddim", "ddpm")
    ),
    *(
        ("labels beat reconstruction tuned with masks", "unhealthy", "anofpdm-ddim", rival)
        for rival in (*TUNED, "cg-cdm")
    ),
    *(("labels beat reconstruction tuned with masks", "mixed", "anofpdm-ddim", rival) for rival in TUNED),
    *(("gradients alone are worse", "unhealthy", "anofpdm-ddim", rival) for rival in GRADIENTS),
)
OURS = (
    ("the curve detector", "mixed", "anofpdm-curve", "anofpdm-ddim"),
    ("the threshold from healthy slices", "unhealthy", "anofpdm-healthy", "anofpdm-curve"),
    ("context across slices", "unhealthy", "anofpdm-context", "anofpdm-curve"),
    ("the share of the peak", "unhealthy", "anofpdm-peak", "anofpdm-curve"),
    ("guidance chosen by maps", "unhealthy", "anofpdm-by-map", "anofpdm-curve"),
    *(("all of it", setup, "anofpdm-ours", "anofpdm-ddim") for setup in ("unhealthy", "mixed")),
    *(
        ("errors agreeing with gradients", setup, "anofpdm-agreement", "anofpdm-ours")
        for setup in ("unhealthy", "mixed")
    ),
    *(("the student", setup, "anofpdm-student", "anofpdm-ours") for setup in ("unhealthy", "mixed")),
    *(
        ("the student, against masks", setup, "anofpdm-student", rival)
        for rival in ("ddim-classifier-free", "ddim-classifier")
        for setup in ("unhealthy", "mixed")
    ),
)
VERDICTS = {1: "held", -1: "not held", 0: "open"}


@dataclass(frozen=True)
class Slices:
    """DICE of the first seed by method and setup; the slices of a setup have one order."""

    dice: dict[tuple[str, str], np.ndarray]
    places: dict[str, list[tuple[str, str, str]]]  # by setup: patient, scan, slice

    @classmethod
    def read(cls, path: Path) -> "Slices":
        by_run: dict[tuple[str, str], list[dict[str, str]]] = {}
        with path.open() as file:
            for row in csv.DictReader(file):
                if row["seed"] == "0":
                    by_run.setdefault((row["method"], row["setup"]), []).append(row)
        places = {setup: _places(rows) for (_, setup), rows in by_run.items()}
        for (method, setup), rows in by_run.items():
            assert _places(rows) == places[setup], f"{path}: {method} was evaluated on other slices"
        return cls(
            {run: np.array([float(row["dice"]) for row in rows]) for run, rows in by_run.items()},
            places,
        )

    def gain_cells(self, setup: str, gains: np.ndarray) -> str:
        """Two table cells, of differences [slices]: the mean in percent with its interval, and the verdict."""
        low, high = mean_estimate(gains, np.array([patient for patient, _, _ in self.places[setup]])).interval
        verdict = VERDICTS[int(low > 0) - int(high < 0)]
        return f"{100 * gains.mean():+.1f} ({100 * low:+.1f} to {100 * high:+.1f}) | {verdict}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    claims = commands.add_parser("claims")
    claims.set_defaults(run=print_claims)
    claims.add_argument("scores", type=Path)
    claims.add_argument("ablations", type=Path, nargs="?")
    gain = commands.add_parser("gain")
    gain.set_defaults(run=print_gain)
    gain.add_argument("--of", type=Path, required=True)
    gain.add_argument("--over", type=Path, required=True)
    gain.add_argument("--method", default="anofpdm-student")
    gain.add_argument("--than", help="method of --over; default: the same")
    args = parser.parse_args()
    args.run(args)


def print_claims(args: argparse.Namespace) -> None:
    slices = Slices.read(args.scores / "slices.csv")
    parts = (("The paper's claims", "comparison", OF_THE_PAPER), ("What is ours", "what it is added to", OURS))
    for title, heading, claims in parts:
        print(f"{title}:\n\n| | setup | {heading} | gain in DICE | |\n| --- | --- | --- | --- | --- |")
        print("\n".join(_compared(slices, claims)), end="\n\n")
    if args.ablations is not None:
        ablations = json.loads((args.ablations / "ablations.json").read_text())["ablations"]
        print("From the ablations:\n\n| | here | |\n| --- | --- | --- |")
        print("\n".join(_from_ablations(ablations)))


def print_gain(args: argparse.Namespace) -> None:
    ours, others = (Slices.read(folder / "slices.csv") for folder in (args.of, args.over))
    print("| setup | DICE | over | gain | |\n| --- | --- | --- | --- | --- |")
    for setup in ("unhealthy", "mixed"):
        if ours.places.get(setup) != others.places.get(setup):
            sys.exit(f"gain: the folders have different {setup} slices")
        dice, before = read_dice(ours, args.method, setup), read_dice(others, args.than or args.method, setup)
        cells = ours.gain_cells(setup, dice - before)
        print(f"| {setup} | {100 * dice.mean():.1f} | {100 * before.mean():.1f} | {cells} |")


def read_dice(slices: Slices, method: str, setup: str) -> np.ndarray:
    if (method, setup) not in slices.dice:
        sys.exit(f"gain: {method} was not evaluated on {setup} slices")
    return slices.dice[method, setup]


def _compared(slices: Slices, claims: Iterable[tuple[str, str, str, str]]) -> Iterable[str]:
    """Claims about methods that were evaluated."""
    for claim, setup, method, other in claims:
        if {(method, setup), (other, setup)} <= slices.dice.keys():
            cells = slices.gain_cells(setup, slices.dice[method, setup] - slices.dice[other, setup])
            yield f"| {claim} | {setup} | {method} - {other} | {cells} |"


def _from_ablations(ablations: dict[str, Any]) -> Iterable[str]:
    r = ablations["lesion_size"]["pearson_r"]
    grows = "- | -" if r is None else f"r = {r:.2f} | {_if(r > 0.5)}"
    yield f"| divergence at the end step grows with lesion size (r = 0.7 in the paper) | {grows} |"
    ends = {row["factor"]: row["unhealthy_dice"] for row in ablations["end_step"]["rows"]}
    best = max(ends, key=lambda factor: ends[factor])
    words = f"DICE {_percent(ends[1.0])} at t_e, highest {_percent(ends[best])} at {best:g} t_e"
    yield f"| the best end step is t_e | {words} | {_if(best == 1)} |"
    rows = ablations["threshold"]["rows"]
    dynamic = next(row["unhealthy_dice"] for row in rows if row["threshold"] == "dynamic")
    fixed = {row["quantile"]: row["unhealthy_dice"] for row in rows if row["threshold"] == "fixed"}
    best = max(fixed, key=lambda quantile: fixed[quantile])
    beaten = sum(dynamic > dice for dice in fixed.values())
    words = f"DICE {_percent(dynamic)}, better than {beaten} of {len(fixed)} fixed quantiles"
    words += f"; the best of them, {best:g}, has {_percent(fixed[best])}"
    yield f"| dynamic beats fixed thresholds | {words} | {_if(beaten == len(fixed))} |"
    quality = {row["variant"]: (row["unhealthy_dice"], row["auprc"]) for row in ablations["variants"]["rows"]}
    pairs = (
        ("DDIM encoding beats DDPM", "anofpdm-ddim", ("anofpdm-ddpm",)),
        ("aggregation beats the last map", "anofpdm-ddim", ("anofpdm-ddim-last",)),
        ("gradients alone are worse", "anofpdm-ddim", tuple(name for name in GRADIENTS if name in quality)),
    )
    for claim, method, others in pairs:
        if not others or not {method, *others} <= quality.keys():
            continue
        named = ", ".join(f"{name} {_percents(quality[name])}" for name in (method, *others))
        best = all(quality[method][0] > quality[name][0] for name in others)
        yield f"| {claim} | DICE / AUPRC: {named} | {_if(best)} |"


def _places(rows: Sequence[dict[str, str]]) -> list[tuple[str, str, str]]:
    return [(row["patient"], row["scan"], row["slice"]) for row in rows]


def _if(true: bool) -> str:
    return VERDICTS[1 if true else -1]


def _percent(share: float) -> str:
    return f"{100 * share:.1f}"


def _percents(quality: tuple[float, float]) -> str:
    return " / ".join(map(_percent, quality))


if __name__ == "__main__":
    main()
