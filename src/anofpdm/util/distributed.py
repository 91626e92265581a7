"""The processes of a run: one, or as many as torchrun started."""

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from anofpdm.errors import ConfigError

Said = TypeVar("Said")
PATIENCE = timedelta(days=7)  # of processes that are done, with those that have more to do


@dataclass(frozen=True)
class World:
    rank: int = 0
    count: int = 1

    @classmethod
    def joined(cls, device: torch.device) -> "World":
        """As torchrun's environment says; alone where there is none."""
        count = int(os.environ.get("WORLD_SIZE", "1"))
        if count == 1:
            return cls()
        if not dist.is_initialized():
            dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=PATIENCE)
        return cls(dist.get_rank(), dist.get_world_size())

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def part(self, batch: int) -> slice:
        """This process's share of a batch."""
        share = batch // self.count
        return slice(self.rank * share, (self.rank + 1) * share)

    def any(self, said: bool, device: torch.device) -> bool:
        """Whether any process says so; all of them hear the same answer."""
        if self.count == 1:
            return said
        vote = torch.tensor(float(said), device=device)
        dist.all_reduce(vote, op=dist.ReduceOp.MAX)
        return bool(vote.item())

    def gathered(self, said: Said) -> list[Said]:
        """What every process says, in order, heard by all."""
        if self.count == 1:
            return [said]
        heard: list[Any] = [None] * self.count
        dist.all_gather_object(heard, said)
        return heard

    def leave(self) -> None:
        if self.count > 1 and dist.is_initialized():
            dist.destroy_process_group()


def device_named(name: str | torch.device) -> torch.device:
    """The device that a name means here; `auto` is a GPU where there is one."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        chosen = torch.device(name)
    except RuntimeError:
        chosen = None
    if chosen is None or chosen.type not in ("cpu", "cuda", "mps"):
        raise ConfigError(f"device {name}: write auto, cpu, cuda, cuda:1 or mps")
    if chosen.type == "cuda" and (chosen.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"device {name}: no such GPU here ({torch.cuda.device_count()} found); try auto")
    if chosen.type == "mps" and not torch.backends.mps.is_available():
        raise ConfigError("device mps: not available here; try auto")
    return chosen


def local_device(device: torch.device) -> torch.device:
    """The GPU of this process where torchrun started several, made the current one: kernels are launched there."""
    if device.type != "cuda":
        return device
    index = int(os.environ.get("LOCAL_RANK", "0")) if device.index is None else device.index
    if index >= torch.cuda.device_count():
        raise ConfigError(f"process {index} has no GPU of its own ({torch.cuda.device_count()} here); start fewer")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)
