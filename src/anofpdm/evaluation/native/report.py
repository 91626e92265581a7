"""Files of an evaluation of whole scans: the scores of each engine in its folder, and one table of all engines."""

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from anofpdm import __version__
from anofpdm.cohorts.split_scans import SplitScans
from anofpdm.cohorts.store import Cohort
from anofpdm.evaluation.native.run import LABELS, EngineReport
from anofpdm.evaluation.scoring.page import write_report as write_scores
from anofpdm.evaluation.scoring.summary import TITLES, Summary, summarise
from anofpdm.evaluation.scoring.tables import format_statistic
from anofpdm.util.files import without_nan, write_atomically

MARKDOWN, JSON = "native.md", "native.json"
EXPLANATION = (
    "Means over scans; in brackets 95% intervals from a bootstrap over patients. "
    "Scans in which a score is undefined are left out of its mean."
)


def write_report(reports: Sequence[EngineReport], scans: SplitScans, cohort: Cohort, out: Path) -> None:
    summaries = {}
    for report in reports:
        write_scores(report.scoring, report.folder, LABELS, scans.source)
        summaries[str(report.engine)] = summarise(report.scoring.scans)
    text = to_markdown(summaries, scans)
    write_atomically(out / MARKDOWN, text.encode(errors="replace"))
    failed = {str(report.engine): report.scoring.failed for report in reports}
    content = without_nan(to_dict(summaries, failed, scans, cohort))
    write_atomically(out / JSON, json.dumps(content, indent=2, allow_nan=False).encode(errors="replace"))


def to_markdown(summaries: dict[str, Summary], scans: SplitScans) -> str:
    """A column per engine: means and intervals."""
    lines = [f"Whole scans of the {scans.split} split, in native space. {EXPLANATION}", ""]
    heads = [f"{engine} (n = {one.scans})" for engine, one in summaries.items()]
    lines += [f"| score | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    for name, title in TITLES.items():
        cells = (format_statistic(name, one.scores[name]) for one in summaries.values())
        lines.append(f"| {title} | {' | '.join(cells)} |")
    lines += [part for note in scans.notes(scans.source.name) for part in ("", note)]
    return "\n".join(lines) + "\n"


def to_dict(
    summaries: dict[str, Summary], failed: dict[str, dict[str, str]], scans: SplitScans, cohort: Cohort
) -> dict[str, Any]:
    return {
        "anofpdm": __version__,
        "source": str(scans.source),
        "layout": scans.layout,
        "split": scans.split,
        "cohort": {name: cohort.manifest.get(name) for name in ("slices_sha256", "tables_sha256")},
        "absent_patients": list(scans.absent),
        "left_out_scans": scans.left_out,
        "engines": {
            engine: {"summary": dataclasses.asdict(summary), "failed": failed[engine]}
            for engine, summary in summaries.items()
        },
    }
