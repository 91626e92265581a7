"""The `anofpdm` command: its subcommands, and the translation of errors into one line and an exit code.

0 success, 1 failure, 2 usage error, 3 partial success (failures are listed), 130 stopped with Ctrl-C, 143 with SIGTERM,
141 if nobody reads the output any more.
"""

import contextlib
import functools
import gc
import importlib
import importlib.util
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from anofpdm import __version__
from anofpdm.cli.bids import SpacedLists, bids
from anofpdm.cli.calibrate import calibrate
from anofpdm.cli.demo import demo
from anofpdm.cli.distill import distill
from anofpdm.cli.export import export
from anofpdm.cli.fit import fit
from anofpdm.cli.join import join
from anofpdm.cli.models import models
from anofpdm.cli.phantom import phantom
from anofpdm.cli.prepare import prepare
from anofpdm.cli.score import score
from anofpdm.cli.segment import segment
from anofpdm.cli.serve import serve
from anofpdm.cli.train import train
from anofpdm.cli.view import view
from anofpdm.errors import AnoFPDMError, OutputError, Terminated
from anofpdm.util.files import RESUME_HINT, write_error_hint
from anofpdm.util.memory import REMEDY, check_address_space, is_out_of_memory, keep_freed_memory
from anofpdm.util.text import printable

WITHOUT_TORCH = (join, models, phantom, prepare, score, serve, view)  # of serve, only its workers import it

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


def add_command(function: Callable[..., None]) -> None:
    """Register `function` as a subcommand and translate its errors."""
    stop = functools.partial(_stop, f"{RESUME_HINT}, with --resume" if function is train else RESUME_HINT)

    @functools.wraps(function)
    def command(*args: object, **options: object) -> None:
        try:
            keep_freed_memory()
            if function is not export:
                refuse_file(options.get("out"))
            if function not in WITHOUT_TORCH:
                check_address_space()
                with defer_signals():
                    importlib.import_module("torch")
            gc.enable()  # disabled in __main__.py
            function(*args, **options)
            sys.stdout.flush()
        except AnoFPDMError as problem:
            stop(str(problem), 1)
        except KeyboardInterrupt as problem:
            stop(f"stopped, finished work is kept; {RESUME_HINT}", 143 if isinstance(problem, Terminated) else 130)
        except Exception as problem:
            if is_out_of_memory(problem):
                stop(f"not enough memory; {REMEDY}", 1)
            if not isinstance(problem, OSError):  # disk full, no permission
                raise
            if isinstance(problem, BrokenPipeError) and _nobody_reads():
                raise typer.Exit(141) from None
            where = f"{problem.filename}: " if problem.filename else ""
            stop(f"{where}{problem.strerror or problem}; {write_error_hint(problem)}", 1)

    app.command(cls=SpacedLists if function is bids else None)(command)


def refuse_file(out: object) -> None:
    if isinstance(out, Path) and out.exists() and not out.is_dir():
        raise OutputError(f"{out} is a file, not a folder; choose another --out")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"anofpdm {__version__}")
        raise typer.Exit


@app.callback()
def about(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Lesion segmentation in brain MRI, trained with image-level labels only. A research tool, not a medical device."""


def _stop(resume_hint: str, message: str, code: int) -> None:
    print(f"anofpdm: {printable(message.replace(RESUME_HINT, resume_hint))}", file=sys.stderr)
    raise typer.Exit(code)


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


def study_commands() -> tuple[Callable[..., None], ...]:
    """Commands of the research harness; none where its folder was deleted."""
    if importlib.util.find_spec("anofpdm.study") is None:
        return ()
    from anofpdm.cli.ablate import ablate
    from anofpdm.cli.bench import bench
    from anofpdm.cli.evaluate import evaluate

    return evaluate, ablate, bench


COMMANDS: tuple[Callable[..., None], ...] = (
    demo,
    phantom,
    fit,
    prepare,
    train,
    calibrate,
    distill,
    segment,
    join,
    bids,
    score,
    view,
    serve,
    models,
    export,
    *study_commands(),
)
for subcommand in COMMANDS:
    add_command(subcommand)


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """Handle signals after the block: an interrupt inside the import of torch would crash the process."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    previous = {number: signal.signal(number, lambda number, _frame: received.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
    if received:
        raise Terminated if received[0] == signal.SIGTERM else KeyboardInterrupt


def _terminate(_number: int, _frame: object) -> None:
    raise Terminated


def _repeat_lost_interrupt(unraisable: "sys.UnraisableHookArgs") -> None:
    """Python ignores exceptions in callbacks of its garbage collection, an interrupt too. Raise it again, outside."""
    if isinstance(unraisable.exc_value, KeyboardInterrupt):
        number = signal.SIGTERM if isinstance(unraisable.exc_value, Terminated) else signal.SIGINT
        timer = threading.Timer(0.05, os.kill, (os.getpid(), number))
        timer.daemon = True
        timer.start()
    else:
        sys.__unraisablehook__(unraisable)


def main() -> None:
    signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = _repeat_lost_interrupt
    app(prog_name="anofpdm")


if __name__ == "__main__":
    main()
