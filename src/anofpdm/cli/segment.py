"""anofpdm segment: lesion masks for scans, in their own space."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anofpdm.cli.options import Batch, Device, Model, Overwrite, PrecisionOption, resolve_device
from anofpdm.cli.progress import progress_bars
from anofpdm.options import Detector, Engine, Precision, Raw, Split, Threshold
from anofpdm.util.text import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anofpdm.cohorts.inputs import Target
    from anofpdm.report.explanation import Explain
    from anofpdm.segment.many import RunReport


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
    engine: Annotated[
        Engine, typer.Option(help="What makes the masks. auto: the student, if the model has one.")
    ] = Engine.AUTO,
    explain: Annotated[
        str | None,
        typer.Option(
            help="Student engine: let the report show the diffusion model's curves too, for slices (70,71) or findings."
        ),
    ] = None,
    detector: Annotated[
        Detector | None,
        typer.Option(help="What decides whether a slice is unhealthy. Default: calibrated, the more accurate one."),
    ] = None,
    threshold: Annotated[
        Threshold | None,
        typer.Option(
            help="Threshold of the anomaly map: a quantile (the paper), a percentile of healthy slices, or their "
            "geometric mean. Default: both."
        ),
    ] = None,
    context: Annotated[
        float | None, typer.Option(min=0, help="Smoothing across slices (sigma, mm). Default: as calibrated.")
    ] = None,
    peak: Annotated[
        float | None,
        typer.Option(min=0, max=0.99, help="Fraction of a slice's maximum that its mask must reach. Default: 0.2."),
    ] = None,
    smallest: Annotated[
        int | None,
        typer.Option(min=0, help="Remove components of at most this many pixels (of 128 x 128). Default: 40."),
    ] = None,
    brain_mask: Annotated[Path | None, typer.Option(help="Brain mask (NIfTI) of a single scan.")] = None,
    skull_strip: Annotated[
        str | None, typer.Option(help="Skull-stripping command, containing {input} and {output}.")
    ] = None,
    raw: Annotated[
        Raw, typer.Option(help="Register and skull-strip the series of a scan first. auto: where they need it.")
    ] = Raw.AUTO,
    preparations: Annotated[
        Path | None,
        typer.Option(help="Folder for prepared raw series, shared by runs with several models. Default: in --out."),
    ] = None,
    series: Annotated[
        list[str] | None, typer.Option(help="DICOM: the series of a modality, e.g. flair=3. May be repeated.")
    ] = None,
    preview: Annotated[
        bool, typer.Option("--preview", help="DICOM: list the series that would be used, and exit.")
    ] = False,
    dicom: Annotated[bool, typer.Option("--dicom", help="DICOM: also write the results as DICOM.")] = False,
    seg_nrrd: Annotated[
        bool, typer.Option("--seg-nrrd", help="Also write masks as .seg.nrrd, segmentations of 3D Slicer.")
    ] = False,
    label_table: Annotated[
        bool, typer.Option("--label-table", help="Also write name and colour of the label in masks, for ITK-SNAP.")
    ] = False,
    split: Annotated[Split | None, typer.Option(help="Only this split of a prepared cohort.")] = None,
    part: Annotated[
        str | None,
        typer.Option(metavar="K/N", help="Only part K of N of the scans: for array jobs, which share --out."),
    ] = None,
    batch: Batch = None,
    precision: PrecisionOption = Precision.AUTO,
    seed: Annotated[int | None, typer.Option(min=0, help="Noise seed. Default: as calibrated.")] = None,
    overwrite: Overwrite = False,
    strict: Annotated[bool, typer.Option(help="Stop at the first scan that fails.")] = False,
    pictures: Annotated[bool, typer.Option(help="Write an overview picture of each scan.")] = True,
    report: Annotated[bool, typer.Option(help="Write a report (HTML) of each scan.")] = True,
    device: Device = "auto",
) -> None:
    """Write mask, anomaly map, findings and tables for every scan. Re-run the same command to resume.

    Several GPUs: torchrun --nproc-per-node 4 -m anofpdm segment ...
    """
    slices_to_explain = None if explain is None else parse_explain(explain)
    from anofpdm.cohorts.inputs import find_targets, preview_dicom
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
        seed=seed,
        batch=batch,
        brain_mask=brain_mask,
        skull_strip=skull_strip,
        raw=raw,
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
        loaded, request, targets, out, wanted, strict, _print_stage, preparations, share is not None, overwrite
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
