"""anofpdm bids: a BIDS App."""

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, BadParameter, Exit, Option
from typer.core import TyperCommand

from anofpdm.choices import AnalysisLevel, Engine, Precision, Raw
from anofpdm.cli import options
from anofpdm.cli.progress import processes

LISTS = ("--participant-label", "--session-label")


class SpacedLists(TyperCommand):
    """Accepts `--participant-label 01 02`, as BIDS Apps do; typer alone needs the option before each label."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        return super().parse_args(ctx, repeat_options(args))


def repeat_options(words: list[str]) -> list[str]:
    """['--participant-label', '01', '02'] -> ['--participant-label', '01', '--participant-label', '02']."""
    repeated: list[str] = []
    current = ""  # the option whose values follow
    for word in words:
        if word.startswith("-"):
            current = word if word in LISTS else ""
        elif current and repeated[-1] != current:
            repeated.append(current)
        repeated.append(word)
    return repeated


def bids(
    bids_dir: Annotated[Path, Argument(help="BIDS data set.")],
    out: Annotated[Path, Argument(help="Folder for the derivative data set.")],
    level: Annotated[AnalysisLevel, Argument(help="participant: masks and reports; group: a table over all of them.")],
    model: options.OptionalModelOption = None,
    participant_label: Annotated[
        list[str] | None, Option(help="Participants, with or without sub-, e.g. 01 02. Default: all.")
    ] = None,
    session_label: Annotated[list[str] | None, Option(help="Sessions, with or without ses-. Default: all.")] = None,
    skip_bids_validation: Annotated[
        bool, Option("--skip-bids-validation", help="Do not require a valid dataset_description.json.")
    ] = False,
    engine: options.EngineOption = Engine.AUTO,
    threshold_probability: options.ThresholdProbability = None,
    smallest: options.Smallest = None,
    overwrite: options.Overwrite = False,
    device: options.Device = "auto",
    raw: options.RawOption = Raw.AUTO,
    precision: options.DiffusionPrecision = Precision.AUTO,
) -> None:
    """Segment the participants of a BIDS data set into a BIDS derivative, or join their results into a table.

    Re-run the same command to resume. Several GPUs: torchrun --nproc-per-node 4 -m anofpdm bids ...
    """
    if level is AnalysisLevel.GROUP:
        from anofpdm.bids_app.group import TABLE, write_group_table

        print(f"{write_group_table(out)} scans in {out / TABLE}")
        return
    if model is None:
        raise BadParameter("needed for participant", param_hint="--model")
    from anofpdm.bids_app.participants import BidsRun
    from anofpdm.cli.segment import print_report
    from anofpdm.segment.model import load

    participants = tuple(f"sub-{label.removeprefix('sub-')}" for label in participant_label or ())
    sessions = tuple(f"ses-{label.removeprefix('ses-')}" for label in session_label or ())
    run = BidsRun(bids_dir, out, participants, sessions, validate=not skip_bids_validation)
    local_device = options.resolve_device(device)
    loaded = load(model, local_device, precision)
    request = loaded.request(engine=engine, raw=raw, threshold_probability=threshold_probability, smallest=smallest)
    with processes(local_device) as (world, progress):
        report = run.run(request, world, progress, overwrite=overwrite)
    if world.is_main:
        print_report(report, out)
    if report.failed:
        raise Exit(3)
