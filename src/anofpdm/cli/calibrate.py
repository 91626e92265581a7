"""anofpdm calibrate: guidance strength, detectors and thresholds from image-level labels."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from anofpdm.choices import Encoding, Precision, Signal, Split, StrengthBy
from anofpdm.cli import options
from anofpdm.cli.options import OwnModel
from anofpdm.cli.output import print_lines, print_rows
from anofpdm.cli.progress import processes

if TYPE_CHECKING:
    from anofpdm.calibration.fit_calibration import LabelledEvidence
    from anofpdm.method.calibration import Calibration


def calibrate(
    model: OwnModel,
    cohort: options.PreparedCohort,
    score: options.Score = "",
    strengths: options.Strengths = options.STRENGTHS,
    levels: Annotated[int, Option(min=1, help="Number of noise levels, in a range of 600.")] = 10,
    noise_range: Annotated[int, Option("--range", min=1, max=1000, help="Noise levels are below this one.")] = 600,
    encoding: Annotated[
        Encoding, Option(help="How slices are noised: DDIM inversion, or fresh noise at every level.")
    ] = Encoding.DDIM,
    signal: Annotated[
        Signal,
        Option(
            help="Signal averaged into the anomaly map. error: as in the paper. agreement: geometric mean of error and "
            "gradient. auto: error, or agreement with the best share of the gradient."
        ),
    ] = Signal.AUTO,
    accuracy_ratio: Annotated[
        float, Option(min=0, max=1, help="Share of the best candidate's score that w* must reach.")
    ] = 0.98,
    strength_by: Annotated[
        StrengthBy,
        Option(help="Choose the guidance strength by how well maps separate the labels, or by the cosine (the paper)."),
    ] = StrengthBy.MAP,
    context: Annotated[float, Option(min=0, help="Smoothing across slices (sigma, mm).")] = 2.0,
    split: Annotated[Split, Option(help="Part of the cohort to calibrate on.")] = Split.VAL,
    most: Annotated[int, Option(min=2, help="Maximum number of slices; whole scans are used.")] = 2000,
    batch: options.Batch = None,
    precision: options.PrecisionOption = Precision.AUTO,
    seed: options.Seed = 0,
    device: options.Device = "auto",
) -> None:
    """Choose guidance strength and signal, fit both detectors and the thresholds, from image-level labels alone.

    Writes calibration.json and calibration.png beside the weights.

    Several GPUs: torchrun --nproc-per-node 4 -m anofpdm calibrate ...
    """
    from anofpdm.calibration.calibration_file import save_calibration
    from anofpdm.calibration.figure import draw_calibration
    from anofpdm.calibration.fit_calibration import CalibrationConfig, fit_calibration
    from anofpdm.cohorts import open_cohort
    from anofpdm.method.gather import batch_for
    from anofpdm.network.predictor import load_trained
    from anofpdm.util.files import folder_lock

    where = options.resolve_device(device)
    config = CalibrationConfig(
        score=options.parse_names(score),
        strengths=options.parse_numbers(strengths, "--strengths"),
        levels=levels,
        top=noise_range,
        encoding=encoding,
        signal=signal,
        accuracy_ratio=accuracy_ratio,
        strength_by=strength_by,
        context_mm=context,
        split=split,
        most=most,
        seed=seed,
        batch=batch or batch_for(where),
    )
    trained = load_trained(model, where, precision)
    slices = open_cohort(cohort)
    with processes(where) as (world, progress), folder_lock(model, needed=world.is_main):
        calibration, gathered = fit_calibration(trained, slices, config, progress, world)
        if world.is_main:
            save_calibration(calibration, draw_calibration(calibration, gathered), model)
    if world.is_main:
        _print(calibration, gathered, model)


def _print(calibration: "Calibration", gathered: "LabelledEvidence", model: Path) -> None:
    from anofpdm.calibration.calibration_file import FIGURE, FILE
    from anofpdm.labels import UNHEALTHY

    settings = calibration.settings
    _print_candidates(calibration)
    _print_detectors(calibration)
    print_lines(*_notes(calibration, model))
    if calibration.n_estimated:
        n_unhealthy = int((gathered.labels[gathered.suspected] == UNHEALTHY).sum())
        print_lines(
            f"labels of {calibration.n_estimated} slices were estimated, as their scans are labelled unhealthy as a "
            f"whole: {n_unhealthy} unhealthy; accuracies refer to these estimates"
        )
    print_lines(
        f"{calibration.n_healthy} healthy and {calibration.n_unhealthy} unhealthy slices of {calibration.n_patients} "
        f"patients, noise levels 0..{settings.levels[-1]}, maps of {settings.signal}, "
        f"{settings.gradient_share:.0%} gradient; saved {model / FILE} and {model / FIGURE}"
    )


def _print_candidates(calibration: "Calibration") -> None:
    rows, named = [], {"best": calibration.best_strength, "chosen": calibration.strength}
    for row in calibration.candidates:
        marks = ", ".join(name for name, strength in named.items() if strength == row.strength)
        numbers = (f"{row.accuracy:.3f}", f"{row.auc:.3f}", f"{row.cut:.4f}", f"{row.map_auc:.3f}")
        rows.append((f"{row.strength:g}", *numbers, marks))
    print_rows(("w", "accuracy", "AUC", "cut of the cosine", "AUC of maps", ""), rows)


def _print_detectors(calibration: "Calibration") -> None:
    detectors = [("cosine", 0.0, calibration.cosine_accuracy)]
    detectors += [("curve", fit.context_mm, fit.curve_accuracy) for fit in calibration.fitted]
    rows = []
    for name, context_mm, accuracy in detectors:
        mark = "default" if name == calibration.detector and context_mm == 0 else ""
        rows.append((name, f"{context_mm:g} mm", f"{accuracy.accuracy:.3f}", f"{accuracy.auc:.3f}", mark))
    print_rows(("detector", "smoothing", "accuracy", "AUC", "(held-out patients)"), rows)


def _notes(calibration: "Calibration", model: Path) -> list[str]:
    notes = []
    if calibration.at_edge:
        by_map = calibration.strength_by == StrengthBy.MAP
        which, strength = ("chosen", calibration.strength) if by_map else ("best", calibration.best_strength)
        notes.append(f"note: the {which} strength, {strength:g}, is the largest candidate; try larger ones too")
    if (model / "student" / "weights.safetensors").is_file():
        notes.append("note: the student was trained with the previous calibration; run `anofpdm distill` again")
    if calibration.n_patients < 2:
        notes.append("note: all slices are of one patient, so no accuracy on held-out patients is known; use more")
    return notes
