"""Which signal should calibration choose? Quantities that need image-level labels only, beside DICE against masks.

    python benchmarks/signal_choice.py measure MODEL COHORT --out FILE.json [--score flair,t2] [--name glioma]
    python benchmarks/signal_choice.py judge FILE.json [...]

measure: maps of errors (share 0) and of agreement with several shares of the gradients, on the validation split, each
calibrated with labels. Lesion masks are for the two DICE columns only.

judge: files of several trainings of several cohorts. For each quantity, the share with the best value is compared with
always taking one share: the loss in DICE against the best share of each model. Leave one cohort out: the quantity (or
the constant share) is chosen on the other cohorts.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import ndimage
from signals import agreement_maps, calibration_config, error_and_gradient, table_head

from anofpdm.calibration.fit import slice_positions
from anofpdm.calibration.signal_choice import SHARES, map_contrast
from anofpdm.cli.options import resolve_device
from anofpdm.cohorts import Cohort, open_cohort
from anofpdm.cohorts.store import foreground
from anofpdm.evaluation.ablations.study import measured_slices
from anofpdm.evaluation.metrics.pixels import dice, mean_defined
from anofpdm.labels import UNHEALTHY
from anofpdm.method.calibration import Calibration, refit_maps
from anofpdm.method.context import SlicePositions
from anofpdm.method.decision import OURS, Decisions, decide
from anofpdm.method.detection import auc
from anofpdm.method.evidence import Evidence, SignalMaps
from anofpdm.method.mask import smallest_lesion_level
from anofpdm.network.predictor import TrainedModel, load_trained
from anofpdm.options import Signal

SEEDS = (0, 1)
QUANTITIES = {  # label-only; 1: higher is better, -1: lower
    "auc": 1,  # separation of labels by the maps
    "seeds": 1,  # DICE of masks from two noise seeds
    "neighbours": 1,  # DICE of masks of neighbouring slices, without smoothing across slices
    "compact": 1,  # share of the largest component in a mask
    "contrast": 1,  # log ratio of the map inside and outside of a mask
    "like_healthy": -1,  # correlation of maps of unhealthy slices with the mean map of healthy ones
}
DICES = ("unhealthy", "mixed")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(required=True)
    one = what.add_parser("measure")
    one.set_defaults(run=measure)
    one.add_argument("model", type=Path)
    one.add_argument("cohort", type=Path)
    one.add_argument("--out", type=Path, required=True)
    one.add_argument("--name", help="Of the cohort; default: its folder.")
    one.add_argument("--score", default="")
    one.add_argument("--levels", type=int, default=10)
    one.add_argument("--device", default="auto")
    other = what.add_parser("judge")
    other.set_defaults(run=judge)
    other.add_argument("files", type=Path, nargs="+")
    args = parser.parse_args()
    args.run(args)


# ---- measure ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Maps:
    """Errors and gradients of one noise seed at the chosen strength, and what decides on them."""

    error: Evidence
    gradient: Evidence
    calibration: Calibration
    labels: np.ndarray
    positions: SlicePositions

    def evidence(self, share: float) -> Evidence:
        maps = SignalMaps(agreement_maps(self.error, self.gradient, share), self.error.last_maps)
        return replace(self.error, maps_by_signal={Signal.ERROR: maps})

    def decide(self, share: float, context_mm: float = OURS.context_mm) -> Decisions:
        evidence = self.evidence(share)
        calibration = refit_maps(self.calibration, evidence, self.labels, self.positions)
        return decide(evidence, calibration, replace(OURS, context_mm=context_mm), self.positions)


def measure(args: argparse.Namespace) -> None:
    model, cohort = load_trained(args.model, resolve_device(args.device)), open_cohort(args.cohort)
    seeds, truth, inside = gather(args, model, cohort)
    print(f"{args.name or args.cohort.name}: w = {seeds[0].calibration.strength:g}\n")
    columns = ("share", *QUANTITIES, *DICES)
    print(table_head(columns))
    rows = []
    for share in SHARES:
        row = {"share": share, **quantities(seeds, share, inside), **scores(seeds[0].decide(share), truth)}
        rows.append(row)
        print(f"| {' | '.join(f'{row[name]:.3f}' for name in columns)} |", flush=True)
    args.out.write_text(json.dumps({"cohort": args.name or args.cohort.name, "model": args.model.name, "rows": rows}))


def gather(args: argparse.Namespace, model: TrainedModel, cohort: Cohort) -> tuple[list[Maps], np.ndarray, np.ndarray]:
    """Maps of each seed, at the strength of the first; the truth and the foreground, [n, H, W]."""
    config = calibration_config(args)
    _, rows, truth = measured_slices(cohort, config)
    labels, positions, found = cohort.labels[rows], slice_positions(cohort, rows), list[Maps]()
    for seed in SEEDS:
        strengths = (found[0].calibration.strength,) if found else config.strengths
        error, gradient, calibration = error_and_gradient(
            model, cohort, rows, replace(config, seed=seed, strengths=strengths), OURS.context_mm
        )
        found.append(Maps(error, gradient, calibration, labels, positions))
    return found, truth, foreground(cohort.pixels(rows))


def scores(decisions: Decisions, truth: np.ndarray) -> dict[str, float]:
    unhealthy = truth.any(axis=(1, 2))
    return {
        "unhealthy": float(dice(decisions.drawn, truth)[unhealthy].mean()),
        "mixed": float(dice(decisions.masks, truth).mean()),
    }


def quantities(seeds: Sequence[Maps], share: float, inside: np.ndarray) -> dict[str, float]:
    first = seeds[0]
    unhealthy = first.labels == UNHEALTHY
    masks = [one.decide(share).drawn for one in seeds]
    alone = first.decide(share, context_mm=0.0)
    maps = first.evidence(share).maps[:, 0].float().cpu().numpy()
    return {
        "auc": float(auc(smallest_lesion_level(maps), unhealthy)),
        "seeds": float(dice(masks[0], masks[1])[unhealthy].mean()),
        "neighbours": neighbour_dice(alone.drawn, first.positions, unhealthy),
        "compact": float(np.mean([largest_share(mask) for mask in alone.drawn[unhealthy]])),
        "contrast": map_contrast(maps[unhealthy], alone.drawn[unhealthy], inside[unhealthy]),
        "like_healthy": similarity_to_healthy(maps, unhealthy, inside),
    }


def neighbour_dice(masks: np.ndarray, positions: SlicePositions, unhealthy: np.ndarray) -> float:
    """Of slices and the next of the same scan, both unhealthy."""
    order = np.lexsort((positions.heights_mm, positions.scans))
    before, after = order[:-1], order[1:]
    both = (positions.scans[before] == positions.scans[after]) & unhealthy[before] & unhealthy[after]
    return mean_defined(dice(masks[before[both]], masks[after[both]]))


def largest_share(mask: np.ndarray) -> float:
    components, count = ndimage.label(mask, np.ones((3, 3)))
    sizes = np.bincount(components.ravel(), minlength=2)[1:]
    return float(sizes.max() / sizes.sum()) if count else 0.0


def similarity_to_healthy(maps: np.ndarray, unhealthy: np.ndarray, inside: np.ndarray) -> float:
    mean = np.sqrt(maps[~unhealthy]).mean(axis=0)
    found = [
        np.corrcoef(np.sqrt(values[brain]), mean[brain])[0, 1]
        for values, brain in zip(maps[unhealthy], inside[unhealthy], strict=True)
        if brain.sum() > 2
    ]
    return float(np.nanmean(found))


# ---- judge -----------------------------------------------------------------------------------------------------------

Study = Mapping[str, Any]  # as `measure` writes it
Row = Mapping[str, float]


def judge(args: argparse.Namespace) -> None:
    studies: list[Study] = [json.loads(path.read_text()) for path in args.files]
    shares = [row["share"] for row in studies[0]["rows"]]
    rules = [*QUANTITIES, *(f"always {share:.2f}" for share in shares)]
    print(table_head(("rule", *(f"{one['cohort']}, {one['model']}" for one in studies), "mean loss", "largest loss")))
    for rule in rules:
        losses = [loss(one, rule) for one in studies]
        cells = [f"{pick(one, rule)['share']:.2f}: {100 * lost:.1f}" for one, lost in zip(studies, losses, strict=True)]
        print(f"| {rule} | {' | '.join(cells)} | {100 * np.mean(losses):.1f} | {100 * max(losses):.1f} |")
    print("\nLeave one cohort out: the rule with the smallest mean loss on the other cohorts\n")
    print(table_head(("left out", "rule", "mean loss", "largest loss")))
    for cohort in dict.fromkeys(one["cohort"] for one in studies):
        others = [one for one in studies if one["cohort"] != cohort]
        best = min(rules, key=lambda rule: np.mean([loss(one, rule) for one in others]))
        left = [loss(one, best) for one in studies if one["cohort"] == cohort]
        print(f"| {cohort} | {best} | {100 * np.mean(left):.1f} | {100 * max(left):.1f} |")


def pick(study: Study, rule: str) -> Row:
    rows: list[Row] = study["rows"]
    if rule.startswith("always"):
        return min(rows, key=lambda row: abs(row["share"] - float(rule.split()[1])))
    return max(rows, key=lambda row: QUANTITIES[rule] * row[rule])


def loss(study: Study, rule: str) -> float:
    """In the mean of both DICE, against the best share of this model."""
    return max(map(mean_dice, study["rows"])) - mean_dice(pick(study, rule))


def mean_dice(row: Row) -> float:
    return sum(row[name] for name in DICES) / len(DICES)


if __name__ == "__main__":
    main()
