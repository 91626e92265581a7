"""anofpdm distill: a small student network, taught by a model's own masks."""

import math
from pathlib import Path
from typing import Annotated

import typer

from anofpdm.cli.options import Batch, Device, resolve_device
from anofpdm.cli.progress import progress_bars


def distill(
    model: Annotated[Path, typer.Argument(help="A trained and calibrated model; the student lands inside it.")],
    cohort: Annotated[Path, typer.Argument(help="A prepared cohort. No mask in it is looked at.")],
    steps: Annotated[int, typer.Option(min=1, help="Steps that the student learns, at most.")] = 3000,
    minutes: Annotated[float | None, typer.Option(min=0, help="Minutes that it learns, at most.")] = None,
    width: Annotated[int, typer.Option(min=8, help="Channels of its first layer.")] = 32,
    neighbours: Annotated[
        str, typer.Option(help="Millimetres to other slices that it sees too, e.g. -4,4; auto: the next ones; or none.")
    ] = "auto",
    rounds: Annotated[int, typer.Option(min=1, help="From the second on, it learns what the one before draws.")] = 1,
    learning_rate: Annotated[float, typer.Option(help="Its highest value.")] = 1e-3,
    seed: Annotated[int, typer.Option(min=0, help="What all randomness starts from.")] = 0,
    half_weights: Annotated[
        bool, typer.Option("--half-weights", help="Save the student in half precision, at half the size.")
    ] = False,
    onnx: Annotated[bool, typer.Option("--onnx", help="Write the student as ONNX too.")] = False,
    batch: Batch = None,
    precision: Annotated[str, typer.Option(help="Of the teacher: auto, fp32, bf16 or fp16.")] = "auto",
    device: Device = "auto",
) -> None:
    """Let the model draw the training slices, and teach a network to draw the same in one look.

    Stopped halfway, the same command goes on with what is drawn. Several GPUs: torchrun --nproc-per-node 4 -m anofpdm
    distill ...
    """
    import torch

    from anofpdm.calibration.fit import load_calibration
    from anofpdm.cohorts import open_cohort
    from anofpdm.network.predictor import load_trained
    from anofpdm.student.distill import Options
    from anofpdm.student.distill import distill as teach
    from anofpdm.student.export import check_can_export, export_onnx
    from anofpdm.student.model import FOLDER, ONNX
    from anofpdm.student.training import Schooling
    from anofpdm.util.distributed import World, set_local_device

    if onnx:
        check_can_export()
    torch.backends.cudnn.benchmark = True
    where = set_local_device(resolve_device(device))
    trained = load_trained(model, where, precision)
    calibration, _ = load_calibration(trained)
    options = Options(
        Schooling(steps, minutes, learning_rate=learning_rate, seed=seed),
        width=width,
        neighbours_mm=_millimetres(neighbours),
        rounds=rounds,
        half_weights=half_weights,
        batch=batch,
    )
    world = World.from_environment(where)
    try:
        with progress_bars(world.is_main) as show:
            student = teach(trained, calibration, open_cohort(cohort), options, world, show)
    finally:
        world.close()
    if student is not None:
        if onnx:
            export_onnx(student, model / FOLDER / ONNX)
        found = student.calibration
        print(
            f"the student of {model} tells {found.n_healthy} healthy and {found.n_unhealthy} unhealthy slices apart "
            f"with accuracy {found.accuracy:.3f}, AUC {found.auc:.3f}; `anofpdm segment` now uses it"
        )


def _millimetres(words: str) -> tuple[float, ...] | None:
    """None: the slices next to each."""
    if words.strip() in ("auto", "none", ""):
        return None if words.strip() == "auto" else ()
    try:
        found = tuple(float(word) for word in words.split(",") if word.strip())
    except ValueError:
        found = (0.0,)
    if 0.0 in found or not all(map(math.isfinite, found)):
        raise typer.BadParameter(
            f"{words!r}: write auto, none, or distances other than 0, e.g. -4,4", param_hint="--neighbours"
        )
    return found
