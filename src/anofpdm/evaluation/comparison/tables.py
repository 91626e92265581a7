"""Results for reading: a Markdown and a LaTeX table in the paper's shape, one row a slice in CSV, all of it in JSON."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from anofpdm.evaluation.comparison.methods import METHODS
from anofpdm.evaluation.comparison.protocol import EMPTY, Evaluation
from anofpdm.evaluation.comparison.scores import Scores
from anofpdm.util.files import encode_csv

Results = Mapping[str, Mapping[str, Sequence[Scores]]]  # method, setup, one entry a seed

MAIN = {"dice": "DICE", "iou": "IoU", "auprc": "AUPRC"}
MORE = {
    "dice_with_small": "DICE, small components kept",
    "auroc": "AUROC",
    "precision": "precision",
    "recall": "recall",
    "accuracy": "accuracy",
    "image_auc": "image AUC",
    "lesion_f1": "lesion F1",
    "hd95_mm": "HD95 mm",
    "hd95_slices": "slices with HD95",
    "volume_dice": "volume DICE",
    "evaluations": "evaluations a slice",
    "seconds": "s a slice",
}
COUNTS = ("hd95_slices", "evaluations", "seconds")
AS_THEY_ARE = ("hd95_mm", *COUNTS)  # the others in percent
ORDER = ("mixed", "unhealthy")  # as in the paper
MARKS = {True: "M", False: "L"}


def note(evaluation: Evaluation) -> str:
    """What a reader must know to read the tables."""
    options, seeds = evaluation.options, len(evaluation.options.seeds)
    what = "setting and threshold" if options.whole_grid else "threshold (the setting is the first of its grid)"
    said = [
        f"L: chosen with image-level labels only. M: {what} tuned with lesion masks of the validation split.",
        f"Means over {seeds} noise seeds with the same weights, ± their standard deviation." if seeds > 1 else "",
        "In brackets 95% intervals from drawing patients" + (", of the first seed." if seeds > 1 else "."),
        "A slice without lesion and without prediction scores 1: see the row `all-empty`.",
        "AUPRC and AUROC pool all foreground pixels and know no detector. HD95 is the mean over slices where both the "
        "lesion and the mask have pixels; their number stands beside it. Methods that read the same evidence share a "
        "pass of the network, and its seconds.",
    ]
    if options.sample is not None:
        said.append(
            f"{options.sample} slices drawn at random: volume DICE is of the drawn slices of each patient, and context "
            "across slices sees only those."
        )
    if options.split == options.calibration.split:
        said.append(f"Not held out: the {options.split} split is also what methods were calibrated and tuned on.")
    return " ".join(one for one in said if one)


def markdown(results: Results, evaluation: Evaluation) -> str:
    """The paper's table, then everything else."""
    heads = [f"{setup} {word}" for setup in ORDER for word in MAIN.values()]
    lines = [_row(["", "method", *heads]), _row(["---"] * (len(heads) + 2))]
    for name, by_setup in results.items():
        cells = [_cell(by_setup.get(setup), key) for setup in ORDER for key in MAIN]
        lines.append(_row([mark_of(name), name, *cells]))
    lines += ["", note(evaluation)]
    lines += [f"{name} could not be done: {reason}" for name, reason in evaluation.failed.items()]
    for setup in ORDER:
        lines += ["", f"### {setup}", "", _row(["", "method", *MORE.values()]), _row(["---"] * (len(MORE) + 2))]
        for name, by_setup in results.items():
            if setup in by_setup:
                lines.append(_row([mark_of(name), name, *(_cell(by_setup[setup], key) for key in MORE)]))
    if any("unhealthy" in by_setup for by_setup in results.values()):
        lines += ["", "### DICE by lesion size (pixels at 128 x 128), unhealthy slices", "", *_by_size(results)]
    return "\n".join(lines) + "\n"


