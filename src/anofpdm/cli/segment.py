"""anofpdm segment: lesion masks for scans, in their own space."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anofpdm.cli.options import Batch, Device, resolve_device
from anofpdm.cli.progress import progress_bars
from anofpdm.options import Split
from anofpdm.util.text import printable

if TYPE_CHECKING:
    from anofpdm.cohorts.inputs import Target
    from anofpdm.method.decision import DecisionSettings
    from anofpdm.report.explanation import Explain
    from anofpdm.segment.many import Report
    from anofpdm.segment.model import Model


def segment(
    model: Annotated[Path, typer.Argument(help="A trained and calibrated model.")],
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="NIfTI files of a scan (or flair=FILE t2=FILE ...), folders of scans, DICOM, a prepared cohort."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the results, one folder a scan.")],
    engine: Annotated[
        str, typer.Option(help="diffusion, student, or auto: the student where the model has one.")
    ] = "auto",
    explain: Annotated[
        str | None,
        typer.Option(help="With a student: ask the diffusion model too, about slices (70,71) or about the findings."),
    ] = None,
    detector: Annotated[
        str | None, typer.Option(help="cosine, curve or none. Default: the better one by its calibration.")
    ] = None,
    threshold: Annotated[
        str | None, typer.Option(help="quantile (the paper's), healthy, or both. Default: both.")
    ] = None,
    context: Annotated[
        float | None, typer.Option(min=0, help="Millimetres that slices look at their neighbours. Default: calibrated.")
    ] = None,
    peak: Annotated[
        float | None,
        typer.Option(min=0, max=0.99, help="Share of a slice's peak that its mask must reach as well. Default: 0.2."),
    ] = None,
    smallest: Annotated[
        int | None,
        typer.Option(min=0, help="Components of so many pixels (of 128 x 128) or fewer are dropped. Default: 40."),
    ] = None,
    brain_mask: Annotated[Path | None, typer.Option(help="NIfTI mask of the brain, for one scan.")] = None,
    skull_strip: Annotated[
        str | None, typer.Option(help="Your skull-stripping command, with {input} and {output} in it.")
    ] = None,
    series: Annotated[
        list[str] | None, typer.Option(help="DICOM: which series is which, e.g. flair=3. May be repeated.")
    ] = None,
    preview: Annotated[bool, typer.Option("--preview", help="DICOM: show what would be used, and stop.")] = False,
    dicom: Annotated[bool, typer.Option("--dicom", help="DICOM: write results as DICOM too.")] = False,
    split: Annotated[Split | None, typer.Option(help="Only this part of a prepared cohort.")] = None,
    batch: Batch = None,
    precision: Annotated[str, typer.Option(help="auto, fp32, bf16 or fp16.")] = "auto",
    seed: Annotated[int | None, typer.Option(min=0, help="Of the noise. Default: as calibrated.")] = None,
    strict: Annotated[bool, typer.Option(help="Stop at the first scan that fails.")] = False,
    pictures: Annotated[bool, typer.Option(help="Draw an overview of each scan.")] = True,
    pages: Annotated[
        bool, typer.Option("--report/--no-report", help="Write a page to open in a browser for each scan.")
    ] = True,
    device: Device = "auto",
) -> None:
    """Mask, anomaly map, findings and tables for every scan. Stopped halfway, the same command goes on.

    Several GPUs: torchrun --nproc-per-node 4 -m anofpdm segment ...
    """
    from anofpdm.errors import ConfigError
    from anofpdm.segment.many import Options, segment_all
    from anofpdm.segment.model import load
    from anofpdm.util.distributed import World, set_local_device

    if brain_mask is not None and skull_strip is not None:
        raise ConfigError("--brain-mask and --skull-strip both say where the brain is; give one of them")
    where = set_local_device(resolve_device(device))
    loaded = load(model, where, precision)
    given = {
        "detector": detector,
        "context": context,
        "threshold": threshold,
        "peak": peak,
        "smallest": smallest,
        "seed": seed,
    }
    if explain is not None:  # the noise of what explains
        given.pop("seed")
    choices = _choices(loaded, engine, {name: value for name, value in given.items() if value is not None})
    explained = _explained(explain, engine)
    if loaded.engine(engine) == "diffusion":
        explained = None  # it explains every slice as it is
    needed = loaded.modalities(engine, explained=explained is not None)
    inputs, series = (_without_spare(words, loaded, needed) for words in (inputs, series or []))
    if preview:
        _preview(inputs, needed, series)
        return
    targets = _targets(inputs, needed, split.value if split else None, series)
    if dicom and not any(target.study is not None for target in targets):
        raise ConfigError("--dicom: none of these scans is DICOM, so there is nothing to write it for; leave it out")
    if brain_mask is not None:
        _check_brain_mask(brain_mask, len(targets))
    options = Options(choices, engine, seed, batch, brain_mask, skull_strip, pictures, pages, strict, dicom, explained)
    world = World.from_environment(where)
    try:
        with progress_bars(world.is_main) as show:
            show("scans", 0, 0)
            report = segment_all(
                loaded, targets, out, options, world, lambda name, done, total: show("scans", done, total, name)
            )
        reports = world.all_gather(report)
    finally:
        world.close()
    if world.is_main:
        _print(reports, out)
    if any(one.failed for one in reports):
        raise typer.Exit(3)


def _choices(loaded: "Model", engine: str, given: dict[str, Any]) -> "DecisionSettings":
    """The model's usual ones, with what is given in their place."""
    from dataclasses import replace

    from anofpdm.errors import ConfigError
    from anofpdm.method.decision import fit_for

    if given and loaded.engine(engine) == "student":
        named = ", ".join(f"--{name}" for name in given)
        raise ConfigError(f"{named}: the student has no such choice; add --engine diffusion, or leave it out")
    usual, names = loaded.usual_choices, {"threshold": "threshold", "peak": "peak_share", "smallest": "smallest"}
    mask = replace(usual.mask, **{name: given[word] for word, name in names.items() if word in given})
    choices = replace(
        usual,
        mask=mask,
        detector=given.get("detector", usual.detector),
        context_mm=given.get("context", usual.context_mm),
    )
    fit_for(loaded.calibration, choices)
    return choices


