"""Options shared by several commands."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch

Workers = Annotated[int, typer.Option(min=0, help="Worker processes; 0 means one per CPU core.")]
Seed = Annotated[int, typer.Option(min=0, help="Random seed.")]


Batch = Annotated[
    int | None,
    typer.Option(min=1, help="Slices per batch, halved when memory runs out. Default: 50 on a GPU, 8 on a CPU."),
]
Device = Annotated[str, typer.Option(help="auto (a GPU if there is one), cpu, cuda, cuda:1 or mps.")]


def worker_count(workers: int) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return workers or cores


def resolve_device(device: str) -> "torch.device":
    """The device of that name; an error names the option."""
    from anofpdm.errors import ConfigError
    from anofpdm.util import distributed

    try:
        return distributed.resolve_device(device)
    except ConfigError as problem:
        raise ConfigError(f"--{problem}") from None
