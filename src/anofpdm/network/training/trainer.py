"""One step of training, and all that must be kept for the next.

A step is a function of the weights, the seed and the step's number: which slices, how they are changed, how much noise
and which, whose label is withheld. Nothing else is random, so a run that goes on is the run that was never stopped.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from anofpdm.errors import ConfigError, ModelError, TrainingError
from anofpdm.network.classifier import NoisedClassifier
from anofpdm.network.kernels.cuda_graph import Recorded
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.network.simplex import random_permutations, simplex_noise
from anofpdm.network.training.augment import CHANCES, augment
from anofpdm.network.training.batches import TASKS
from anofpdm.network.unet import UNet, UNetConfig
from anofpdm.util.distributed import World

NETWORK, AVERAGE, FIRST_MOMENT, SECOND_MOMENT = "network.", "average.", "exp_avg.", "exp_avg_sq."
LEVEL_BINS = 10
NOISES = ("gaussian", "simplex")
RECORD_AFTER = 3  # steps, in which libraries choose their kernels


@dataclass(frozen=True)
class TrainingConfig:
    task: str = "guided"
    seed: int = 0
    batch: int = 64  # over all processes
    learning_rate: float = 1e-4
    warm_up: int = 100  # steps over which the learning rate rises
    average: float = 0.9999  # decay of the weights' moving average, once it is warm
    clip: float = 1.0  # largest norm of a gradient
    null_share: float = 0.1  # of labels withheld
    augment: bool = True
    balanced: bool = False
    noise: str = "gaussian"  # or simplex, for the comparison method that is named after it

    def __post_init__(self) -> None:
        if self.task not in TASKS:
            raise ConfigError(f"unknown task {self.task!r}; choose one of {', '.join(TASKS)}")
        if self.noise not in NOISES:
            raise ConfigError(f"unknown noise {self.noise!r}; choose one of {', '.join(NOISES)}")
        if self.task == "classifier" and self.noise != "gaussian":
            raise ConfigError(f"a classifier is trained with gaussian noise, not {self.noise}")
        if self.batch < 1 or not self.learning_rate > 0 or not 0 <= self.null_share < 1 or not 0 < self.average < 1:
            raise ConfigError(f"impossible training settings: {self}")


@dataclass(frozen=True)
class Inputs:
    """What the network is shown, and what it should have said."""

    x: Tensor  # [B, C, H, W] noisy
    t: Tensor  # [B]
    labels: Tensor  # [B]
    target: Tensor  # the noise [B, C, H, W], or for a classifier the class [B]

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.x, self.t, self.labels, self.target

    def part(self, which: slice) -> "Inputs":
        return Inputs(*(tensor[which] for tensor in self.tensors))


Network = UNet | NoisedClassifier


def build_network(task: str, config: UNetConfig) -> Network:
    return NoisedClassifier(config) if task == "classifier" else UNet(config)


class Trainer:
    def __init__(self, network: Network, config: TrainingConfig, device: torch.device, world: World | None = None):
        self.config, self.device, self.world = config, device, world or World()
        if config.batch % self.world.count:
            raise TrainingError(
                f"a batch of {config.batch} does not split over {self.world.count} processes; change --batch"
            )
        self.schedule = NoiseSchedule.linear()
        self.network: Network = network.to(device).to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        self.average = {name: parameter.detach().clone() for name, parameter in self.network.named_parameters()}
        self.runner: nn.Module = self._distributed() if self.world.count > 1 else self.network
        on_gpu = device.type == "cuda"
        self.learning_rate = torch.tensor(config.learning_rate, device=device)
        self.optimiser = torch.optim.AdamW(
            self.network.parameters(),
            self.learning_rate if on_gpu else config.learning_rate,
            betas=(0.9, 0.999),
            weight_decay=0.0,
            fused=on_gpu,
            capturable=on_gpu,
        )
        self._recorded: Recorded | None = None
        self._records = on_gpu and self.world.count == 1
        self.micro_batch = config.batch // self.world.count  # halved when memory runs out
        self.step = self.eager_steps = 0
        alpha_bar = self.schedule.alpha_bar
        self._signal, self._spread = (part.sqrt().float().to(device) for part in (alpha_bar, 1 - alpha_bar))
        self._generator = torch.Generator(device)
        self.level_loss = torch.zeros(2, LEVEL_BINS, device=device)  # sums and counts since they were last taken

    # ---- a step ------------------------------------------------------------------------------------------------------

    def inputs(self, slices: Tensor, labels: Tensor) -> Inputs:
        """This process's slices [b, C, H, W] and labels [b], made ready for step number `self.step`."""
        config, part = self.config, self.world.batch_slice(self.config.batch)
        generator = self._generator.manual_seed(_mixed(config.seed, self.step))

        def draw(*shape: int) -> Tensor:  # for the whole batch, so that the number of processes changes nothing
            return torch.rand(config.batch, *shape, generator=generator, device=self.device)[part]

        x0, labels = slices.to(self.device, torch.float32, non_blocking=True), labels.to(self.device, non_blocking=True)
        t = (draw() * len(self.schedule)).long().clamp(max=len(self.schedule) - 1)
        withheld = draw() < config.null_share
        if config.augment:
            x0 = augment(x0, draw(CHANCES + x0.shape[1]) * 2 - 1)
        noise = self._noise(x0, t, generator)
        x = self._signal[t][:, None, None, None] * x0 + self._spread[t][:, None, None, None] * noise
        if config.task == "classifier":
            return Inputs(x, t, labels, labels)
        null = self.network.config.null_label
        known = labels if config.task == "guided" else torch.full_like(labels, null)
        return Inputs(x, t, torch.where(withheld, null, known), noise)

    def _noise(self, x0: Tensor, t: Tensor, generator: torch.Generator) -> Tensor:
        """For this process's slices, out of what is drawn for the whole batch."""
        batch, part = self.config.batch, self.world.batch_slice(self.config.batch)
        if self.config.noise == "gaussian":
            return torch.randn(batch, *x0.shape[1:], generator=generator, device=self.device)[part]
        _, channels, height, width = x0.shape
        fields = random_permutations(batch * channels, generator).view(batch, channels, 256)[part]
        levels = t.repeat_interleave(channels)
        return simplex_noise(fields.flatten(0, 1), levels, height, width).view_as(x0)

    def update(self, inputs: Inputs) -> Tensor:
        """One step of the optimiser; returns the mean loss of this process's slices."""
        torch.manual_seed(_mixed(self.config.seed, self.step, 1 + self.world.rank))  # dropout
        self._set_learning_rate()
        if self._records and self._recorded is None and self.eager_steps >= RECORD_AFTER:
            self._recorded = self._record(inputs)
        if self._recorded is not None:
            loss = self._recorded(*inputs.tensors).clone()
        else:
            loss = self._learn_with_less(inputs)
            self.eager_steps += 1
        self._update_average()
        self.step += 1
        return loss

    def _learn(self, *tensors: Tensor) -> Tensor:
        self.optimiser.zero_grad(set_to_none=True)
        loss = self._backward(Inputs(*tensors))
        nn.utils.clip_grad_norm_(self.network.parameters(), self.config.clip)
        self.optimiser.step()
        return loss

    def _learn_with_less(self, inputs: Inputs) -> Tensor:
        """As much at a time as memory allows."""
        if self.world.count > 1:
            return self._learn_together(inputs)
        while True:
            try:
                return self._learn(*inputs.tensors)
            except RuntimeError as problem:
                if not out_of_memory(problem):
                    raise
            self._halve()  # out here, where the failed attempt no longer holds its memory

    def _learn_together(self, inputs: Inputs) -> Tensor:
        """Several processes must agree on the portion before they exchange anything: tried once, without exchange."""
        while not self.eager_steps:
            short = False
            try:
                with self.runner.no_sync():  # type: ignore[operator]
                    self._backward(inputs)
            except RuntimeError as problem:
                if not out_of_memory(problem):
                    raise
                short = True
            self.level_loss.zero_()
            self.optimiser.zero_grad(set_to_none=True)
            if not self.world.any(short, self.device):
                break
            self._halve()
        return self._learn(*inputs.tensors)

    def _record(self, inputs: Inputs) -> Recorded | None:
        try:
            return Recorded(self._learn, inputs.tensors)
        except torch.OutOfMemoryError:  # a recording keeps its memory; without one it still trains
            pass
        self._records = False
        torch.cuda.empty_cache()
        return None

    def losses(self, inputs: Inputs) -> Tensor:
        """[b], one for each slice."""
        on_gpu = self.device.type == "cuda"
        with torch.autocast(self.device.type, torch.bfloat16, enabled=on_gpu, cache_enabled=False):
            if self.config.task == "classifier":
                said = self.runner(inputs.x, inputs.t)
            else:
                said = self.runner(inputs.x, inputs.t, inputs.labels)
        if self.config.task == "classifier":
            return F.cross_entropy(said, inputs.target, reduction="none")
        return (said - inputs.target).square().mean((1, 2, 3))

    def _backward(self, inputs: Inputs) -> Tensor:
        count, total = len(inputs.x), torch.zeros((), device=self.device)
        for start in range(0, count, self.micro_batch):
            few = inputs.part(slice(start, start + self.micro_batch))
            losses = self.losses(few)
            (losses.sum() / count).backward()
            total += losses.detach().sum() / count
            bins = few.t * LEVEL_BINS // len(self.schedule)
            self.level_loss[0].index_add_(0, bins, losses.detach())
            self.level_loss[1].index_add_(0, bins, torch.ones_like(losses))
        return total

    def _halve(self) -> None:
        """Less at a time, the same batch in the end."""
        if self.micro_batch == 1:
            raise TrainingError("not enough memory for one slice at a time; choose a smaller --preset")
        self.micro_batch = (self.micro_batch + 1) // 2
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _set_learning_rate(self) -> None:
        share = min(1.0, (self.step + 1) / self.config.warm_up) if self.config.warm_up else 1.0
        self.learning_rate.fill_(self.config.learning_rate * share)
        if self.device.type != "cuda":  # there, the optimiser reads the tensor itself
            for group in self.optimiser.param_groups:
                group["lr"] = self.config.learning_rate * share

    @torch.no_grad()
    def _update_average(self) -> None:
        """A moving average that forgets its first steps quickly, so that short runs are usable."""
        decay = min(self.config.average, (1 + self.step) / (10 + self.step))
        now = dict(self.network.named_parameters())
        torch._foreach_lerp_(list(self.average.values()), [now[name] for name in self.average], 1 - decay)

    def _distributed(self) -> nn.Module:
        ids = [self.device.index] if self.device.type == "cuda" else None
        return DistributedDataParallel(self.network, device_ids=ids)

    # ---- what is kept ------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {NETWORK + name: parameter for name, parameter in self.network.named_parameters()}
        tensors |= {AVERAGE + name: average for name, average in self.average.items()}
        for name, parameter in self.network.named_parameters():
            moments = self.optimiser.state.get(parameter)
            if moments:
                tensors[FIRST_MOMENT + name] = moments["exp_avg"]
                tensors[SECOND_MOMENT + name] = moments["exp_avg_sq"]
        return tensors

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], step: int) -> None:
        for name, parameter in self.network.named_parameters():
            found = tensors.get(NETWORK + name)
            if found is None or found.shape != parameter.shape:
                raise ModelError(f"these weights are not for this network ({name} is missing or of another shape)")
        self.step = step
        for name, parameter in self.network.named_parameters():
            parameter.copy_(tensors[NETWORK + name])
            self.average[name].copy_(tensors[AVERAGE + name])
            if step:
                self.optimiser.state[parameter] = {
                    "step": torch.tensor(float(step), device=self.device if self.device.type == "cuda" else "cpu"),
                    "exp_avg": torch.empty_like(parameter).copy_(tensors[FIRST_MOMENT + name]),
                    "exp_avg_sq": torch.empty_like(parameter).copy_(tensors[SECOND_MOMENT + name]),
                }

    def begin_from(self, weights: Mapping[str, Tensor]) -> None:
        """Start anew from a model's weights."""
        self.restore({prefix + name: w for name, w in weights.items() for prefix in (NETWORK, AVERAGE)}, step=0)

    def description(self) -> dict[str, Any]:
        return {"task": self.config.task, "step": self.step, "training": asdict(self.config)}


def out_of_memory(problem: RuntimeError) -> bool:
    """On a GPU memory runs out with an error of its own, on a CPU with a sentence."""
    return isinstance(problem, torch.OutOfMemoryError) or "can't allocate memory" in str(problem)


def _mixed(*numbers: int) -> int:
    """One seed out of several."""
    mixed = 0
    for number in numbers:
        mixed = (mixed * 6364136223846793005 + number * 2 + 1442695040888963407) % 2**63
    return mixed
