"""anofpdm prepare: convert downloaded scans into a cohort for training and evaluation."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, BadParameter, Exit, Option

from anofpdm.choices import Layout, Raw, Split, Template
from anofpdm.cli import options
from anofpdm.cli.output import print_lines, print_rows, problem_lines
from anofpdm.cli.progress import progress_bars

if TYPE_CHECKING:
    from anofpdm.cohorts import Cohort


def prepare(
    layout: Annotated[Layout, Argument(help="Folder layout of SRC.")],
    src: Annotated[Path, Argument(help="Folder with the scans, at any depth.")],
    out: Annotated[Path, Argument(help="Output folder for the prepared cohort.")],
    split: Annotated[
        Path | None, Option(help="CSV file (patient,split). Default: a random 75/5/20 split by patient.")
    ] = None,
    labels: options.LabelTable = None,
    keep_isolated: options.KeepIsolated = False,
    fill_labels: options.FillLabels = 0.0,
    unknown_spacing: Annotated[
        bool,
        Option(
            "--unknown-spacing",
            help="Ignore the distance between slices in the headers, e.g. of converted pictures. The model then counts "
            "slices instead of millimetres, in every scan.",
        ),
    ] = False,
    size: Annotated[int, Option(help="Pixels along each side of a slice, a multiple of 8.")] = 128,
    modalities: options.Modalities = "",
    entity: Annotated[
        list[str] | None,
        Option(help="bids: which of several files to use, e.g. acq=iso. May be given several times."),
    ] = None,
    raw: options.PreparedRaw = Raw.AUTO,
    keep_skull: Annotated[bool, Option("--keep-skull", help="Raw scans: register them, but keep the skull.")] = False,
    template: Annotated[
        Template, Option(help="Space of the prepared scans. mni152: scans in another space are registered to it.")
    ] = Template.NONE,
    workers: options.Workers = 0,
    seed: options.Seed = 0,
    strict: Annotated[bool, Option(help="Stop at the first scan that fails.")] = False,
    overwrite: Annotated[bool, Option(help="Start from scratch instead of resuming.")] = False,
) -> None:
    """Normalise and slice scans, and store slices, labels and splits for fast random access.

    Re-run the same command to resume. Scans that fail are listed at the end; the others are kept.
    """
    from anofpdm.cohorts import prepare as preparation
    from anofpdm.cohorts.plan import plan_cohort
    from anofpdm.cohorts.raw_scans import RawOptions

    plan = plan_cohort(
        layout,
        src,
        size=size,
        modalities=options.parse_names(modalities),
        labels=labels,
        split=split,
        seed=seed,
        entities=_parse_entities(entity or []),
    )
    plan = replace(
        plan,
        raw=RawOptions(raw, keep_skull, template),
        keep_isolated=keep_isolated,
        fill_labels_mm=fill_labels,
        unknown_spacing=unknown_spacing,
    )
    with progress_bars() as progress:
        cohort = preparation.prepare(plan, out, workers, strict=strict, overwrite=overwrite, on_progress=progress)
    _print_summary(cohort)
    if cohort.manifest.failed:
        raise Exit(3)


def _parse_entities(pairs: list[str]) -> dict[str, str]:
    for pair in pairs:
        if "=" not in pair:
            raise BadParameter(f"{pair!r}: write it as name=value, for example acq=iso", param_hint="--entity")
    return dict(pair.split("=", 1) for pair in pairs)


def _print_summary(cohort: "Cohort") -> None:
    from anofpdm.labels import LABEL_NAMES

    counts = cohort.split_counts().items()
    print_rows(("", "patients", *LABEL_NAMES), [(split, *map(str, numbers)) for split, numbers in counts])
    problems = cohort.manifest.failed
    failed = f"; {len(problems)} scans failed: fix them and re-run the same command" if problems else ""
    print_lines(
        *(f"note: the {split} split is empty" for split in Split if not len(cohort.rows(split))),
        *cohort.notes,
        *problem_lines((), problems),
        f"{cohort.manifest.scans} scans, {len(cohort)} slices of {', '.join(cohort.modalities)} in "
        f"{cohort.path}{failed}",
        f"check {cohort.path / 'contact_sheet.png'} before training",
    )
