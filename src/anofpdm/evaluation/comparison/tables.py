"""Results as Markdown and LaTeX tables in the paper's shape, as CSV with a row a slice, and as JSON."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from anofpdm.evaluation.comparison.job import EvaluationJob
from anofpdm.evaluation.comparison.methods import METHODS
from anofpdm.evaluation.comparison.names import EMPTY, Setup
from anofpdm.evaluation.comparison.scores import Scores
from anofpdm.util.files import encode_csv

Results = Mapping[str, Mapping[Setup, Sequence[Scores]]]  # by method and setup, one entry a seed

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
NOT_PERCENT = ("hd95_mm", *COUNTS)
ORDER = (Setup.MIXED, Setup.UNHEALTHY)  # as in the paper
MARKS = {True: "M", False: "L"}


def note(job: EvaluationJob) -> str:
    """How to read the tables."""
    config, seeds = job.config, len(job.config.seeds)
    what = "setting and threshold" if config.whole_grid else "threshold (with the first setting of its grid)"
    sentences = [
        f"L: chosen with image-level labels only. M: {what} tuned with lesion masks of the validation split.",
        f"Means over {seeds} noise seeds with the same weights, ± standard deviation." if seeds > 1 else "",
        "In brackets 95% intervals from a bootstrap over patients" + (", of the first seed." if seeds > 1 else "."),
        "A slice without lesion and without prediction scores 1: see the row `all-empty`.",
        "AUPRC and AUROC pool all foreground pixels and do not depend on a detector. HD95 is the mean over slices in "
        "which lesion and mask both have pixels; the number of these slices is given beside it. Methods that use the "
        "same evidence share a pass of the network; each row gives the time of the whole pass.",
    ]
    if config.sample is not None:
        sentences.append(
            f"{config.sample} slices sampled at random: volume DICE and smoothing across slices use the sampled slices "
            "of each patient only."
        )
    if config.split == config.calibration.split:
        sentences.append(f"Not held out: methods were calibrated and tuned on the same {config.split} split.")
    return " ".join(sentence for sentence in sentences if sentence)


def markdown(results: Results, job: EvaluationJob, failures: Mapping[str, str]) -> str:
    """The paper's table, then all other metrics."""
    heads = [f"{setup} {metric}" for setup in ORDER for metric in MAIN.values()]
    lines = [_row(["", "method", *heads]), _row(["---"] * (len(heads) + 2))]
    for name, by_setup in results.items():
        cells = [_cell(by_setup.get(setup), key) for setup in ORDER for key in MAIN]
        lines.append(_row([mark_of(name), name, *cells]))
    lines += ["", note(job)]
    lines += [f"{name} failed: {reason}" for name, reason in failures.items()]
    for setup in ORDER:
        lines += ["", f"### {setup}", "", _row(["", "method", *MORE.values()]), _row(["---"] * (len(MORE) + 2))]
        for name, by_setup in results.items():
            if setup in by_setup:
                lines.append(_row([mark_of(name), name, *(_cell(by_setup[setup], key) for key in MORE)]))
    if any(Setup.UNHEALTHY in by_setup for by_setup in results.values()):
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


def slices_csv(results: Results, job: EvaluationJob) -> bytes:
    """One row for each method, setup, seed and slice."""
    keys = list(next(iter(next(iter(results.values())).values()))[0].slices)
    return encode_csv(["method", "setup", "seed", "patient", "scan", "slice", *keys], _slice_rows(results, job, keys))


def _slice_rows(results: Results, job: EvaluationJob, keys: Sequence[str]) -> Iterator[list[object]]:
    cohort, rows = job.cohort, job.evaluation_set.rows
    for name, setup, seed, scores in _each(results, job):
        for position, row in enumerate(rows[job.evaluation_set.positions(setup)]):
            numbers = [f"{float(scores.slices[key][position]):.6g}" for key in keys]
            yield [name, setup, seed, cohort.patients[row], cohort.scans[row], cohort.indices[row], *numbers]


def patients_csv(results: Results, job: EvaluationJob) -> bytes:
    """One row for each method, setup, seed and patient."""
    rows = (
        [name, setup, seed, patient, one.slices, f"{one.dice:.6g}", f"{one.volume_dice:.6g}"]
        for name, setup, seed, scores in _each(results, job)
        for patient, one in scores.by_patient.items()
    )
    return encode_csv(["method", "setup", "seed", "patient", "slices", "mean_dice", "volume_dice"], rows)


def _each(results: Results, job: EvaluationJob) -> Iterator[tuple[str, Setup, int, Scores]]:
    for name, by_setup in results.items():
        for setup, several in by_setup.items():
            for seed, scores in zip(job.config.seeds, several, strict=True):
                yield name, setup, seed, scores


def as_json(results: Results) -> dict[str, Any]:
    """Numbers by method, setup and seed; undefined numbers are null."""
    return {
        name: {
            setup: {
                "mean": _without_nan({key: summary(several, key)[0] for key in several[0].numbers}),
                "deviation": _without_nan({key: summary(several, key)[1] for key in several[0].numbers}),
                "seeds": [_seed_json(one) for one in several],
            }
            for setup, several in by_setup.items()
        }
        for name, by_setup in results.items()
    }


def _seed_json(scores: Scores) -> dict[str, Any]:
    return {
        "numbers": _without_nan(scores.numbers),
        "intervals": _without_nan(scores.intervals),
        "by_size": [_without_nan(size.to_dict()) for size in scores.by_size],
        "by_patient": {name: _without_nan(asdict(one)) for name, one in scores.by_patient.items()},
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
    times = 1 if key in NOT_PERCENT else 100
    text = f"{times * mean:.1f}" if key != "seconds" else f"{mean:.3g}"
    if len(several) > 1 and key not in COUNTS:
        text += f"±{times * deviation:.1f}"
    if interval is not None and not math.isnan(interval[0]):
        text += f" ({times * interval[0]:.1f}-{times * interval[1]:.1f})"
    return text


def _latex_cell(several: Sequence[Scores] | None, key: str) -> str:
    if several is None:
        return "-"
    mean, deviation, _ = summary(several, key)
    if math.isnan(mean):
        return "-"
    return f"{100 * mean:.1f}" if len(several) == 1 else rf"{100 * mean:.1f}$\pm${100 * deviation:.1f}"


def _by_size(results: Results) -> list[str]:
    by_method = {name: scores[Setup.UNHEALTHY][0].by_size for name, scores in results.items() if "unhealthy" in scores}
    heads = [f"{size.name} (n={size.count})" for size in next(iter(by_method.values()))]
    lines = [_row(["", "method", *heads]), _row(["---"] * (len(heads) + 2))]
    for name, sizes in by_method.items():
        cells = ["-" if math.isnan(size.dice) else f"{100 * size.dice:.1f}" for size in sizes]
        lines.append(_row([mark_of(name), name, *cells]))
    return lines


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _without_nan(values: Mapping[str, Any]) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [plain(one) for one in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {key: plain(value) for key, value in values.items()}
