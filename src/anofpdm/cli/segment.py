"""anofpdm segment: lesion masks for scans, in their own space."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, BadParameter, Exit, Option

from anofpdm.choices import Detector, Engine, Precision, Raw, Split, Threshold
from anofpdm.cli import options
from anofpdm.cli.output import print_lines, problem_lines
from anofpdm.cli.progress import processes
from anofpdm.util.text import printable

FILES, RAW, DICOM, CLUSTERS, DIFFUSION = (
    partial(Option, rich_help_panel=panel) for panel in ("Files", options.RAW, "DICOM", "Clusters", options.DIFFUSION)
)

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
        raise BadParameter(f"{text}: give findings, or slice numbers, e.g. 70,71")
    return tuple(int(number) for number in numbers)


def segment(
    model: options.Model,
    inputs: Annotated[
        list[str],
        Argument(
            help="NIfTI files of a scan (or flair=FILE t2=FILE ...), folders of scans, DICOM, or a prepared cohort."
        ),
    ],
    out: Annotated[Path, Option(help="Folder for the results, with one subfolder per scan.")],
    engine: options.EngineOption = Engine.AUTO,
    threshold_probability: options.ThresholdProbability = None,
    smallest: options.Smallest = None,
    explain: Annotated[
        str | None,
        Option(
            help="Show the diffusion model's curves in the report of a student's mask: findings, or slices (70,71)."
        ),
    ] = None,
    split: Annotated[Split | None, Option(help="Only this split of a prepared cohort.")] = None,
    device: options.Device = "auto",
    report: Annotated[bool, FILES(help="Write a report (HTML) of each scan.")] = True,
    pictures: Annotated[bool, FILES(help="Write an overview picture of each scan.")] = True,
    seg_nrrd: Annotated[
        bool,
        FILES("--seg-nrrd", help="Also write masks as .seg.nrrd, segmentations of 3D Slicer."),
    ] = False,
    label_table: Annotated[
        bool,
        FILES("--label-table", help="Also write name and colour of the label in masks, for ITK-SNAP."),
    ] = False,
    overwrite: options.Overwrite = False,
    trust_header: Annotated[
        bool, Option("--trust-header", help="Segment also a scan whose size in its header no head has.")
    ] = False,
    raw: options.RawOption = Raw.AUTO,
    brain_mask: Annotated[Path | None, RAW(help="Brain mask (NIfTI) of a single scan.")] = None,
    skull_strip: Annotated[
        str | None,
        RAW(help="Skull-stripping command, containing {input} and {output}."),
    ] = None,
    preparations: Annotated[
        Path | None,
        RAW(help="Folder for prepared raw series, shared by runs with several models. Default: in --out."),
    ] = None,
    series: Annotated[
        list[str] | None,
        DICOM(help="Series of a modality, e.g. flair=3. May be repeated."),
    ] = None,
    preview: Annotated[
        bool,
        DICOM("--preview", help="List the series that would be used, and exit."),
    ] = False,
    dicom: Annotated[bool, DICOM("--dicom", help="Also write the results as DICOM.")] = False,
    part: Annotated[
        str | None,
        CLUSTERS(metavar="K/N", help="Only part K of N of the scans, for array jobs that share --out."),
    ] = None,
    strict: Annotated[bool, CLUSTERS("--strict", help="Stop at the first scan that fails.")] = False,
    detector: Annotated[
        Detector | None,
        DIFFUSION(help="Detector of unhealthy slices. calibrated: the one that was more accurate in calibration."),
    ] = None,
    threshold: Annotated[
        Threshold | None,
        DIFFUSION(
            help="Threshold of the anomaly map: a quantile (the paper), a percentile of healthy slices, or both: their "
            "geometric mean."
        ),
    ] = None,
    context: Annotated[
        float | None,
        DIFFUSION(min=0, help="Smoothing across slices (sigma, mm)."),
    ] = None,
    peak: Annotated[
        float | None,
        DIFFUSION(min=0, max=0.99, help="Fraction of a slice's maximum that its mask must reach."),
    ] = None,
    seed: Annotated[int | None, DIFFUSION(min=0, help="Noise seed, also of --explain.")] = None,
    batch: options.DiffusionBatch = None,
    precision: options.DiffusionPrecision = Precision.AUTO,
) -> None:
    """Write mask, anomaly map, findings and tables for every scan. Re-run the same command to resume.

    Several GPUs: torchrun --nproc-per-node 4 -m anofpdm segment ...
    """
    slices_to_explain = None if explain is None else parse_explain(explain)
    from anofpdm.segment import outputs
    from anofpdm.segment.inputs import find_targets, preview_dicom
    from anofpdm.segment.join import Part, write_part
    from anofpdm.segment.many import BatchSegmentation
    from anofpdm.segment.model import load

    share = None if part is None else Part.parse(part)
    local_device = options.resolve_device(device)
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
    unneeded = set(loaded.modalities) - set(request.modalities)  # the engine does not use modality=FILE of these
    inputs, series = ([w for w in words if w.partition("=")[0] not in unneeded] for words in (inputs, series or []))
    chosen_series = _parse_series(series)
    if preview:
        for line in preview_dicom(inputs, request.inputs, chosen_series):
            print(line)
        return
    targets = find_targets(inputs, request.inputs, split, chosen_series, request.raw)
    targets = targets if share is None else share.select(targets)
    files = {
        outputs.OVERVIEW: pictures,
        outputs.REPORT: report,
        outputs.SEG_NRRD: seg_nrrd,
        outputs.LABEL_TABLE: label_table,
        outputs.DICOM_SEG: dicom,
    }
    segmentation = BatchSegmentation(
        request,
        targets,
        out,
        files=[file for file, wanted in files.items() if wanted],
        strict=strict,
        report_stage=_print_stage,
        preparations=preparations,
        shared=share is not None,
        overwrite=overwrite,
    )
    with processes(local_device) as (world, progress):
        progress("Segmenting", 0, 0)
        run = segmentation.run(world, progress)
    if world.is_main:
        print_report(run, out, _next_step(targets, out) if report else "")
    if world.is_main and share is not None:
        write_part(out, share, [target.subject.name for target in targets], run.failed)
    if run.failed:
        raise Exit(3)


def _print_stage(line: str) -> None:
    print(printable(line), file=sys.stderr, flush=True)


def _parse_series(words: list[str]) -> dict[str, str] | None:
    if not words:
        return None
    from anofpdm.scans.dicom.match import parse_series

    return parse_series(words)


def print_report(run: "RunReport", out: Path, next_step: str = "") -> None:
    """One error where every scan has a result of something else."""
    from anofpdm.errors import OutputError

    complete = {**run.skipped, **run.segmented}
    if run.refused and not complete and len(run.failed) == len(run.refused):
        count = f" ({len(run.refused)} scans are refused)" if len(run.refused) > 1 else ""
        raise OutputError(f"{next(iter(run.refused.values()))}{count}")
    for name, summary in sorted(complete.items()):
        notes = [f"without {', '.join(summary.missing_modalities)}"] if summary.missing_modalities else []
        notes += ["already complete"] if name in run.skipped else []
        print_lines(f"{name}: {summary.volume_ml:.1f} ml" + (f"  ({'; '.join(notes)})" if notes else ""))
    warnings = [(name, text) for name, texts in run.warnings.items() for text in texts]
    counts = f"{len(run.segmented)} {'scan' if len(run.segmented) == 1 else 'scans'} segmented, "
    counts += f"{len(run.skipped)} already complete" + (f", {len(run.failed)} failed" if run.failed else "")
    print_lines(*problem_lines(warnings, run.failed), f"{counts}, results in {out}")
    if next_step and complete:
        print_lines(next_step)


def _next_step(targets: "Sequence[Target]", out: Path) -> str:
    """How to look at the results."""
    from anofpdm.segment import outputs
    from anofpdm.segment.many import result_files

    if len(targets) != 1:
        return f"each scan has a report; all in a browser: anofpdm view {out}"
    return f"open {result_files(targets[0], out).path(outputs.REPORT)} in a browser"
