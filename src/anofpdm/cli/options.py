"""Options that several commands share."""

import os
from typing import Annotated

import typer

Workers = Annotated[int, typer.Option(min=0, help="Processes to work with; 0 means one a core.")]
Seed = Annotated[int, typer.Option(min=0, help="What all randomness starts from.")]


def processes(workers: int) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return workers or cores
