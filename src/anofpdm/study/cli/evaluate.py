"""anofpdm evaluate: the paper's comparison on a prepared cohort."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from anofpdm.choices import Engine, Precision, Signal, Split, StrengthBy
from anofpdm.cli import options
from anofpdm.cli.progress import processes
from anofpdm.study.cli.evaluate_native import check_options, evaluate_native
from anofpdm.study.comparison.names import DEFAULT_METHODS, MODEL_TASKS, MethodChoice

if TYPE_CHECKING:
    from anofpdm.study.comparison.job import EvaluationJob


def evaluate(
    context: typer.Context,
    model: options.Model,
    cohort: Annotated[Path, typer.Argument(help="Prepared cohort with lesion masks.")],
    out: Annotated[Path, typer.Option(help="Folder for the results.")],
    native: Annotated[
        Path | None,
        typer.Option(
            metavar="SRC",
            help="Folder of source files, as for prepare. Instead of comparing methods on slices, segment the whole "
            "scans of the split from their files, and score the masks in native space as `anofpdm score` does. Scans "
            "are found by patient name.",
        ),
    ] = None,
    engine: Annotated[
        list[Engine] | None,
        typer.Option(help="--native: engine that makes the masks; may be repeated. Default: all engines of the model."),
    ] = None,
    workers: Annotated[
        int, typer.Option(min=0, help="--native: worker processes for scoring; 0 means one per CPU core.")
    ] = 0,
    method: Annotated[
        list[MethodChoice] | None,
        typer.Option(
            metavar="NAME",
            help=f"Method to evaluate; may be repeated. One of {', '.join(MethodChoice)} (all: every method whose "
            f"models are given). Default: {', '.join(DEFAULT_METHODS)}; the student alone where the cohort lacks a "
            "validation split or modalities for these.",
            show_default=False,
        ),
    ] = None,
    other: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="NAME=MODEL",
            help=f"Model of a comparison method; NAME is one of {', '.join(MODEL_TASKS)}. May be repeated.",
        ),
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODALITIES",
            help="Evaluate the student also without these of its optional modalities, e.g. t1,t1ce. May be repeated; "
            "every: without each set of them.",
        ),
    ] = None,
    score: options.Score = "",
    strength_by: Annotated[
        StrengthBy,
        typer.Option(
            help="Rule that chooses the guidance strength of our additions: map (separation of labels by the anomaly "
            "maps) or cosine (the paper's rule, which the paper's methods always use)."
        ),
    ] = StrengthBy.MAP,
    levels: Annotated[int, typer.Option(min=1, help="Number of noise levels in a range of 600.")] = 10,
    strengths: options.Strengths = options.STRENGTHS,
    split: Annotated[Split, typer.Option(help="Part of the cohort to score.")] = Split.TEST,
    sample: Annotated[
        int | None, typer.Option(min=1, help="Number of slices, sampled without replacement. Default: all.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed of --sample.")] = 0,
    tune: Annotated[int, typer.Option(min=1, help="Maximum slices for tuning comparison methods.")] = 1000,
    first_setting: Annotated[
        bool, typer.Option(help="Use the first setting of each comparison method; tune its threshold only.")
    ] = False,
    seeds: Annotated[int, typer.Option(min=1, help="Number of noise seeds to average over.")] = 3,
    batch: options.Batch = None,
    precision: options.PrecisionOption = Precision.AUTO,
    device: options.Device = "auto",
) -> None:
    """Compare methods on the same slices with the same metrics, or score whole scans (--native).

    Re-run the same command to resume.

    Several GPUs: torchrun --nproc-per-node 4 -m anofpdm evaluate ...
    """
    check_options(context, native=native is not None)
    if native is not None:
        evaluate_native(
            model,
            cohort,
            native,
            out,
            engines=engine or (),
            split=split,
            batch=batch,
            precision=precision,
            device=device,
            workers=workers,
            without=without or (),
        )
        return
    given, candidates = model_paths(other or []), options.parse_numbers(strengths, "--strengths")

    from anofpdm.calibration.fit_calibration import CalibrationConfig
    from anofpdm.cohorts import open_cohort
    from anofpdm.method.gather import batch_for
    from anofpdm.study.comparison.job import EvaluationConfig, EvaluationJob
    from anofpdm.study.comparison.methods import MethodSelection
    from anofpdm.study.comparison.protocol import evaluate as run
    from anofpdm.study.comparison.rival_models import default_methods, load_evaluated, load_models
    from anofpdm.study.missing import missing_sets

    where = options.resolve_device(device)
    batch = batch or batch_for(where)
    slices = open_cohort(cohort)
    trained = load_evaluated(model, where, precision, method or ())
    models = load_models(trained, given, where, precision)
    choices = method or list(default_methods(trained, models, slices))
    config = EvaluationConfig(
        calibration=CalibrationConfig(
            score=options.parse_names(score),
            levels=levels,
            batch=batch,
            strengths=candidates,
            signal=Signal.ERROR,  # each method has its own
            strength_by=strength_by,
        ),
        split=split,
        sample=sample,
        sample_seed=seed,
        tune=tune,
        whole_grid=not first_setting,
        seeds=tuple(range(seeds)),
        batch=batch,
    )
    selection = MethodSelection.from_choices(choices, models, missing_sets(without or [], models.student))
    with processes(where) as (world, progress):
        job = EvaluationJob(trained, models, slices, selection, out, config, world, progress)
        failures = run(job)
    if world.is_main:
        if choices == [MethodChoice.ANOFPDM_STUDENT] and not method:
            print("the student alone: other methods need a diffusion model, its modalities and a validation split")
        _report(job, failures, all_methods=MethodChoice.ALL in choices)
    if failures:
        raise typer.Exit(3)


def model_paths(options: list[str]) -> dict[str, Path]:
    paths = {}
    for option in options:
        name, _, path = option.partition("=")
        if name not in MODEL_TASKS or not path:
            expected = ", ".join(f"{name}=MODEL" for name in MODEL_TASKS)
            raise typer.BadParameter(f"{option!r}: expected one of {expected}", param_hint="--with")
        paths[name] = Path(path)
    return paths


def _report(job: "EvaluationJob", failures: dict[str, str], *, all_methods: bool) -> None:
    from anofpdm.study.comparison.comparison_page import MARKDOWN, PAGE, write_report
    from anofpdm.study.comparison.methods import METHODS

    write_report(job, failures)
    print((job.out / MARKDOWN).read_text().split("\n###")[0])
    missing = {name: job.models.missing(method.needs) for name, method in METHODS.items()}
    skipped = [f"{name} (needs {', '.join(models)})" for name, models in missing.items() if models]
    if skipped and all_methods:
        print(f"skipped, no model given (--with): {'; '.join(skipped)}")
    print(f"report: {job.out / PAGE}")
