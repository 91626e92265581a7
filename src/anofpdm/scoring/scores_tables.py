"""Scores as CSV, JSON and Markdown. Undefined values are empty, null and -."""

import dataclasses
import json
import math
from typing import Any

from anofpdm import __version__
from anofpdm.report.blocks import Block, Heading, Table
from anofpdm.scoring.masks import Labels
from anofpdm.scoring.metrics.lesionwise import DILATIONS, IGNORED_MM3, MATCH_IOU, PENALTY_MM, Lesion
from anofpdm.scoring.score_pairs import ScoredScan, ScoringReport
from anofpdm.scoring.summary import BY_VOLUME, TITLES, Statistic, Summary
from anofpdm.util.files import encode_csv, without_nan
from anofpdm.util.text import count_noun

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
    rows = ([*_files(scan).values(), *map(_cell, scan.scores.numbers().values())] for scan in report.scans)
    return encode_csv(["scan", "patient", "predicted", "truth", *TITLES], rows)


def _files(scan: ScoredScan) -> dict[str, str]:
    pair = scan.pair
    return {"scan": pair.name, "patient": pair.patient, "predicted": str(pair.predicted), "truth": str(pair.truth)}


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


def to_json(report: ScoringReport, summary: Summary, labels: tuple[Labels, Labels]) -> bytes:
    """Everything; `labels` of the predicted and the true masks."""
    names = ["0 and 1" if values is None else values for values in labels]
    content = {
        "anofpdm": __version__,
        "settings": {
            "label": names[1],
            "predicted_label": names[0],
            "dilations": DILATIONS,
            "ignored_mm3": IGNORED_MM3,
            "penalty_mm": PENALTY_MM,
            "panoptic_match_iou": MATCH_IOU,
        },
        "summary": dataclasses.asdict(summary),
        "failed": report.failed,
        "scans": [
            _files(scan) | dataclasses.asdict(scan.scores) | {"warnings": scan.warnings} for scan in report.scans
        ],
    }
    return json.dumps(without_nan(content), indent=2, allow_nan=False).encode()


# ---- text ------------------------------------------------------------------------------------------------------------


def format_score(name: str, value: float) -> str:
    if math.isnan(value):
        return "-"
    if name in COUNTS:
        return f"{value:.3g}"
    return f"{value:.2f}" if name.endswith(("_mm", "_ml")) else f"{value:.3f}"


def format_statistic(name: str, statistic: Statistic) -> str:
    """Mean, and the interval in brackets."""
    low, high = (format_score(name, end) for end in statistic.interval)
    return format_score(name, statistic.mean) + ("" if low == "-" else f" ({low} to {high})")


def summary_rows(summary: Summary) -> list[list[str]]:
    """Score, mean with interval, median, number of scans."""
    return [
        [TITLES[name], format_statistic(name, scores), format_score(name, scores.median), str(scores.scans)]
        for name, scores in summary.scores.items()
    ]


def scan_rows(report: ScoringReport) -> list[list[str]]:
    return [
        [scan.pair.name, *(format_score(name, getattr(scan.scores, name)) for name in SCAN_COLUMNS)]
        for scan in report.scans
    ]


def describe(summary: Summary) -> str:
    text = f"{count_noun(summary.scans, 'scan')} of {count_noun(summary.patients, 'patient')}."
    if summary.patients > 1:
        text += " In brackets 95% intervals of the mean, from a bootstrap over patients."
    if not any(summary.scores[name].mean for name in ("truth_ml", "predicted_ml")):
        text += " All masks are empty: check the files and --label."
    return text + " Scans in which a score is undefined are left out of its mean."


def text_blocks(report: ScoringReport, summary: Summary) -> list[Block]:
    """Of the Markdown file and the page: a description and the mean scores, then parts with headings."""
    by_volume = [
        [group.name, str(group.scans), *(format_statistic(name, group.scores[name]) for name in BY_VOLUME)]
        for group in summary.by_volume
    ]
    lesions = [
        [group.name, str(group.lesions), str(group.detected), f"{group.dice:.3f}"] for group in summary.by_lesion
    ]
    blocks: list[Block] = [
        describe(summary),
        Table(["score", "mean", "median", "scans"], summary_rows(summary)),
        Heading("By true volume"),
        Table(["volume", "scans", *(TITLES[name] for name in BY_VOLUME)], by_volume),
        Heading("Lesions by volume"),
        Table(["volume", "lesions", "found", "mean DICE"], lesions),
        f"Lesions as BraTS merges and matches them; {summary.false_components} false components.",
        Heading("Scans"),
        Table(["scan", *SCAN_COLUMNS.values()], scan_rows(report)),
    ]
    notes = [(scan.pair.name, text) for scan in report.scans for text in scan.warnings]
    for title, remarks in (("Warnings", notes), ("Not scored", list(report.failed.items()))):
        if remarks:
            blocks += [Heading(title), *(f"{name}: {text}" for name, text in remarks)]
    return blocks
