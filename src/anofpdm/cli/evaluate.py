"""anofpdm evaluate: the paper's comparison on a prepared cohort."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anofpdm.cli.calibrate import Split, numbers, top_of
from anofpdm.cli.options import Batch, Device, resolve_device
from anofpdm.cli.progress import progress_bars

if TYPE_CHECKING:
    import torch

    from anofpdm.evaluation.comparison.methods import Models
    from anofpdm.evaluation.comparison.protocol import Evaluation
    from anofpdm.network.predictor import TrainedModel


def evaluate(
    model: Annotated[Path, typer.Argument(help="A trained model.")],
    cohort: Annotated[Path, typer.Argument(help="A prepared cohort with lesion masks.")],
    out: Annotated[Path, typer.Option(help="Folder for the results.")],
    method: Annotated[
        list[str] | None,
        typer.Option(help="A method's name, or all whose models are given: all. May be repeated."),
    ] = None,
    other: Annotated[
        list[str] | None,
        typer.Option("--with", help="A model of a comparison method: healthy=, simplex=, unconditional=, classifier=."),
    ] = None,
    score: Annotated[str, typer.Option(help="Modalities that are scored, e.g. flair,t2. Default: all.")] = "",
    strength_by: Annotated[
        str, typer.Option(help="What chooses the guidance strength of what is ours: map, or cosine.")
    ] = "map",
    levels: Annotated[int, typer.Option(min=1, help="Noise levels in a range of 600.")] = 10,
    strengths: Annotated[str, typer.Option(help="Candidate guidance strengths.")] = "0,1,2,3,4,5,8,12,20,30",
    noise_range: Annotated[str, typer.Option("--range", help="Top of the noise range, or auto.")] = "600",
    split: Annotated[Split, typer.Option(help="Which part of the cohort is measured.")] = Split.test,
    sample: Annotated[int | None, typer.Option(min=1, help="Only so many slices, drawn without replacement.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of that draw.")] = 0,
    tune: Annotated[int, typer.Option(min=1, help="Slices that comparison methods are tuned on, at most.")] = 1000,
    first_setting: Annotated[
        bool, typer.Option(help="Comparison methods take their first setting; only thresholds are tuned.")
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Noise seeds to average over.")] = 3,
    batch: Batch = None,
    precision: Annotated[str, typer.Option(help="auto, fp32, bf16 or fp16.")] = "auto",
    device: Device = "auto",
) -> None:
    """Every method through the same slices and numbers. Stopped halfway, the same command goes on.

    Several GPUs: torchrun --nproc-per-node 4 -m anofpdm evaluate ...
    """
    from anofpdm.calibration.fit import RATED_BY
    from anofpdm.calibration.fit import Options as CalibrationOptions
    from anofpdm.cohorts import open_cohort
    from anofpdm.evaluation.comparison.methods import Chosen
    from anofpdm.evaluation.comparison.protocol import Evaluation, Options
    from anofpdm.method.many_slices import batch_for
    from anofpdm.network.predictor import load_trained
    from anofpdm.util.distributed import World, set_local_device

    where = set_local_device(resolve_device(device))
    at_once = batch or batch_for(where)
    trained = load_trained(model, where, precision)
    models, hashes = models_of(trained, other or [], where, precision)
    names = tuple(name.strip() for name in score.split(",") if name.strip())
    options = Options(
        calibration=CalibrationOptions(
            score=names,
            levels=levels,
            batch=at_once,
            strengths=numbers(strengths),
            top=top_of(noise_range),
            signal=RATED_BY,  # each method names its own
            strength_by=strength_by,
        ),
        split=split.value,
        sample=sample,
        sample_seed=seed,
        tune=tune,
        whole_grid=not first_setting,
        seeds=tuple(range(seeds)),
        batch=at_once,
    )
    chosen = Chosen.by_words(method or ["anofpdm-ddim", "anofpdm-ours", "anofpdm-agreement"], models)
    world = World.from_environment(where)
    try:
        with progress_bars(world.is_main) as show:
            evaluation = Evaluation(trained, models, open_cohort(cohort), chosen, out, options, world, show, hashes)
            evaluation.run()
    finally:
        world.close()
    if world.is_main:
        _report(evaluation, asked_for_all="all" in (method or []))
    if evaluation.failed:
        raise typer.Exit(3)


def _report(evaluation: "Evaluation", *, asked_for_all: bool) -> None:
    from anofpdm.evaluation.comparison.methods import METHODS, missing_models
    from anofpdm.evaluation.comparison.page import MARKDOWN, PAGE, write_up

    write_up(evaluation)
    print((evaluation.out / MARKDOWN).read_text().split("\n###")[0])
    missing = {name: missing_models(one, evaluation.models) for name, one in METHODS.items()}
    left_out = [f"{name} (needs {', '.join(models)})" for name, models in missing.items() if models]
    if left_out and asked_for_all:
        print(f"left out, for want of --with: {'; '.join(left_out)}")
    print(f"look at {evaluation.out / PAGE}")


def models_of(
    trained: "TrainedModel", words: list[str], device: "torch.device", precision: str
) -> "tuple[Models, dict[str, str]]":
    """The networks at hand, and their hashes by name."""
    from anofpdm.errors import ConfigError, ModelError
    from anofpdm.evaluation.comparison.methods import MODEL_TASKS, Models, unlabelled
    from anofpdm.network.predictor import Guide, load_guide, load_trained
    from anofpdm.student.model import load_student

    found: dict[str, object] = {}
    hashes: dict[str, str] = {}
    for word in words:
        name, _, path = word.partition("=")
        if name not in MODEL_TASKS or not path:
            raise ConfigError(f"--with {word}: write {', '.join(f'{one}=MODEL' for one in MODEL_TASKS)}")
        task, noise = MODEL_TASKS[name]
        one: Guide | TrainedModel
        if name == "classifier":
            one = load_guide(Path(path), device)
            found[name] = one.gradient
        else:
            one = load_trained(Path(path), device, precision, task=task, noise=noise)
            found[name] = unlabelled(one.predict)
        if one.modalities != trained.modalities or one.size != trained.size:
            raise ConfigError(f"--with {word}: its modalities or size are not those of {trained.folder}")
        hashes[name] = one.sha256
    student = None
    with contextlib.suppress(ModelError):  # of another model: as if there were none
        student = load_student(trained.folder, trained.sha256, device)
    if student is not None:
        hashes["student"] = student.sha256
    return Models(trained.predict, student=student, **found), hashes  # type: ignore[arg-type]
