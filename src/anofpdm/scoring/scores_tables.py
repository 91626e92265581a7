"""Scores as CSV, JSON and Markdown. Undefined values are empty, null and -."""

import dataclasses
import math
from collections.abc import Iterable
from typing import Any

from anofpdm import __version__
from anofpdm.scoring.metrics.lesionwise import BRATS, MATCH_IOU, PENALTY_MM, Lesion
from anofpdm.scoring.score_pairs import ScoringReport
from anofpdm.scoring.summary import BY_VOLUME, TITLES, Statistic, Summary
from anofpdm.util.files import encode_csv, without_nan

SCAN_COLUMNS = {
    "dice": "DICE",
    "hd95_mm": "HD95 mm",
    "lesion_dice": "lesion DICE",
    "lesion_hd95_mm": "lesion HD95 mm",
    "lesion_f1": "lesion F1",
    "truth_ml": "true ml",
    "predicted_ml": "predicted ml",
}
COUNTS = ("lesions_truth", "lesions_predicted", "lesion_count_difference")
LESION_FIELDS = [field.name for field in dataclasses.fields(Lesion) if field.name != "centre"]


def scores_csv(report: ScoringReport) -> bytes:
    """One row per scan."""
    rows = (
        [scan.pair.name, scan.pair.patient, scan.pair.predicted, scan.pair.truth, *map(_cell, numbers.values())]
        for scan in report.scans
        for numbers in [scan.scores.numbers()]
    )
    return encode_csv(["scan", "patient", "predicted", "truth", *TITLES], rows)


def lesions_csv(report: ScoringReport) -> bytes:
    """One row per true lesion and per false component; centres are voxel indices of the true mask."""
    rows = (
        [scan.pair.name, *(_cell(getattr(lesion, name)) for name in LESION_FIELDS), *map(_cell, lesion.centre)]
        for scan in report.scans
        for lesion in scan.scores.lesions
    )
    return encode_csv(["scan", *LESION_FIELDS, "centre_i", "centre_j", "centre_k"], rows)


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.6g}"
    return value


def to_json(report: ScoringReport, summary: Summary, settings: dict[str, Any]) -> dict[str, Any]:
    return without_nan(
        {
            "anofpdm": __version__,
            "settings": {
                **settings,
                **dataclasses.asdict(BRATS),
                "penalty_mm": PENALTY_MM,
                "panoptic_match_iou": MATCH_IOU,
            },
            "summary": dataclasses.asdict(summary),
            "failed": report.failed,
            "scans": [
                {
                    "scan": scan.pair.name,
                    "patient": scan.pair.patient,
                    "predicted": str(scan.pair.predicted),
                    "truth": str(scan.pair.truth),
                    **dataclasses.asdict(scan.scores),
                    "warnings": list(scan.warnings),
                }
                for scan in report.scans
            ],
        }
    )


# ---- text ------------------------------------------------------------------------------------------------------------


def format_score(name: str, value: float) -> str:
    if math.isnan(value):
        return "-"
    if name in COUNTS:
        return f"{value:.3g}"
    return f"{value:.2f}" if name.endswith(("_mm", "_ml")) else f"{value:.3f}"


def format_statistic(name: str, one: Statistic) -> str:
    """Mean, and the interval in brackets."""
    low, high = (format_score(name, end) for end in one.interval)
    return format_score(name, one.mean) + ("" if low == "-" else f" ({low} to {high})")


def summary_rows(summary: Summary) -> list[list[str]]:
    """Score, mean with interval, median, number of scans."""
    return [
        [TITLES[name], format_statistic(name, one), format_score(name, one.median), str(one.scans)]
        for name, one in summary.scores.items()
    ]


def scan_rows(report: ScoringReport) -> list[list[str]]:
    numbers = [(scan.pair.name, scan.scores.numbers()) for scan in report.scans]
    return [[name, *(format_score(key, one[key]) for key in SCAN_COLUMNS)] for name, one in numbers]


def describe(summary: Summary) -> str:
    plural = ["" if count == 1 else "s" for count in (summary.scans, summary.patients)]
    text = f"{summary.scans} scan{plural[0]} of {summary.patients} patient{plural[1]}."
    if summary.patients > 1:
        text += " In brackets 95% intervals of the mean, from a bootstrap over patients."
    if not any(summary.scores[name].mean for name in ("truth_ml", "predicted_ml")):
        text += " All masks are empty: check the files and --label."
    return text + " Scans in which a score is undefined are left out of its mean."


def to_markdown(report: ScoringReport, summary: Summary) -> str:
    by_volume = [
        [one.name, str(one.scans), *(format_statistic(name, one.scores[name]) for name in BY_VOLUME)]
        for one in summary.by_volume
    ]
    lesions = [[one.name, str(one.lesions), str(one.found), f"{one.dice:.3f}"] for one in summary.by_lesion]
    lines = [describe(summary), "", *_table(["score", "mean", "median", "scans"], summary_rows(summary))]
    lines += [
        "",
        "### By true volume",
        "",
        *_table(["volume", "scans", *(TITLES[name] for name in BY_VOLUME)], by_volume),
    ]
    lines += ["", "### Lesions by volume", "", *_table(["volume", "lesions", "found", "mean DICE"], lesions)]
    lines += ["", f"Lesions as BraTS merges and matches them; {summary.false_components} false components."]
    lines += ["", "### Scans", "", *_table(["scan", *SCAN_COLUMNS.values()], scan_rows(report))]
    notes = [(scan.pair.name, text) for scan in report.scans for text in scan.warnings]
    for title, remarks in (("Warnings", notes), ("Not scored", list(report.failed.items()))):
        if remarks:
            lines += ["", f"### {title}", "", *(f"{name}: {text}\n" for name, text in remarks)]
    return "\n".join(lines) + "\n"


def _table(heads: list[str], rows: Iterable[Iterable[str]]) -> list[str]:
    body = [[cell.replace("|", "/").replace("\n", " ") for cell in row] for row in rows]
    return [f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *body)]
