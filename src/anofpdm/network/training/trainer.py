"""A training step, and the state that is kept from step to step.

A step is a function of the weights, the seed and the step's number, which determine slices, augmentation, noise, levels
and withheld labels. A resumed run is therefore identical to an uninterrupted one.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from anofpdm.choices import Task
from anofpdm.errors import TrainingError
from anofpdm.network.config import UNetConfig
from anofpdm.network.fast.cpu import fast_gradients
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.network.training.augment import CHANCES, augment
from anofpdm.network.training.base_trainer import BaseTrainer
from anofpdm.network.training.training_config import TrainingConfig
from anofpdm.network.unet import UNet
from anofpdm.util.distributed import World
from anofpdm.util.memory import unless_out_of_memory

MOMENTS = ("exp_avg", "exp_avg_sq")  # as torch names those of the optimiser


class Inputs(NamedTuple):
    """Inputs of the network, and its target."""

    x: Tensor  # [B, C, H, W] noisy
    t: Tensor  # [B]
    labels: Tensor  # [B]
    target: Tensor  # the noise [B, C, H, W]


class Trainer(BaseTrainer):
    """Of a U-Net, with Gaussian noise. `study/rivals/rival_trainers.py` has others."""

    def __init__(self, network: UNetConfig, config: TrainingConfig, device: torch.device, world: World | None = None):
        self.network_config, self.config, self.device, self.world = network, config, device, world or World()
        if config.batch % self.world.count:
            raise TrainingError(
                f"a batch of {config.batch} cannot be split evenly over {self.world.count} processes; change --batch"
            )
        self.part = self.world.batch_slice(config.batch)  # of each batch, for this process
        self.schedule = NoiseSchedule.linear()
        alpha_bar = self.schedule.alpha_bar
        self._signal, self._spread = (part.sqrt().float().to(device) for part in (alpha_bar, 1 - alpha_bar))
        new_network = self.new_network().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        super().__init__(new_network, config.learning_rate, config.average)
        self.runner: nn.Module = self.network
        if self.world.count > 1:
            self.runner = DistributedDataParallel(self.network, device_ids=[device.index] if self.uses_graph else None)
            self.uses_graph = False
        self.micro_batch = config.batch // self.world.count  # halved when memory runs out
        self.step = 0
        self._generator = torch.Generator(device)

    def new_network(self) -> nn.Module:
        return UNet(self.network_config).to(self.device)

    # ---- a step ------------------------------------------------------------------------------------------------------

    def inputs(self, slices: Tensor, labels: Tensor) -> Inputs:
        """Noisy inputs of step number `self.step`, from this process's slices [b, C, H, W] and labels [b]."""
        config = self.config
        generator = self._generator.manual_seed(_mix_seeds(config.seed, self.step))

        def draw(*shape: int) -> Tensor:  # for the whole batch: the same for any number of processes
            return torch.rand(config.batch, *shape, generator=generator, device=self.device)[self.part]

        x0, labels = slices.to(self.device, torch.float32, non_blocking=True), labels.to(self.device, non_blocking=True)
        t = (draw() * len(self.schedule)).long().clamp(max=len(self.schedule) - 1)
        withheld = draw() < config.null_share
        if config.augment:
            x0 = augment(x0, draw(CHANCES + x0.shape[1]) * 2 - 1)
        noise = self.draw_noise(x0, t, generator)
        null = self.network_config.null_label
        known = labels if config.task == Task.GUIDED else torch.full_like(labels, null)
        x = self._signal[t][:, None, None, None] * x0 + self._spread[t][:, None, None, None] * noise
        return Inputs(x, t, torch.where(withheld, null, known), noise)

    def draw_noise(self, x0: Tensor, _t: Tensor, generator: torch.Generator) -> Tensor:
        """Of this process's slices, as part of the noise of the whole batch."""
        shape = self.config.batch, *x0.shape[1:]
        return torch.randn(shape, generator=generator, device=self.device)[self.part]

    def update(self, inputs: Inputs) -> Tensor:
        """One step of the optimiser; returns the mean loss of this process's slices."""
        torch.manual_seed(_mix_seeds(self.config.seed, self.step, 1 + self.world.rank))  # dropout
        warmed_up = min(1.0, (self.step + 1) / max(self.config.warm_up, 1))
        loss = self.optimise(inputs, self.config.learning_rate * warmed_up, self.step)
        self.step += 1
        return loss

    def compute_step(self, *inputs: Tensor) -> Tensor:
        self.optimiser.zero_grad()
        loss = self._backward(Inputs(*inputs))
        nn.utils.clip_grad_norm_(self.network.parameters(), self.config.clip)
        self.optimiser.step()
        return loss

    def compute_eagerly(self, inputs: Sequence[Tensor]) -> Tensor:
        """With a smaller micro-batch if memory runs out."""
        if self.world.count > 1:
            return self._optimise_distributed(Inputs(*inputs))
        while True:
            loss = unless_out_of_memory(lambda: self.compute_step(*inputs))
            if loss is not None:
                return loss
            self._halve()

    def _optimise_distributed(self, inputs: Inputs) -> Tensor:
        """Processes agree on the micro-batch by a trial without synchronisation, before the first step."""
        while not self.eager_steps:
            with self.runner.no_sync():  # type: ignore[operator]
                short = unless_out_of_memory(lambda: self._backward(inputs)) is None
            self.optimiser.zero_grad()
            if not self.world.any(short, self.device):
                break
            self._halve()
        return self.compute_step(*inputs)

    def _halve(self) -> None:
        """Halve the micro-batch; the batch stays the same."""
        if self.micro_batch == 1:
            raise TrainingError("not enough memory for a single slice; choose a smaller --preset")
        self.micro_batch = (self.micro_batch + 1) // 2

    def _backward(self, inputs: Inputs) -> Tensor:
        count, total = len(inputs.x), torch.zeros((), device=self.device)
        for part in map(Inputs._make, zip(*(tensor.split(self.micro_batch) for tensor in inputs), strict=True)):
            losses = self.losses(part)
            with fast_gradients(self.device):
                (losses.sum() / count).backward()
            total += losses.detach().sum() / count
        return total

    def losses(self, inputs: Inputs) -> Tensor:
        """[b], one per slice."""
        with self.arithmetic():
            predicted = self.runner(inputs.x, inputs.t, inputs.labels)
        return (predicted - inputs.target).square().mean((1, 2, 3))

    def arithmetic(self) -> torch.autocast:
        """bfloat16 on a GPU."""
        on_gpu = self.device.type == "cuda"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=on_gpu, cache_enabled=False)

    # ---- state -------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = dict(self._networks().state_dict())
        for name, parameter in self.network.named_parameters():
            moments = self.optimiser.state.get(parameter, {})  # none before the first step, or without a gradient
            tensors |= {f"{moment}.{name}": moments[moment] for moment in MOMENTS if moments}
        return tensors

    def restore(self, tensors: Mapping[str, Tensor], step: int) -> None:
        """To `state` at this step. RuntimeError if the weights do not fit."""
        weights = {name: tensor for name, tensor in tensors.items() if not name.startswith(MOMENTS)}
        self._networks().load_state_dict(weights)
        for name, parameter in self.network.named_parameters():
            saved = [tensors.get(f"{moment}.{name}") for moment in MOMENTS]
            moments = [torch.empty_like(parameter).copy_(tensor) for tensor in saved if tensor is not None]
            if moments:
                steps = torch.tensor(float(step), device=self.device if parameter.is_cuda else "cpu")
                self.optimiser.state[parameter] = {"step": steps, **dict(zip(MOMENTS, moments, strict=True))}
        self.step = step

    def _networks(self) -> nn.ModuleDict:
        return nn.ModuleDict({"network": self.network, "average": self.average})

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Start at step 0 with a model's weights."""
        for network in (self.network, self.average):
            network.load_state_dict(weights)


def _mix_seeds(*numbers: int) -> int:
    """One seed from several numbers."""
    mixed = 0
    for number in numbers:
        mixed = (mixed * 6364136223846793005 + number * 2 + 1442695040888963407) % 2**63
    return mixed