def _explained(words: str | None, engine: str) -> "Explain":
    """Slices, or the findings."""
    from anofpdm.errors import ConfigError

    if words is None:
        return None
    if engine == "diffusion":
        raise ConfigError("--explain: the diffusion engine explains every slice as it is; leave it out")
    if words.strip() == "findings":
        return "findings"
    numbers = [word.strip() for word in words.split(",")]
    if not all(number.isdecimal() for number in numbers):
        raise ConfigError(f"--explain {words}: write findings, or numbers of slices, e.g. 70,71")
    return tuple(int(number) for number in numbers)


def _without_spare(words: list[str], loaded: "Model", needed: tuple[str, ...]) -> list[str]:
    """modality=FILE and modality=SERIES without modalities that a student does not look at."""
    spare = set(loaded.trained.modalities) - set(needed)
    return [word for word in words if word.partition("=")[0] not in spare]


def _preview(inputs: list[str], modalities: tuple[str, ...], series: list[str]) -> None:
    from anofpdm.cohorts.inputs import preview_dicom

    for line in preview_dicom(inputs, modalities, _series(series)):
        print(line)


def _targets(inputs: list[str], modalities: tuple[str, ...], split: str | None, series: list[str]) -> "list[Target]":
    from anofpdm.cohorts.inputs import find_targets

    return find_targets(inputs, modalities, split, _series(series))


def _series(words: list[str]) -> dict[str, str] | None:
    if not words:
        return None
    from anofpdm.scans.dicom.match import parse_series

    return parse_series(words)


def _check_brain_mask(path: Path, scans: int) -> None:
    from anofpdm.errors import ConfigError

    if scans > 1:
        raise ConfigError(f"--brain-mask is of one scan, and {scans} are given; use --skull-strip, or one by one")
    if not path.is_file():
        raise ConfigError(f"--brain-mask {path}: no such file; check the path")


def _print(reports: "list[Report]", out: Path) -> None:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True, markup=False)
    done = {name: ml for report in reports for name, ml in report.done.items()}
    already = {name: ml for report in reports for name, ml in report.already.items()}
    for name, ml in sorted({**already, **done}.items()):
        console.print(printable(f"{name}: {ml:.1f} ml" + ("  (done before)" if name in already else "")))
    for report in reports:
        for name, notes in report.warnings.items():
            for note in notes:
                console.print(printable(f"note: {name}: {note}"))
        for name, reason in report.failed.items():
            console.print(printable(f"failed: {name}: {reason}"))
    console.print(printable(f"{len(done)} scans segmented, {len(already)} done before, results in {out}"))
