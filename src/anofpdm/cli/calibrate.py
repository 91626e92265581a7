"""anofpdm calibrate: guidance strength, detectors and thresholds from image-level labels."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anofpdm.cli.options import Batch, Device, Seed, resolve_device
from anofpdm.cli.progress import progress_bar

if TYPE_CHECKING:
    from anofpdm.calibration.fit import Calibrated


MOST, MOST_OF_RANGES = 2000, 1000  # slices; maps of every range are kept until one is chosen


class Split(StrEnum):
    train = "train"
    val = "val"
    test = "test"


def calibrate(
    model: Annotated[Path, typer.Argument(help="A trained model.")],
    cohort: Annotated[Path, typer.Argument(help="A prepared cohort with image-level labels.")],
    score: Annotated[str, typer.Option(help="Modalities that are scored, e.g. flair,t2. Default: all.")] = "",
    strengths: Annotated[str, typer.Option(help="Candidate guidance strengths.")] = "0,1,2,3,4,5,8,12,20,30",
    levels: Annotated[int, typer.Option(min=1, help="Noise levels in a range of 600.")] = 10,
    noise_range: Annotated[
        str, typer.Option("--range", help="Top of the noise range, or auto: chosen by labels.")
    ] = "600",
    encoding: Annotated[str, typer.Option(help="ddim or ddpm.")] = "ddim",
    signal: Annotated[
        str,
        typer.Option(
            help="What maps are of: error, as in the paper; agreement, of errors and gradients; auto: agreement where "
            "maps of errors are weak; or one of gradient, gradient-weighted, gradient-above."
        ),
    ] = "auto",
    accuracy_ratio: Annotated[float, typer.Option(min=0, max=1, help="How nearly as accurate w* must be.")] = 0.98,
    strength_by: Annotated[
        str,
        typer.Option(
            help="What chooses the strength: map, by how well maps tell labels apart, or cosine, as in the paper."
        ),
    ] = "map",
    context: Annotated[float, typer.Option(min=0, help="Millimetres that slices look at their neighbours.")] = 2.0,
    split: Annotated[Split, typer.Option(help="Which part of the cohort.")] = Split.val,
    most: Annotated[
        int | None,
        typer.Option(min=2, help="Slices at most, in whole scans. Default: 2000, of --range auto 1000."),
    ] = None,
    batch: Batch = None,
    precision: Annotated[str, typer.Option(help="auto, fp32, bf16 or fp16.")] = "auto",
    seed: Seed = 0,
    device: Device = "auto",
) -> None:
    """Choose guidance and maps and fit both detectors, from labels alone; the result lies beside the weights."""
    from anofpdm.calibration.fit import AUTO, Options, fit_calibration, save
    from anofpdm.cohorts import open_cohort
    from anofpdm.method.many_slices import batch_for
    from anofpdm.network.predictor import load_trained
    from anofpdm.util.distributed import set_local_device
    from anofpdm.util.files import folder_lock

    top, where = top_of(noise_range), set_local_device(resolve_device(device))
    options = Options(
        score=tuple(name.strip() for name in score.split(",") if name.strip()),
        strengths=numbers(strengths),
        levels=levels,
        top=top,
        encoding=encoding,
        signal=signal,
        accuracy_ratio=accuracy_ratio,
        strength_by=strength_by,
        context_mm=context,
        split=split.value,
        most=most or (MOST if top is not None else MOST_OF_RANGES),
        seed=seed,
        batch=batch or batch_for(where),
    )
    trained = load_trained(model, where, precision)
    slices = open_cohort(cohort)
    with folder_lock(model):
        with progress_bar("noise levels") as show:
            calibrated = fit_calibration(trained, slices, options, show)
        save(calibrated, model)
    _print(calibrated, model, chose_signal=signal == AUTO)


def numbers(words: str) -> tuple[float, ...]:
    try:
        found = tuple(float(word) for word in words.split(","))
    except ValueError:
        raise typer.BadParameter(f"{words!r}: write numbers, e.g. 0,2,4", param_hint="--strengths") from None
    if min(found) < 0:
        raise typer.BadParameter("guidance strengths begin at 0", param_hint="--strengths")
    return found


def top_of(word: str) -> int | None:
    if word == "auto":
        return None
    if not word.isdigit() or not 1 <= int(word) <= 1000:
        raise typer.BadParameter(f"{word!r}: write auto, or a level from 1 to 1000", param_hint="--range")
    return int(word)


def _print(calibrated: "Calibrated", model: Path, *, chose_signal: bool) -> None:
    from rich.console import Console
    from rich.table import Table

    from anofpdm.calibration.fit import FIGURE, FILE, RATED_BY, WEAK_MAPS
    from anofpdm.method.calibration import chosen_candidate

    calibration = calibrated.calibration
    console = Console(highlight=False, soft_wrap=True)
    if calibrated.ranges:
        ranges = Table("noise range", "accuracy", "AUC of M", box=None)
        for tried in calibrated.ranges:
            ranges.add_row(f"0..{tried.top - 1}", f"{tried.accuracy:.3f}", f"{tried.auc:.3f}")
        console.print(ranges)
    table = Table("w", "accuracy", "AUC", "cut of the cosine", "AUC of maps", "", box=None)
    for one in calibration.candidates:
        words = [
            word
            for word, strength in (("best", calibration.best_strength), ("chosen", calibration.strength))
            if one.strength == strength
        ]
        said = (f"{one.strength:g}", f"{one.accuracy:.3f}", f"{one.auc:.3f}", f"{one.cut:.4f}")
        table.add_row(*said, f"{one.map_auc:.3f}", ", ".join(words))
    console.print(table)
    if calibration.strength_by == "map":
        paper = chosen_candidate(calibration.candidates, calibration.accuracy_ratio)[1].strength
        console.print(f"chosen by maps of errors; the paper's rule, --strength-by cosine, would take {paper:g}")
    if chose_signal and calibration.settings.signal != RATED_BY:
        console.print(
            f"maps of errors tell labels apart with an AUC of {calibration.rated.map_auc:.3f}, less than {WEAK_MAPS}: "
            f"maps of {calibration.settings.signal} are taken; --signal {RATED_BY} keeps maps of errors"
        )
    detectors = Table("detector", "context", "accuracy", "AUC", "(on patients it was not fitted on)", box=None)
    rows = [("cosine", 0.0, calibration.cosine_accuracy)]
    rows += [("curve", one.context_mm, one.curve_accuracy) for one in calibration.fitted]
    for name, context_mm, found in rows:
        chosen = "default" if name == calibration.detector and context_mm == 0 else ""
        detectors.add_row(name, f"{context_mm:g} mm", f"{found.accuracy:.3f}", f"{found.auc:.3f}", chosen)
    console.print(detectors)
    if calibration.at_edge:
        console.print(
            f"note: the chosen strength, {calibration.strength:g}, is the largest tried; try larger ones too"
            if calibration.strength_by == "map"
            else f"note: the best strength, {calibration.best_strength:g}, is the largest tried; try larger ones too"
        )
    if (model / "student" / "weights.safetensors").is_file():
        console.print("note: its student learned by the calibration before; teach it again with `anofpdm distill`")
    if calibration.n_patients < 2:
        console.print("note: all slices are of one patient, so no detector could be tried on another; use more")
    console.print(
        f"{calibration.n_healthy} healthy and {calibration.n_unhealthy} unhealthy slices of {calibration.n_patients} "
        f"patients, levels 0..{calibration.settings.levels[-1]}, maps of {calibration.settings.signal}; "
        f"saved {model / FILE}, look at {model / FIGURE}",
        markup=False,
    )
