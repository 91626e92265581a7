"""anofpdm score: compare masks with masks."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, BadParameter, Exit, Option

from anofpdm.cli.options import Workers
from anofpdm.cli.output import print_lines, print_rows, problem_lines
from anofpdm.cli.progress import progress_bars
from anofpdm.util.text import printable

if TYPE_CHECKING:
    from anofpdm.scoring.masks import Labels
    from anofpdm.scoring.score_pairs import ScoringReport

MAX_ROWS = 40  # scans on the terminal


def parse_labels(text: str | None, option: str) -> "Labels":
    """`all`, or integers: 1,2,3."""
    if text is None or text.strip().lower() == "all":
        return None if text is None else "all"
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) > 0 for word in words):
        raise BadParameter(f"{text!r}: give integers above 0, e.g. 1,2,3, or all", param_hint=option)
    return tuple(int(word) for word in words)


def score(
    predicted: Annotated[Path, Argument(help="Predicted mask (NIfTI), or a folder.")],
    truth: Annotated[Path, Argument(help="True mask (NIfTI), or a folder.")],
    out: Annotated[
        Path | None, Option(help="Folder for tables (CSV, JSON, Markdown) and a page. Default: none written.")
    ] = None,
    pairs: Annotated[
        Path | None,
        Option(
            help="CSV file (predicted,truth) of files in the two folders. Default: paired by file name, or by subject "
            "and session."
        ),
    ] = None,
    label: Annotated[
        str | None,
        Option(help="Labels that are lesion, e.g. 1,2,3, or all (above 0). Default: only 0 and 1 are allowed."),
    ] = None,
    predicted_label: Annotated[
        str | None, Option(help="The same for predicted masks, if different. Default: as --label.")
    ] = None,
    image: Annotated[
        Path | None, Option(exists=True, help="Image, or folder of images, to show behind the masks on the page.")
    ] = None,
    workers: Workers = 0,
) -> None:
    """Score predicted lesion masks against true ones: overlap, volumes, surface distances, and scores per lesion.

    In 3D, on the grid of the true mask. A pair that fails is listed, and the others are scored (exit code 3).
    """
    true_labels = parse_labels(label, "--label")
    own_labels = parse_labels(predicted_label, "--predicted-label") if predicted_label else true_labels
    from anofpdm.scoring.pairs import find_pairs
    from anofpdm.scoring.score_pairs import score_pairs

    pairing = find_pairs(predicted, truth, pairs)
    with progress_bars() as progress:
        report = score_pairs(pairing, (own_labels, true_labels), workers, progress)
    if out is not None:
        from anofpdm.scoring.scores_page import write_report

        write_report(report, out, (own_labels, true_labels), image)
    print_scores(report)
    warnings = [(scan.pair.name, text) for scan in report.scans for text in scan.warnings]
    print_lines(*problem_lines(warnings, report.failed))
    if out is not None:
        print_lines(f"scored: {len(report.scans)}, failed: {len(report.failed)}, results in {out}")
    if report.failed:
        raise Exit(3)


def print_scores(report: "ScoringReport") -> None:
    from rich.table import Column

    from anofpdm.scoring.scores_tables import SCAN_COLUMNS, describe, format_score, scan_rows, summary_rows
    from anofpdm.scoring.summary import TITLES, summarise

    if len(report.scans) == 1:
        (scan,) = report.scans
        numbers = scan.scores.numbers().items()
        rows = ((TITLES[name], format_score(name, value)) for name, value in numbers)
        print_rows(("", Column(printable(scan.pair.name), overflow="fold")), rows)
    if len(report.scans) <= 1:
        return
    if len(report.scans) <= MAX_ROWS:
        heads = (title.replace(" ", "\n", 1) for title in SCAN_COLUMNS.values())  # in two lines: fits 80 columns
        columns = (Column("", overflow="fold"), *(Column(head, no_wrap=True) for head in heads))
        print_rows(columns, (map(printable, row) for row in scan_rows(report)))
        print()
    summary = summarise(report.scans)
    print_rows(("", *(Column(head, no_wrap=True) for head in ("mean", "median", "scans"))), summary_rows(summary))
    print(describe(summary))
