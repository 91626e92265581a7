"""anofpdm fit: a model from a group's own scans and labels, in one command."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from anofpdm.choices import Layout, Preset, Raw
from anofpdm.cli import options
from anofpdm.cli.progress import progress_bars
from anofpdm.util.text import printable


def fit(
    src: Annotated[Path, Argument(help="Folder with the scans.")],
    out: Annotated[Path, Option(help="Folder of the model.")],
    labels: options.LabelTable = None,
    layout: Annotated[
        Layout | None, Option(help="Folder layout of SRC. Default: bids if SRC looks like it, else nifti.")
    ] = None,
    split: Annotated[
        Path | None,
        Option(help="CSV file (patient,split). Default: a fifth of the patients for validation, at random."),
    ] = None,
    modalities: options.Modalities = "",
    size: Annotated[int, Option(help="Pixels along each side of a slice, a multiple of 16.")] = 128,
    raw: options.PreparedRaw = Raw.AUTO,
    keep_isolated: options.KeepIsolated = False,
    fill_labels: options.FillLabels = 0.0,
    preset: Annotated[Preset, Option(help="Size of the network.")] = Preset.SMALL,
    steps: Annotated[int | None, Option(min=1, help="Training steps, over all runs. Default: 10,000.")] = None,
    minutes: Annotated[
        float | None, Option(min=0, help="Time for all stages (minutes), over all runs, instead of --steps.")
    ] = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Only check labels, files and split, and estimate the time.")
    ] = False,
    score: options.Score = "",
    seed: options.Seed = 0,
    workers: options.Workers = 0,
    device: options.Device = "auto",
) -> None:
    """Prepare, train, calibrate and distil a model on your own scans, and write a page about it (OUT/index.html).

    Re-run the same command to resume: finished stages are skipped. With more --steps or --minutes, training continues.
    """
    from anofpdm.errors import ConfigError
    from anofpdm.fit.fit_config import DEFAULT_STEPS, FitConfig, detect_layout
    from anofpdm.fit.run_fit import Fit

    if steps is not None and minutes is not None:
        raise ConfigError("--steps and --minutes: give one of them")
    config = FitConfig(
        source=src,
        layout=layout or detect_layout(src),
        out=out,
        labels=labels,
        split=split,
        modalities=options.parse_names(modalities),
        size=size,
        raw=raw,
        keep_isolated=keep_isolated,
        fill_labels_mm=fill_labels,
        steps=steps or DEFAULT_STEPS,
        minutes=minutes,
        preset=preset,
        score=options.parse_names(score),
        seed=seed,
        workers=workers,
    )
    local_device = options.resolve_device(device)
    run = Fit(config, local_device, lambda note: print(printable(note), flush=True))
    if dry_run:
        if not run.preview():
            raise Exit(3)
        return
    with progress_bars() as progress:
        result = replace(run, progress=progress).run()
    print(f"model saved in {out}; open {out / 'index.html'}")
    if result.is_partial:
        raise Exit(3)
