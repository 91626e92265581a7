"""anofpdm segment: lesion masks for scans, in their own space."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anofpdm.cli import options
from anofpdm.cli.options import Device, Model, resolve_device
from anofpdm.cli.progress import progress_bars
from anofpdm.options import Detector, Engine, Precision, Raw, Split, Threshold
from anofpdm.util.text import printable

FILES, DICOM, CLUSTERS = "Files", "DICOM", "Clusters"

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anofpdm.segment.inputs import Target
    from anofpdm.segment.many import RunReport
    from anofpdm.segment.request import Explain


def parse_explain(text: str) -> "Explain":
    """`findings`, or slice numbers: 70,71."""
    numbers = [word.strip() for word in text.split(",")]
    if text.strip() == "findings":
        return "findings"
    if not all(number.isdecimal() for number in numbers):
        raise typer.BadParameter(f"{text}: give findings, or slice numbers, e.g. 70,71")
    return tuple(int(number) for number in numbers)


def segment(
    model: Model,
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="NIfTI files of a scan (or flair=FILE t2=FILE ...), folders of scans, DICOM, or a prepared cohort."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the results, with one subfolder per scan.")],
    engine: options.EngineOption = Engine.AUTO,
    threshold_probability: options.ThresholdProbability = None,
    smallest: options.Smallest = None,
    explain: Annotated[
        str | None,
        typer.Option(
            help="Show the diffusion model's curves in the report of a student's mask: findings, or slices (70,71)."
        ),
    ] = None,
    split: Annotated[Split | None, typer.Option(help="Only this split of a prepared cohort.")] = None,
    device: Device = "auto",
    report: Annotated[bool, typer.Option(help="Write a report (HTML) of each scan.", rich_help_panel=FILES)] = True,
    pictures: Annotated[
        bool, typer.Option(help="Write an overview picture of each scan.", rich_help_panel=FILES)
    ] = True,
    seg_nrrd: Annotated[
        bool,
        typer.Option(
            "--seg-nrrd",
            help="Also write masks as .seg.nrrd, segmentations of 3D Slicer.",
            rich_help_panel=FILES,
        ),
    ] = False,
    label_table: Annotated[
        bool,
        typer.Option(
            "--label-table",
            help="Also write name and colour of the label in masks, for ITK-SNAP.",
            rich_help_panel=FILES,
        ),
    ] = False,
    overwrite: options.Overwrite = False,
    trust_header: Annotated[
        bool, typer.Option("--trust-header", help="Segment also a scan whose size in its header no head has.")
    ] = False,
    raw: options.RawOption = Raw.AUTO,
    brain_mask: Annotated[
        Path | None, typer.Option(help="Brain mask (NIfTI) of a single scan.", rich_help_panel=options.RAW)
    ] = None,
    skull_strip: Annotated[
        str | None,
        typer.Option(help="Skull-stripping command, containing {input} and {output}.", rich_help_panel=options.RAW),
    ] = None,
    preparations: Annotated[
        Path | None,
        typer.Option(
            help="Folder for prepared raw series, shared by runs with several models. Default: in --out.",
            rich_help_panel=options.RAW,
        ),
    ] = None,
    series: Annotated[
        list[str] | None,
        typer.Option(help="Series of a modality, e.g. flair=3. May be repeated.", rich_help_panel=DICOM),
    ] = None,
    preview: Annotated[
        bool,
        typer.Option("--preview", help="List the series that would be used, and exit.", rich_help_panel=DICOM),
    ] = False,
    dicom: Annotated[
        bool, typer.Option("--dicom", help="Also write the results as DICOM.", rich_help_panel=DICOM)
    ] = False,
    part: Annotated[
        str | None,
        typer.Option(
            metavar="K/N",
            help="Only part K of N of the scans, for array jobs that share --out.",
            rich_help_panel=CLUSTERS,
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Stop at the first scan that fails.", rich_help_panel=CLUSTERS)
    ] = False,
    detector: Annotated[
        Detector | None,
        typer.Option(
            help="Detector of unhealthy slices. calibrated: the one that was more accurate in calibration.",
            rich_help_panel=options.DIFFUSION,
        ),
    ] = None,
    threshold: Annotated[
        Threshold | None,
        typer.Option(
            help="Threshold of the anomaly map: a quantile (the paper), a percentile of healthy slices, or both: their "
            "geometric mean.",
            rich_help_panel=options.DIFFUSION,
        ),
    ] = None,
    context: Annotated[
        float | None,
        typer.Option(min=0, help="Smoothing across slices (sigma, mm).", rich_help_panel=options.DIFFUSION),
    ] = None,
    peak: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=0.99,
            help="Fraction of a slice's maximum that its mask must reach.",
            rich_help_panel=options.DIFFUSION,
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Noise seed, also of --explain.", rich_help_panel=options.DIFFUSION)
    ] = None,
    batch: options.DiffusionBatch = None,
    precision: options.DiffusionPrecision = Precision.AUTO,
) -> None:
    """Write mask, anomaly map, findings and tables for every scan. Re-run the same command to resume.

    Several GPUs: torchrun --nproc-per-node 4 -m anofpdm segment ...
    """
    slices_to_explain = None if explain is None else parse_explain(explain)
    from anofpdm.segment.inputs import find_targets, preview_dicom
    from anofpdm.segment.join import Part, write_part
    from anofpdm.segment.many import BatchSegmentation, OutputOptions
    from anofpdm.segment.model import load
    from anofpdm.util.distributed import World, set_local_device

    share = None if part is None else Part.parse(part)
    local_device = set_local_device(resolve_device(device))
    loaded = load(model, local_device, precision)
    request = loaded.request(
        engine=engine,
        explain=slices_to_explain,
        detector=detector,
        threshold=threshold,
        context=context,
        peak=peak,
        smallest=smallest,
        threshold_probability=threshold_probability,
        seed=seed,
        batch=batch,
        brain_mask=brain_mask,
        skull_strip=skull_strip,
        raw=raw,
        trust_header=trust_header,
    )
    unneeded = set(loaded.modalities) - set(request.modalities)
    inputs, series = (_without(unneeded, words) for words in (inputs, series or []))
    if preview:
        for line in preview_dicom(inputs, request.inputs, _parse_series(series)):
            print(line)
        return
    targets = find_targets(inputs, request.inputs, split, _parse_series(series), request.raw)
    targets = targets if share is None else share.select(targets)
    wanted = OutputOptions(pictures, report, dicom, seg_nrrd, label_table)
    run = BatchSegmentation(
        request, targets, out, wanted, strict, _print_stage, preparations, share is not None, overwrite
    )
    world = World.from_environment(local_device)
    try:
        with progress_bars(world.is_main) as progress:
            progress("Segmenting", 0, 0)
            reports = world.all_gather(run.run(world, progress))
    finally:
        world.close()
    raise_if_all_refused(reports)
    if world.is_main:
        print_reports(reports, out)
        if report and any(one.segmented or one.skipped for one in reports):
            print(printable(_next_step(targets, out)))
        if share is not None:
            failed = {name: reason for one in reports for name, reason in one.failed.items()}
            write_part(out, share, [target.subject.name for target in targets], failed)
    if any(one.failed for one in reports):
        raise typer.Exit(3)


def _print_stage(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)


def _without(modalities: set[str], words: list[str]) -> list[str]:
    """Drop modality=FILE and modality=SERIES of modalities that the engine does not use."""
    return [word for word in words if word.partition("=")[0] not in modalities]


def _parse_series(words: list[str]) -> dict[str, str] | None:
    if not words:
        return None
    from anofpdm.scans.dicom.match import parse_series

    return parse_series(words)


def raise_if_all_refused(reports: "Sequence[RunReport]") -> None:
    """One error where every scan has a result of another model, other options or another input."""
    from anofpdm.errors import OutputError

    refused = [report.failed[name] for report in reports for name in report.refused]
    others = any(report.segmented or report.skipped or len(report.failed) > len(report.refused) for report in reports)
    if refused and not others:
        count = f" ({len(refused)} scans are refused)" if len(refused) > 1 else ""
        raise OutputError(f"{refused[0]}{count}")


def print_reports(reports: "list[RunReport]", out: Path) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True, markup=False)
    segmented = {name: ml for report in reports for name, ml in report.segmented.items()}
    skipped = {name: ml for report in reports for name, ml in report.skipped.items()}
    missing = {name: names for report in reports for name, names in report.missing.items()}
    for name, ml in sorted({**skipped, **segmented}.items()):
        notes = [f"without {', '.join(missing[name])}"] if name in missing else []
        notes += ["already complete"] if name in skipped else []
        console.print(printable(f"{name}: {ml:.1f} ml" + (f"  ({'; '.join(notes)})" if notes else "")))
    for report in reports:
        for name, texts in report.warnings.items():
            for text in texts:
                console.print(printable(f"warning: {name}: {text}"))
        for name, reason in report.failed.items():
            console.print(printable(f"failed: {name}: {reason}"))
    counts = [f"{len(segmented)} {'scan' if len(segmented) == 1 else 'scans'} segmented"]
    counts += [f"{len(skipped)} already complete"]
    counts += [f"{failed} failed"] if (failed := sum(len(report.failed) for report in reports)) else []
    console.print(printable(f"{', '.join(counts)}, results in {out}"))


def _next_step(targets: "Sequence[Target]", out: Path) -> str:
    """How to look at the results."""
    from anofpdm.segment import outputs
    from anofpdm.segment.many import result_location

    if len(targets) > 1:
        return f"each scan has a report; all in a browser: anofpdm view {out}"
    folder, name = result_location(targets[0], out)
    return f"open {folder / name(outputs.REPORT)} in a browser"
