"""Results as Markdown tables in the paper's shape, as CSV with a row a slice, and as JSON."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from anofpdm.report.blocks import Block, Heading, Table
from anofpdm.study.comparison.job import EvaluationJob, Results
from anofpdm.study.comparison.methods import METHODS, ReconstructionMethod
from anofpdm.study.comparison.names import EMPTY, Setup
from anofpdm.study.comparison.scores import Scores
from anofpdm.util.files import encode_csv, without_nan

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


def text_blocks(results: Results, job: EvaluationJob, failures: Mapping[str, str]) -> list[Block]:
    """The paper's table, then all other metrics."""
    heads = [f"{setup} {metric}" for setup in ORDER for metric in MAIN.values()]
    cells = {name: [_cell(by.get(setup), key) for setup in ORDER for key in MAIN] for name, by in results.items()}
    blocks: list[Block] = [_table(heads, cells), note(job)]
    blocks += [f"{name} failed: {reason}" for name, reason in failures.items()]
    for setup in ORDER:
        cells = {name: [_cell(by[setup], key) for key in MORE] for name, by in results.items() if setup in by}
        blocks += [Heading(setup), _table(MORE.values(), cells)]
    by_size = {name: by[Setup.UNHEALTHY][0].by_size for name, by in results.items() if Setup.UNHEALTHY in by}
    if by_size:
        heads = [f"{size.name} (n={size.count})" for size in next(iter(by_size.values()))]
        cells = {
            name: ["-" if math.isnan(size.dice) else f"{100 * size.dice:.1f}" for size in sizes]
            for name, sizes in by_size.items()
        }
        title = "DICE by lesion size (pixels at 128 x 128), unhealthy slices"
        blocks += [Heading(title), _table(heads, cells)]
    return blocks


def _table(heads: Iterable[str], cells: Mapping[str, Sequence[str]]) -> Table:
    """A row per method."""
    return Table(["", "method", *heads], [[_mark(name), name, *values] for name, values in cells.items()])


def _mark(name: str) -> str:
    return "" if name == EMPTY else "M" if isinstance(METHODS.get(name), ReconstructionMethod) else "L"


def latex(results: Results) -> str:
    """The main table for booktabs."""
    heads = " & ".join(list(MAIN.values()) * 2)
    lines = [
        "% L: image-level labels only; M: tuned with lesion masks of the validation split",
        r"\begin{tabular}{llcccccc}",
        r"\toprule",
        r"&& \multicolumn{3}{c}{Mixed} & \multicolumn{3}{c}{Unhealthy}\\",
        r"\cmidrule(lr){3-5} \cmidrule(lr){6-8}",
        rf" & Method & {heads}\\",
        r"\midrule",
    ]
    for name, by_setup in results.items():
        cells = " & ".join(_latex_cell(by_setup.get(setup), key) for setup in ORDER for key in MAIN)
        lines.append(rf"{_mark(name)} & {name} & {cells}\\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _latex_cell(several: Sequence[Scores] | None, key: str) -> str:
    mean, deviation, _ = summary(several, key) if several else (math.nan, math.nan, None)
    if math.isnan(mean):
        return "-"
    return f"{100 * mean:.1f}" if len(several or ()) == 1 else rf"{100 * mean:.1f}$\pm${100 * deviation:.1f}"


def slices_csv(results: Results, job: EvaluationJob) -> bytes:
    """One row for each method, setup, seed and slice."""
    cohort, evaluated = job.cohort, job.evaluation_set
    keys = list(next(iter(next(iter(results.values())).values()))[0].slices)
    rows = (
        [name, setup, seed, cohort.patients[row], cohort.scans[row], cohort.indices[row]]
        + [f"{float(scores.slices[key][position]):.6g}" for key in keys]
        for name, setup, seed, scores in _each(results, job)
        for position, row in enumerate(evaluated.rows[evaluated.positions(setup)])
    )
    return encode_csv(["method", "setup", "seed", "patient", "scan", "slice", *keys], rows)


def patients_csv(results: Results, job: EvaluationJob) -> bytes:
    """One row for each method, setup, seed and patient."""
    rows = (
        [name, setup, seed, patient, score["slices"], f"{score['dice']:.6g}", f"{score['volume_dice']:.6g}"]
        for name, setup, seed, scores in _each(results, job)
        for patient, score in scores.by_patient.items()
    )
    return encode_csv(["method", "setup", "seed", "patient", "slices", "mean_dice", "volume_dice"], rows)


def _each(results: Results, job: EvaluationJob) -> Iterator[tuple[str, Setup, int, Scores]]:
    for name, by_setup in results.items():
        for setup, several in by_setup.items():
            for seed, scores in zip(job.config.seeds, several, strict=True):
                yield name, setup, seed, scores


def as_json(results: Results) -> dict[str, Any]:
    """Numbers by method, setup and seed; undefined numbers are null."""
    return without_nan(
        {
            name: {
                setup: {
                    "mean": {key: summary(several, key)[0] for key in several[0].numbers},
                    "deviation": {key: summary(several, key)[1] for key in several[0].numbers},
                    "seeds": [scores.to_dict() for scores in several],
                }
                for setup, several in by_setup.items()
            }
            for name, by_setup in results.items()
        }
    )


def summary(several: Sequence[Scores], key: str) -> tuple[float, float, tuple[float, float] | None]:
    """Mean and deviation over seeds, and the interval of the first seed."""
    values = np.array([scores.numbers.get(key, math.nan) for scores in several])
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
