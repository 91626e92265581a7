"""The `anofpdm` command: its subcommands, and the translation of errors into one line and an exit code.

0 done, 1 could not be done, 2 wrong usage, 3 done in part (what failed is listed), 130 stopped with Ctrl-C, 143 by a
scheduler (SIGTERM).
"""

import contextlib
import functools
import importlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Annotated

import typer

from anofpdm import __version__
from anofpdm.cli.ablate import ablate
from anofpdm.cli.bench import bench
from anofpdm.cli.calibrate import calibrate
from anofpdm.cli.demo import demo
from anofpdm.cli.distill import distill
from anofpdm.cli.evaluate import evaluate
from anofpdm.cli.phantom import phantom
from anofpdm.cli.prepare import prepare
from anofpdm.cli.segment import segment
from anofpdm.cli.serve import serve
from anofpdm.cli.train import train
from anofpdm.cli.view import view
from anofpdm.errors import AnoFPDMError, Terminated
from anofpdm.util.files import remedy
from anofpdm.util.text import printable

WITHOUT_TORCH = (phantom, prepare, view)
GOES_ON = "what is done is kept, and the same command goes on from there (train: with --resume)"

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


def add_command(function: Callable[..., None]) -> None:
    """Give `function` to the command line, its errors translated."""

    @functools.wraps(function)
    def command(*args: object, **options: object) -> None:
        try:
            if function not in WITHOUT_TORCH:
                with defer_signals():
                    importlib.import_module("torch")
            function(*args, **options)
        except AnoFPDMError as problem:
            _stop(str(problem), 1)
        except KeyboardInterrupt as problem:
            _stop(f"stopped; {GOES_ON}", 143 if isinstance(problem, Terminated) else 130)
        except OSError as problem:  # a full disk, a folder that may not be written to
            where = f"{problem.filename}: " if problem.filename else ""
            _stop(f"{where}{problem.strerror or problem}; {remedy(problem)}", 1)

    app.command()(command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"anofpdm {__version__}")
        raise typer.Exit


@app.callback()
def about(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and stop.")
    ] = False,
) -> None:
    """Lesion masks in brain MRI from image-level labels only. A research tool, not a medical device."""


def _stop(message: str, code: int) -> None:
    print(f"anofpdm: {printable(message)}", file=sys.stderr)
    raise typer.Exit(code)


for subcommand in (demo, phantom, prepare, train, calibrate, distill, segment, evaluate, ablate, view, serve, bench):
    add_command(subcommand)


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """What is heard meanwhile is answered afterwards: an interrupt inside the import of torch would be a crash."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, lambda number, _frame: heard.append(number)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if heard:
        raise Terminated if heard[0] == signal.SIGTERM else KeyboardInterrupt


def _terminate(_number: int, _frame: object) -> None:
    raise Terminated


def main() -> None:
    signal.signal(signal.SIGTERM, _terminate)
    app(prog_name="anofpdm")


if __name__ == "__main__":
    main()
