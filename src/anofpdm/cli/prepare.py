"""anofpdm prepare: scans as downloaded to a cohort that training and evaluation open in a moment."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anofpdm.cli.options import Seed, Workers, worker_count
from anofpdm.cli.progress import progress_bar
from anofpdm.util.text import printable

if TYPE_CHECKING:
    from anofpdm.cohorts import Cohort
    from anofpdm.cohorts.prepare import Report


class Layout(StrEnum):
    brats21 = "brats21"
    atlas2 = "atlas2"
    bids = "bids"
    nifti = "nifti"


def prepare(
    layout: Annotated[Layout, typer.Argument(help="How SRC is laid out.")],
    src: Annotated[Path, typer.Argument(help="Folder with the scans, at any depth.")],
    out: Annotated[Path, typer.Argument(help="Folder for the prepared cohort.")],
    split: Annotated[Path | None, typer.Option(help="CSV (patient,split) to use instead of drawing 75/5/20.")] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            help="CSV (subject,slice,label) of image-level labels, instead of those masks give. nifti: SRC/labels.csv."
        ),
    ] = None,
    size: Annotated[int, typer.Option(help="Pixels along each side of a slice.")] = 128,
    modalities: Annotated[str, typer.Option(help="Which to use, in this order: flair,t1. Default: all found.")] = "",
    entity: Annotated[
        list[str] | None, typer.Option(help="bids: which of several files, e.g. acq=iso. May be repeated.")
    ] = None,
    workers: Workers = 0,
    seed: Seed = 0,
    strict: Annotated[bool, typer.Option(help="Stop at the first scan that fails.")] = False,
    overwrite: Annotated[bool, typer.Option(help="Start anew instead of going on.")] = False,
) -> None:
    """Read scans once, normalise and slice them, and store slices, labels and splits for fast random access.

    Stopped halfway, the same command goes on. A scan that fails is listed at the end; the others are kept.
    """
    from anofpdm.cohorts import open_cohort
    from anofpdm.cohorts import prepare as preparation
    from anofpdm.cohorts.plan import plan_cohort

    plan = plan_cohort(
        layout,
        src,
        size=size,
        modalities=tuple(name.strip() for name in modalities.split(",") if name.strip()),
        labels=labels,
        split=split,
        seed=seed,
        entities=_entities(entity or []),
    )
    with progress_bar("scans") as show:
        report = preparation.prepare(
            plan, out, worker_count(workers), strict=strict, overwrite=overwrite, on_progress=show
        )
    _print_summary(open_cohort(out), report)
    if report.failed:
        raise typer.Exit(3)


def _entities(pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise typer.BadParameter(f"{pair!r}: write it as name=value, for example acq=iso", param_hint="--entity")
    return dict(pair.split("=", 1) for pair in pairs)


def _print_summary(cohort: "Cohort", report: "Report") -> None:
    import numpy as np
    from rich.console import Console
    from rich.table import Table

    from anofpdm.labels import LABEL_NAMES

    table = Table("", "patients", *LABEL_NAMES, box=None)
    for split in ("train", "val", "test"):
        rows = cohort.rows(split)
        counts = [str(np.count_nonzero(cohort.labels[rows] == label)) for label in range(len(LABEL_NAMES))]
        table.add_row(split, str(len(np.unique(cohort.patients[rows]))), *counts)
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    for split in ("train", "val", "test"):
        if not len(cohort.rows(split)):
            console.print(f"note: no patient is in {split}")
    for scan, notes in list(report.warnings.items())[:10]:
        console.print(printable(f"note: {scan}: {notes[0]}"), markup=False)
    if len(report.warnings) > 10:
        console.print(
            f"and notes on {len(report.warnings) - 10} more scans, in {cohort.path / 'manifest.json'}", markup=False
        )
    for scan, reason in report.failed.items():
        console.print(printable(f"failed: {scan}: {reason}"), markup=False)
    done = f"{cohort.manifest['scans']} scans, {len(cohort)} slices of {', '.join(cohort.modalities)} in {cohort.path}"
    failed = f"; {len(report.failed)} scans failed: mend them and run the same command again" if report.failed else ""
    console.print(printable(f"{done}{failed}"), markup=False)
    console.print(printable(f"look at {cohort.path / 'contact_sheet.png'} before you train"), markup=False)
