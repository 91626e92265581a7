"""anofpdm evaluate --native: whole scans from their files, scored in native space."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from anofpdm.choices import Engine, Precision, Split
from anofpdm.cli import options
from anofpdm.cli.output import print_lines, problem_lines
from anofpdm.cli.progress import processes
from anofpdm.cli.score import print_scores

if TYPE_CHECKING:
    from anofpdm.segment.model import Model
    from anofpdm.study.native.run_native import EngineReport

SHARED = {"model", "cohort", "out", "split", "without", "batch", "precision", "device"}  # parameters of both modes
NATIVE = {"native", "engine", "workers"}


def check_options(context: typer.Context, *, native: bool) -> None:
    """Refuse options of the other mode, which would have no effect."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        allowed = name in SHARED or (name in NATIVE) == native
        if source is not None and source.name == "COMMANDLINE" and not allowed:
            where = "does not apply to --native" if native else "applies to --native only"
            raise typer.BadParameter(f"{where}; omit it", param_hint=parameter.opts[0])


def evaluate_native(
    model: Path,
    cohort_folder: Path,
    source: Path,
    out: Path,
    *,
    engines: Sequence[Engine],  # none: all of the model
    split: Split,
    batch: int | None,
    precision: Precision,
    device: str,
    workers: int,
    without: Sequence[str],  # sets of optional modalities, separated by commas
) -> None:
    from anofpdm.cohorts import open_cohort
    from anofpdm.segment.model import load
    from anofpdm.study.missing import missing_sets
    from anofpdm.study.native.native_report import MARKDOWN, write_report
    from anofpdm.study.native.run_native import NativeEvaluation, is_trained_on
    from anofpdm.study.native.split_scans import find_split_scans
    from anofpdm.util.files import folder_lock

    local_device = options.resolve_device(device)
    cohort, loaded = open_cohort(cohort_folder), load(model, local_device, precision)
    requests = [loaded.request(engine=engine, batch=batch) for engine in choose_engines(loaded, engines)]
    sets = missing_sets(without, loaded.student)
    inputs = min((request.inputs for request in requests), key=lambda inputs: len(inputs.needed))  # the student's
    scans = find_split_scans(cohort, source, inputs, split)
    evaluation = NativeEvaluation(scans, out, options.worker_count(workers))
    out.mkdir(parents=True, exist_ok=True)
    with processes(local_device) as (world, progress), folder_lock(out, needed=world.is_main):
        if world.is_main:
            evaluation.remove_temporary_files()
        reports = [
            evaluation.run(request, world, progress, missing)
            for request in requests
            for missing in ((), *(sets if request.engine.name is Engine.STUDENT else ()))
        ]
        if world.is_main:
            write_report(reports, scans, cohort, out)
    if not world.is_main:
        return
    notes = scans.notes(source)
    if not is_trained_on(cohort, model):
        notes.append(f"note: {model} was trained on another cohort or split; compare the patients of both")
    _print(reports, [*notes, f"tables: {out / MARKDOWN}, pages: {out}/ENGINE/index.html"])
    if any(report.scoring.failed for report in reports):
        raise typer.Exit(3)


def choose_engines(model: "Model", wanted: Sequence[Engine]) -> list[Engine]:
    """Those given, once each; by default the student, if the model has one, and the diffusion engine."""
    has_student = model.student is not None or bool(model.student_problem)
    if not wanted:
        return [Engine.STUDENT, Engine.DIFFUSION] if has_student else [Engine.DIFFUSION]
    automatic = Engine.STUDENT if has_student else Engine.DIFFUSION
    return list(dict.fromkeys(automatic if engine is Engine.AUTO else engine for engine in wanted))


def _print(reports: "Sequence[EngineReport]", notes: Sequence[str]) -> None:
    for report in reports:
        print(f"Engine: {report.engine}")
        print_scores(report.scoring)
        print_lines(*problem_lines(report.warnings, report.scoring.failed), "")
    print_lines(*notes)
