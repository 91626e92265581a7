"""Options that several commands share."""

import os
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import torch

Workers = Annotated[int, typer.Option(min=0, help="Processes to work with; 0 means one a core.")]
Seed = Annotated[int, typer.Option(min=0, help="What all randomness starts from.")]


Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1 or mps.")]


def processes(workers: int) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return workers or cores


def resolved(device: str) -> "torch.device":
    """The device that a name means here; `auto` is a GPU where there is one."""
    import torch

    from anofpdm.errors import ConfigError

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(device)
    except RuntimeError:
        raise ConfigError(f"--device {device}: write auto, cpu, cuda, cuda:1 or mps") from None
    if chosen.type not in ("cpu", "cuda", "mps"):
        raise ConfigError(f"--device {device}: write auto, cpu, cuda, cuda:1 or mps")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"--device {device}: no such GPU here ({torch.cuda.device_count()} found); try --device auto")
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("--device mps: not available here; try --device auto")
    return chosen
