"""Files of an evaluation of whole scans: the scores of each engine in its folder, and one table of all engines."""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from anofpdm import __version__
from anofpdm.cohorts.store import Cohort
from anofpdm.report.blocks import Table, to_markdown
from anofpdm.scoring.scores_page import write_report as write_scores
from anofpdm.scoring.scores_tables import format_statistic
from anofpdm.scoring.summary import TITLES, Summary, summarise
from anofpdm.study.native.estimates import EstimateCheck, check_estimates
from anofpdm.study.native.run_native import LABELS, EngineReport
from anofpdm.study.native.split_scans import SplitScans
from anofpdm.util.files import without_nan, write_atomically

MARKDOWN, JSON = "native.md", "native.json"
EXPLANATION = (
    "Means over scans; in brackets 95% intervals from a bootstrap over patients. "
    "Scans in which a score is undefined are left out of its mean."
)


@dataclass(frozen=True)
class EngineResult:
    summary: Summary
    failed: dict[str, str]  # scan to reason
    estimates: EstimateCheck | None  # None: the engine has no estimates, or too few


def write_report(reports: Sequence[EngineReport], scans: SplitScans, cohort: Cohort, out: Path) -> None:
    results = {}
    for report in reports:
        write_scores(report.scoring, report.folder, LABELS, scans.source)
        check = check_estimates(report.scoring, report.estimates)
        results[report.engine] = EngineResult(summarise(report.scoring.scans), report.scoring.failed, check)
    write_atomically(out / MARKDOWN, to_text(results, scans).encode(errors="replace"))
    content = {
        "anofpdm": __version__,
        "source": str(scans.source),
        "layout": scans.layout,
        "split": scans.split,
        "cohort": {name: getattr(cohort.manifest, name) for name in ("slices_sha256", "tables_sha256")},
        "absent_patients": list(scans.absent),
        "left_out_scans": scans.left_out,
        "engines": {engine: dataclasses.asdict(result) for engine, result in results.items()},
    }
    text = json.dumps(without_nan(content), indent=2, allow_nan=False)
    write_atomically(out / JSON, text.encode(errors="replace"))


def to_text(results: dict[str, EngineResult], scans: SplitScans) -> str:
    """A column per engine: means and intervals."""
    heads = ["score", *(f"{engine} (n = {result.summary.scans})" for engine, result in results.items())]
    rows = [
        [title, *(format_statistic(name, result.summary.scores[name]) for result in results.values())]
        for name, title in TITLES.items()
    ]
    checks = [
        f"{engine}: {result.estimates.describe()}" for engine, result in results.items() if result.estimates is not None
    ]
    lead = f"Whole scans of the {scans.split} split, in native space. {EXPLANATION}"
    return to_markdown([lead, Table(heads, rows), *checks, *scans.notes(scans.source.name)])
