"""anofpdm ablate: what each choice of the method is worth, as figures and tables."""

from pathlib import Path
from typing import Annotated

import typer

from anofpdm.cli.options import Batch, Device, Seed, resolve_device
from anofpdm.cli.progress import progress_bar
from anofpdm.options import SignalChoice, Split, StrengthBy


def ablate(
    model: Annotated[Path, typer.Argument(help="A trained model.")],
    cohort: Annotated[Path, typer.Argument(help="A prepared cohort with lesion masks.")],
    out: Annotated[Path, typer.Option(help="Folder for figures, tables and the page.")],
    score: Annotated[str, typer.Option(help="Modalities that are scored, e.g. flair,t2. Default: all.")] = "",
    strengths: Annotated[str, typer.Option(help="Candidate guidance strengths.")] = "0,1,2,3,4,5,8,12,20,30",
    levels: Annotated[int, typer.Option(min=1, help="Noise levels in a range of 600.")] = 60,
    levels_tried: Annotated[str, typer.Option(help="Numbers of levels to compare, a pass each.")] = "10,20,30,60",
    gallery_levels: Annotated[
        str, typer.Option(help="Noise levels that the gallery shows, e.g. 100,300,500. Default: six, spread.")
    ] = "",
    variants: Annotated[
        bool, typer.Option(help="Compare the paper's variants too: two passes of all levels more.")
    ] = True,
    split: Annotated[Split, typer.Option(help="Which part of the cohort.")] = Split.VAL,
    most: Annotated[int, typer.Option(min=2, help="Slices to use at most, in whole scans.")] = 2000,
    batch: Batch = None,
    precision: Annotated[str, typer.Option(help="auto, fp32, bf16 or fp16.")] = "auto",
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Every ablation of the paper, calibrated by labels on one split and measured with its masks."""
    from anofpdm.calibration.fit import CalibrationConfig
    from anofpdm.cohorts import open_cohort
    from anofpdm.evaluation.ablations.figures import PAGE, save
    from anofpdm.evaluation.ablations.run import COMPARED, Options, measured_slices
    from anofpdm.evaluation.ablations.run import ablate as run
    from anofpdm.method.many_slices import batch_for
    from anofpdm.network.predictor import load_trained
    from anofpdm.util.distributed import set_local_device
    from anofpdm.util.files import folder_lock

    where = set_local_device(resolve_device(device))
    calibration = CalibrationConfig(
        score=tuple(name.strip() for name in score.split(",") if name.strip()),
        strengths=tuple(float(value) for value in _numbers(strengths, "--strengths", 0)),
        levels=levels,
        signal=SignalChoice.ERROR,  # as in the paper
        strength_by=StrengthBy.COSINE,
        split=split.value,
        most=most,
        seed=seed,
        batch=batch or batch_for(where),
    )
    tried = tuple(_whole(value, "--levels-tried") for value in _numbers(levels_tried, "--levels-tried", 1))
    shown = tuple(_whole(value, "--gallery-levels") for value in _numbers(gallery_levels, "--gallery-levels", 0))
    trained = load_trained(model, where, precision)
    slices = open_cohort(cohort)
    names = tuple(COMPARED) if variants else ("anofpdm-ddim", "anofpdm-ddim-last")
    measured_slices(slices, calibration)  # complains of missing masks before anything is written
    out.mkdir(parents=True, exist_ok=True)
    with folder_lock(out):
        with progress_bar("noise levels") as show:
            found = run(trained, slices, Options(calibration, tried, shown, names), show)
        save(found, out)
    for one in found.tables:
        print(f"{one.name}: {one.says}")
    print(f"{len(found.tables)} figures and tables; look at {out / PAGE}")


def _numbers(words: str, option: str, lowest: int) -> tuple[float, ...]:
    """None where nothing is written."""
    try:
        numbers = tuple(float(word) for word in words.split(",") if words.strip())
    except ValueError:
        raise typer.BadParameter(f"{words!r}: write numbers, e.g. 10,20", param_hint=option) from None
    if not all(lowest <= number < float("inf") for number in numbers):
        raise typer.BadParameter(f"{words!r}: numbers begin at {lowest}", param_hint=option)
    return numbers


def _whole(number: float, option: str) -> int:
    if number != int(number):
        raise typer.BadParameter(f"{number:g}: write whole numbers", param_hint=option)
    return int(number)
