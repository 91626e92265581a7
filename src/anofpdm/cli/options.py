"""Options that several commands share."""

import os
from typing import Annotated

import typer

Workers = Annotated[int, typer.Option(min=1, help="Processes to work with.", show_default="all cores")]
Seed = Annotated[int, typer.Option(min=0, help="What all randomness starts from.")]


def all_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
