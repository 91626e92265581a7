"""Devices, and the processes of a run: one, or as many as torchrun started."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from anofpdm.errors import AnoFPDMError, ConfigError

Item = TypeVar("Item")
TIMEOUT = timedelta(days=7)  # a process that has finished waits for the others


@dataclass(frozen=True)
class World:
    rank: int = 0
    count: int = 1

    @classmethod
    def from_environment(cls, device: torch.device) -> "World":
        """As set by torchrun; a single process without it."""
        count = int(os.environ.get("WORLD_SIZE", "1"))
        if count == 1:
            return cls()
        if not dist.is_initialized():
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=TIMEOUT)
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def batch_slice(self, batch: int) -> slice:
        """This process's share of a batch."""
        share = batch // self.count
        return slice(self.rank * share, (self.rank + 1) * share)

    def share(self, count: int, batch: int) -> np.ndarray:
        """This process's part of 0 .. count - 1, in whole batches: they are the same for any number of processes."""
        numbers = np.arange(count)
        return numbers[numbers // batch % self.count == self.rank]

    def any(self, flag: bool, device: torch.device) -> bool:
        """True in every process if the flag is set in any of them."""
        if self.count == 1:
            return flag
        flags = torch.tensor(float(flag), device=device)
        dist.all_reduce(flags, op=dist.ReduceOp.MAX)
        return bool(flags.item())

    def all_gather(self, item: Item) -> list[Item]:
        """The items of all processes, by rank, in every process. Also serves as a barrier."""
        if self.count == 1:
            return [item]
        items: list[Any] = [None] * self.count
        dist.all_gather_object(items, item)
        return items

    @contextlib.contextmanager
    def raise_in_all(self) -> Iterator[None]:
        """An error of one process is raised in all, so that none waits for it."""
        error: AnoFPDMError | None = None
        try:
            yield
        except AnoFPDMError as problem:
            error = problem
        if errors := [problem for problem in self.all_gather(error) if problem is not None]:
            raise errors[0]

    def close(self) -> None:
        if self.count > 1 and dist.is_initialized():
            dist.destroy_process_group()


def resolve_device(name: str | torch.device) -> torch.device:
    """The device of this name; `auto` is a GPU if there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(name)
    except RuntimeError:
        chosen = None
    if chosen is None or chosen.type not in ("cpu", "cuda", "mps"):
        raise ConfigError(f"device {name}: use auto, cpu, cuda, cuda:1 or mps")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device {name}: no such GPU ({torch.cuda.device_count()} available); try auto")
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device mps: not available on this machine; try auto")
    return chosen


def set_local_device(device: torch.device) -> torch.device:
    """The GPU of this process where torchrun started several, set as the current one: Triton launches kernels there."""
    if device.type != "cuda":
        return device
    index = int(os.environ.get("LOCAL_RANK", "0")) if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise ConfigError(f"no GPU for process {index} ({torch.cuda.device_count()} available); start fewer processes")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)
