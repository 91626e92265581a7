"""The `anofpdm` command: its subcommands, and the translation of errors into one line and an exit code.

0 success, 1 failure, 2 usage error, 3 partial success (failures are listed), 130 stopped with Ctrl-C, 143 with SIGTERM,
141 if nobody reads the output any more.
"""

import functools
import gc
import importlib
import importlib.util
import os
import select
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from typer import Exit, Option

from anofpdm import __version__
from anofpdm.cli import (
    bids,
    calibrate,
    demo,
    distill,
    export,
    fit,
    join,
    models,
    phantom,
    prepare,
    score,
    segment,
    serve,
    train,
    view,
)
from anofpdm.errors import AnoFPDMError, OutputError, Terminated
from anofpdm.util.files import RESUME_HINT, write_error_hint
from anofpdm.util.memory import REMEDY, check_address_space, is_out_of_memory, keep_freed_memory
from anofpdm.util.signals import blocked_signals, raise_on_sigterm
from anofpdm.util.text import printable

COMMANDS: list[Callable[..., None]] = [
    demo.demo,
    phantom.phantom,
    fit.fit,
    prepare.prepare,
    train.train,
    calibrate.calibrate,
    distill.distill,
    segment.segment,
    join.join,
    bids.bids,
    score.score,
    view.view,
    serve.serve,
    models.models,
    export.export,
]
# Of `serve`, only the workers import it.
WITHOUT_TORCH = (join.join, models.models, phantom.phantom, prepare.prepare, score.score, serve.serve, view.view)
if importlib.util.find_spec("anofpdm.study") is not None:  # the folder of the research harness may be deleted
    from anofpdm.study.cli import ablate, bench, evaluate

    COMMANDS += [evaluate.evaluate, ablate.ablate, bench.bench]

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


def add_command(function: Callable[..., None]) -> None:
    """Register `function` as a subcommand and translate its errors."""

    @functools.wraps(function)
    def command(*args: object, **options: object) -> None:
        try:
            keep_freed_memory()
            if function is not export.export:
                refuse_file(options.get("out"))
            if function not in WITHOUT_TORCH:
                check_address_space()
                with blocked_signals():
                    importlib.import_module("torch")
            gc.enable()  # disabled in __main__.py
            with blocked_signals(False):  # blocked in __main__.py
                function(*args, **options)
                sys.stdout.flush()
        except (Exception, KeyboardInterrupt) as problem:
            message, code = _describe(problem)
            if message:
                hint = f"{RESUME_HINT}, with --resume" if function is train.train else RESUME_HINT
                print(f"anofpdm: {printable(message.replace(RESUME_HINT, hint))}", file=sys.stderr)
            raise Exit(code) from None

    app.command(cls=bids.SpacedLists if function is bids.bids else None)(command)


def refuse_file(out: object) -> None:
    if isinstance(out, Path) and out.exists() and not out.is_dir():
        raise OutputError(f"{out} is a file, not a folder; choose another --out")


def _describe(problem: BaseException) -> tuple[str, int]:
    """The error line, if any, and the exit code. An error of the program itself, or of its usage, is raised again."""
    if isinstance(problem, AnoFPDMError):
        return str(problem), 1
    if isinstance(problem, KeyboardInterrupt):
        return f"stopped, finished work is kept; {RESUME_HINT}", 143 if isinstance(problem, Terminated) else 130
    if is_out_of_memory(problem):
        return f"not enough memory; {REMEDY}", 1
    if not isinstance(problem, OSError):
        raise problem
    if isinstance(problem, BrokenPipeError) and _nobody_reads():
        return "", 141
    where = f"{problem.filename}: " if problem.filename else ""  # disk full, no permission
    return f"{where}{problem.strerror or problem}; {write_error_hint(problem)}", 1


def _nobody_reads() -> bool:
    """Whether the program that read the output has ended, as in `anofpdm models | head -1`."""
    try:
        output = sys.stdout.fileno()
        pipes = select.poll()
        pipes.register(output, select.POLLERR)
        closed = bool(pipes.poll(0))
    except (AttributeError, OSError):  # no such call, or no such file
        return False
    if closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)  # for what is still buffered
    return closed


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"anofpdm {__version__}")
        raise Exit


@app.callback()
def about(
    _version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Lesion segmentation in brain MRI, trained with image-level labels only. A research tool, not a medical device."""


for subcommand in COMMANDS:
    add_command(subcommand)


def main() -> None:
    raise_on_sigterm()
    app(prog_name="anofpdm")


if __name__ == "__main__":
    main()
