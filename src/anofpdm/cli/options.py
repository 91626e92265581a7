"""Options that several commands share."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch

Workers = Annotated[int, typer.Option(min=0, help="Processes to work with; 0 means one a core.")]
Seed = Annotated[int, typer.Option(min=0, help="What all randomness starts from.")]


Batch = Annotated[
    int | None,
    typer.Option(min=1, help="Slices at a time; halved when memory runs out. Default: 50 on a GPU, 8 on a CPU."),
]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")]


def worker_count(workers: int) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return workers or cores


def resolve_device(device: str) -> "torch.device":
    """The device that a name means here; `auto` is a GPU where there is one."""
    from anofpdm.errors import ConfigError
    from anofpdm.util.distributed import resolve_device

    try:
        return resolve_device(device)
    except ConfigError as problem:
        raise ConfigError(f"--{problem}") from None
