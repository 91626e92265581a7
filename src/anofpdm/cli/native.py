"""anofpdm evaluate --native: whole scans from their files, scored in native space."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from anofpdm.cli import options
from anofpdm.cli.progress import progress_bars
from anofpdm.cli.score import print_scores
from anofpdm.options import Engine, Precision, Split
from anofpdm.util.text import printable

if TYPE_CHECKING:
    from anofpdm.segment.model import Model
    from anofpdm.study.native.run_native import EngineReport

SHARED = {"model", "cohort", "out", "split", "without", "batch", "precision", "device"}  # parameters of both modes
NATIVE = {"native", "engine", "workers"}


@dataclass(frozen=True)
class NativeOptions:
    model: Path
    cohort: Path
    source: Path
    out: Path
    engines: tuple[Engine, ...] = ()  # none: all of the model
    split: Split = Split.TEST
    batch: int | None = None
    precision: Precision = Precision.AUTO
    device: str = "auto"
    workers: int = 0
    without: tuple[str, ...] = ()  # sets of optional modalities, separated by commas


def check_options(context: typer.Context, *, native: bool) -> None:
    """Refuse options of the other mode, which would have no effect."""
    for parameter in context.command.params:
        name = parameter.name or ""
        source = context.get_parameter_source(name)
        allowed = name in SHARED or (name in NATIVE) == native
        if source is not None and source.name == "COMMANDLINE" and not allowed:
            where = "does not apply to --native" if native else "applies to --native only"
            raise typer.BadParameter(f"{where}; omit it", param_hint=parameter.opts[0])


def evaluate_native(given: NativeOptions) -> None:
    from anofpdm.cohorts import open_cohort
    from anofpdm.segment.model import load
    from anofpdm.study.missing import missing_sets
    from anofpdm.study.native.native_report import MARKDOWN, write_report
    from anofpdm.study.native.run_native import NativeEvaluation, is_trained_on
    from anofpdm.study.native.split_scans import find_split_scans
    from anofpdm.util.distributed import World, set_local_device
    from anofpdm.util.files import folder_lock

    local_device = set_local_device(options.resolve_device(given.device))
    cohort, loaded = open_cohort(given.cohort), load(given.model, local_device, given.precision)
    requests = [loaded.request(engine=engine, batch=given.batch) for engine in choose_engines(loaded, given.engines)]
    sets = missing_sets(given.without, loaded.student)
    inputs = min((request.inputs for request in requests), key=lambda one: len(one.needed))  # a student needs fewer
    scans = find_split_scans(cohort, given.source, inputs, given.split)
    evaluation = NativeEvaluation(loaded, scans, given.out, options.worker_count(given.workers))
    world = World.from_environment(local_device)
    given.out.mkdir(parents=True, exist_ok=True)
    with folder_lock(given.out, needed=world.is_main):
        if world.is_main:
            evaluation.remove_temporary_files()
        try:
            with progress_bars(world.is_main) as progress:
                reports = [
                    evaluation.run(request, world, progress, missing)
                    for request in requests
                    for missing in ((), *(sets if request.engine.name is Engine.STUDENT else ()))
                ]
        finally:
            world.close()
        if not world.is_main:
            return
        write_report(reports, scans, cohort, given.out)
    notes = scans.notes(given.source)
    if not is_trained_on(cohort, given.model):
        notes.append(f"note: {given.model} was trained on another cohort or split; compare the patients of both")
    _print(reports, [*notes, f"tables: {given.out / MARKDOWN}, pages: {given.out}/ENGINE/index.html"])
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
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=True, markup=False)
    for report in reports:
        console.print(f"Engine: {report.engine}")
        print_scores(console, report.scoring)
        for name, text in report.warnings:
            console.print(printable(f"warning: {name}: {text}"))
        for name, reason in report.scoring.failed.items():
            console.print(printable(f"failed: {name}: {reason}"))
        console.print()
    for note in notes:
        console.print(printable(note))
