"""anofpdm distill: train a small student network on a model's own masks."""

import math
from typing import Annotated

from typer import BadParameter, Option

from anofpdm.choices import Precision, WeightFormat
from anofpdm.cli.options import (
    Batch,
    Device,
    OwnModel,
    PrecisionOption,
    PreparedCohort,
    Seed,
    Weights,
    parse_names,
    resolve_device,
)
from anofpdm.cli.progress import processes


def distill(
    model: OwnModel,
    cohort: PreparedCohort,
    steps: Annotated[int, Option(min=1, help="Maximum training steps.")] = 3000,
    minutes: Annotated[float | None, Option(min=0, help="Maximum training time (minutes).")] = None,
    width: Annotated[int, Option(min=8, help="Channels of the student's first layer; a multiple of 8.")] = 32,
    neighbours: Annotated[
        str,
        Option(
            help="Offsets (mm) of neighbouring slices that are further inputs of the student, e.g. -4,4; "
            "auto: one slice on each side; none: no neighbours."
        ),
    ] = "auto",
    modalities: Annotated[
        str, Option(help="Modalities of the student, e.g. flair,t2. Default: the scored and the optional ones.")
    ] = "",
    optional: Annotated[
        str,
        Option(help="Modalities that a scan may lack; each is left out in a quarter of the training slices."),
    ] = "",
    thick_slices: Annotated[
        bool,
        Option(
            "--thick-slices",
            help="Also train on slices averaged as in scans with thicker slices, with the same masks.",
        ),
    ] = False,
    students: Annotated[
        int,
        Option(
            min=1, max=9, help="Train this number of students first; the saved one is trained on their mean prediction."
        ),
    ] = 1,
    learning_rate: Annotated[float, Option(help="Maximum learning rate.")] = 1e-3,
    seed: Seed = 0,
    weights: Weights = WeightFormat.FLOAT32,
    batch: Batch = None,
    precision: PrecisionOption = Precision.AUTO,
    device: Device = "auto",
) -> None:
    """Train a student that segments a slice in a single evaluation, on masks that the model predicts (pseudo-labels).

    Re-run the same command to resume with the pseudo-labels computed so far. Several GPUs: torchrun --nproc-per-node 4
    -m anofpdm distill ...
    """
    import torch

    from anofpdm.calibration.calibration_file import load_calibration
    from anofpdm.cohorts import open_cohort
    from anofpdm.labels import estimated_note
    from anofpdm.network.predictor import load_trained
    from anofpdm.student import distillation
    from anofpdm.student.student import FOLDER
    from anofpdm.student.train_student import StudentTrainingConfig

    config = distillation.DistillConfig(
        StudentTrainingConfig(steps, minutes, learning_rate=learning_rate, seed=seed, thick_slices=thick_slices),
        modalities=parse_names(modalities) or None,
        optional=parse_names(optional),
        students=students,
        width=width,
        neighbours_mm=_parse_offsets(neighbours),
        weights=weights,
        batch=batch,
    )
    torch.backends.cudnn.benchmark = True
    local_device = resolve_device(device)
    trained = load_trained(model, local_device, precision)
    calibration, _ = load_calibration(trained)
    with processes(local_device) as (world, progress):
        student = distillation.distill(trained, calibration, open_cohort(cohort), config, world, progress)
    if student is None:
        return
    rating = student.calibration
    print(
        f"student saved in {model / FOLDER}: accuracy {rating.accuracy:.3f}, AUC {rating.auc:.3f} on "
        f"{rating.n_healthy} healthy and {rating.n_unhealthy} unhealthy slices{estimated_note(rating.n_estimated)}; "
        "`anofpdm segment` uses it by default"
    )


def _parse_offsets(text: str) -> tuple[float, ...] | None:
    """None: one slice on each side."""
    if text.strip() in ("auto", "none", ""):
        return None if text.strip() == "auto" else ()
    try:
        offsets = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        offsets = (0.0,)
    if 0.0 in offsets or not all(map(math.isfinite, offsets)):
        raise BadParameter(f"{text!r}: use auto, none, or offsets other than 0, e.g. -4,4", param_hint="--neighbours")
    return offsets