def latex(results: Results) -> str:
    """A tabular that compiles with booktabs."""
    lines = [
        f"% {MARKS[False]}: image-level labels only; {MARKS[True]}: tuned with lesion masks of the validation split"
    ]
    lines += [r"\begin{tabular}{llcccccc}", r"\toprule"]
    lines.append(r"&& \multicolumn{3}{c}{Mixed} & \multicolumn{3}{c}{Unhealthy}\\")
    lines.append(r"\cmidrule(lr){3-5} \cmidrule(lr){6-8}")
    lines.append(" & Method & " + " & ".join(list(MAIN.values()) * 2) + r"\\")
    lines.append(r"\midrule")
    for name, by_setup in results.items():
        cells = [_latex_cell(by_setup.get(setup), key) for setup in ORDER for key in MAIN]
        lines.append(f"{mark_of(name)} & {name} & " + " & ".join(cells) + r"\\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def slices_csv(results: Results, evaluation: Evaluation) -> bytes:
    """One row for each method, setup, seed and slice."""
    keys = list(next(iter(next(iter(results.values())).values()))[0].slices)
    return encode_csv(
        ["method", "setup", "seed", "patient", "scan", "slice", *keys], _slices(results, evaluation, keys)
    )


def _slices(results: Results, evaluation: Evaluation, keys: Sequence[str]) -> Iterator[list[object]]:
    cohort, rows = evaluation.cohort, evaluation.measured_rows()
    unhealthy = rows[evaluation.known.unhealthy]
    for name, by_setup in results.items():
        for setup, several in by_setup.items():
            for seed, scores in zip(evaluation.options.seeds, several, strict=True):
                for place, row in enumerate(unhealthy if setup == "unhealthy" else rows):
                    numbers = [f"{float(scores.slices[key][place]):.6g}" for key in keys]
                    where = (cohort.patients[row], cohort.scans[row], cohort.indices[row])
                    yield [name, setup, seed, *where, *numbers]


def patients_csv(results: Results, evaluation: Evaluation) -> bytes:
    """One row for each method, setup, seed and patient."""
    rows = (
        [name, setup, seed, patient, said["slices"], f"{said['dice']:.6g}", f"{said['volume_dice']:.6g}"]
        for name, by_setup in results.items()
        for setup, several in by_setup.items()
        for seed, scores in zip(evaluation.options.seeds, several, strict=True)
        for patient, said in scores.by_patient.items()
    )
    return encode_csv(["method", "setup", "seed", "patient", "slices", "mean_dice", "volume_dice"], rows)


def as_json(results: Results) -> dict[str, Any]:
    """Numbers by method, setup and seed; what is undefined is null."""
    return {
        name: {
            setup: {
                "mean": _without_nan({key: summary(several, key)[0] for key in several[0].numbers}),
                "deviation": _without_nan({key: summary(several, key)[1] for key in several[0].numbers}),
                "seeds": [
                    {
                        "numbers": _without_nan(one.numbers),
                        "intervals": _without_nan(one.intervals),
                        "by_size": [_without_nan(size) for size in one.by_size],
                        "by_patient": {name: _without_nan(said) for name, said in one.by_patient.items()},
                    }
                    for one in several
                ],
            }
            for setup, several in by_setup.items()
        }
        for name, by_setup in results.items()
    }


def mark_of(name: str) -> str:
    return "" if name == EMPTY else MARKS[METHODS[name].tuned_with_masks]


def summary(several: Sequence[Scores], key: str) -> tuple[float, float, tuple[float, float] | None]:
    """Mean and deviation over seeds, and the interval of the first seed."""
    values = np.array([one.numbers.get(key, math.nan) for one in several])
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else 0.0, several[0].intervals.get(key)


def _cell(several: Sequence[Scores] | None, key: str) -> str:
    if several is None:
        return "-"
    mean, deviation, interval = summary(several, key)
    if math.isnan(mean):
        return "-"
    times = 1 if key in AS_THEY_ARE else 100
    words = f"{times * mean:.1f}" if key != "seconds" else f"{mean:.3g}"
    if len(several) > 1 and key not in COUNTS:
        words += f"±{times * deviation:.1f}"
    if interval is not None and not math.isnan(interval[0]):
        words += f" ({times * interval[0]:.1f}-{times * interval[1]:.1f})"
    return words


def _latex_cell(several: Sequence[Scores] | None, key: str) -> str:
    if several is None:
        return "-"
    mean, deviation, _ = summary(several, key)
    if math.isnan(mean):
        return "-"
    return f"{100 * mean:.1f}" if len(several) == 1 else rf"{100 * mean:.1f}$\pm${100 * deviation:.1f}"


def _by_size(results: Results) -> list[str]:
    some = {name: by_setup["unhealthy"][0].by_size for name, by_setup in results.items() if "unhealthy" in by_setup}
    sizes = next(iter(some.values()))
    heads = [f"{size['name']} (n={size['count']})" for size in sizes]
    lines = [_row(["", "method", *heads]), _row(["---"] * (len(heads) + 2))]
    for name, found in some.items():
        lines.append(
            _row(
                [
                    mark_of(name),
                    name,
                    *("-" if math.isnan(one["dice"]) else f"{100 * one['dice']:.1f}" for one in found),
                ]
            )
        )
    return lines


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _without_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [plain(one) for one in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {key: plain(value) for key, value in values.items()}
