"""anofpdm ablate: the effect of each choice of the method, as figures and tables."""

from pathlib import Path
from typing import Annotated

import typer

from anofpdm.choices import Precision, Signal, Split, StrengthBy
from anofpdm.cli import options
from anofpdm.cli.options import Model
from anofpdm.cli.progress import processes


def ablate(
    model: Model,
    cohort: Annotated[Path, typer.Argument(help="Prepared cohort with lesion masks.")],
    out: Annotated[Path, typer.Option(help="Folder for figures, tables and the page.")],
    score: options.Score = "",
    strengths: options.Strengths = options.STRENGTHS,
    levels: Annotated[int, typer.Option(min=1, help="Number of noise levels in a range of 600.")] = 60,
    levels_tried: Annotated[
        str, typer.Option(help="Numbers of noise levels to compare; a network pass each.")
    ] = "10,20,30,60",
    gallery_levels: Annotated[
        str, typer.Option(help="Noise levels in the gallery, e.g. 100,300,500. Default: six, evenly spaced.")
    ] = "",
    variants: Annotated[bool, typer.Option(help="Also compare the paper's variants: two more network passes.")] = True,
    split: Annotated[Split, typer.Option(help="Part of the cohort.")] = Split.VAL,
    most: Annotated[int, typer.Option(min=2, help="Maximum number of slices, in whole scans.")] = 2000,
    batch: options.Batch = None,
    precision: options.PrecisionOption = Precision.AUTO,
    seed: options.Seed = 0,
    device: options.Device = "auto",
) -> None:
    """The paper's ablations, calibrated with image-level labels of one split and scored with its lesion masks.

    Several GPUs: torchrun --nproc-per-node 4 -m anofpdm ablate ...
    """
    candidates = options.parse_numbers(strengths, "--strengths")
    tried = _parse_integers(levels_tried, "--levels-tried", 1)
    gallery = _parse_integers(gallery_levels, "--gallery-levels", 0)

    from anofpdm.calibration.fit_calibration import CalibrationConfig
    from anofpdm.cohorts import open_cohort
    from anofpdm.method.gather import batch_for
    from anofpdm.network.predictor import load_trained
    from anofpdm.study.ablations.ablation_report import PAGE, write_report
    from anofpdm.study.ablations.evidence_passes import measured_slices
    from anofpdm.study.ablations.run_ablations import AblationConfig
    from anofpdm.study.ablations.run_ablations import ablate as run
    from anofpdm.study.comparison.methods import VARIANTS
    from anofpdm.util.files import folder_lock

    where = options.resolve_device(device)
    calibration = CalibrationConfig(
        score=options.parse_names(score),
        strengths=candidates,
        levels=levels,
        signal=Signal.ERROR,  # as in the paper
        strength_by=StrengthBy.COSINE,
        split=split,
        most=most,
        seed=seed,
        batch=batch or batch_for(where),
    )
    trained = load_trained(model, where, precision)
    slices = open_cohort(cohort)
    names = tuple(VARIANTS) if variants else ("anofpdm-ddim", "anofpdm-ddim-last")
    measured_slices(slices, calibration)  # refuses missing masks before anything is written
    out.mkdir(parents=True, exist_ok=True)
    with processes(where) as (world, progress), folder_lock(out, needed=world.is_main):
        ablations = run(trained, slices, AblationConfig(calibration, tried, gallery, names), progress, world)
        if world.is_main:
            write_report(ablations, out)
    if world.is_main:
        for table in ablations.tables:
            print(f"{table.name}: {table.summary}")
        print(f"{len(ablations.tables)} figures and tables; report: {out / PAGE}")


def _parse_integers(text: str, option: str, lowest: int) -> tuple[int, ...]:
    """Empty if the option is empty."""
    numbers = options.parse_numbers(text, option, lowest) if text.strip() else ()
    if not all(number.is_integer() for number in numbers):
        raise typer.BadParameter(f"{text!r}: expected integers", param_hint=option)
    return tuple(map(int, numbers))
