"""A training step, and the state that is kept from step to step.

A step is a function of the weights, the seed and the step's number, which determine slices, augmentation, noise, levels
and withheld labels. A resumed run is therefore identical to an uninterrupted one.
"""

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from anofpdm.errors import ModelError, TrainingError
from anofpdm.network.config import UNetConfig
from anofpdm.network.fast.cpu import fast_gradients
from anofpdm.network.fast.cuda_graph import CudaGraph
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.network.training.augment import CHANCES, augment
from anofpdm.network.training.optimiser import adamw, set_learning_rate
from anofpdm.network.training.training_config import TrainingConfig
from anofpdm.network.unet import UNet
from anofpdm.options import Task
from anofpdm.util.distributed import World
from anofpdm.util.memory import unless_out_of_memory

NETWORK, AVERAGE = "network.", "average."
MOMENTS = ("exp_avg", "exp_avg_sq")  # as torch names those of the optimiser
LEVEL_BINS = 10
RECORD_AFTER = 3  # steps, during which libraries choose their kernels


class Inputs(NamedTuple):
    """Inputs of the network, and its target."""

    x: Tensor  # [B, C, H, W] noisy
    t: Tensor  # [B]
    labels: Tensor  # [B]
    target: Tensor  # the noise [B, C, H, W]


class Trainer:
    """Of a U-Net, with Gaussian noise. `study/rivals/rival_trainers.py` has others."""

    def __init__(self, network: UNetConfig, config: TrainingConfig, device: torch.device, world: World | None = None):
        self.network_config, self.config, self.device, self.world = network, config, device, world or World()
        if config.batch % self.world.count:
            raise TrainingError(
                f"a batch of {config.batch} cannot be split evenly over {self.world.count} processes; change --batch"
            )
        self.schedule = NoiseSchedule.linear()
        self.network = self.new_network().to(memory_format=torch.channels_last).train()  # type: ignore[call-overload]
        self.average = {name: parameter.detach().clone() for name, parameter in self.network.named_parameters()}
        on_gpu = device.type == "cuda"
        self.runner: nn.Module = self.network
        if self.world.count > 1:
            self.runner = DistributedDataParallel(self.network, device_ids=[device.index] if on_gpu else None)
        self.optimiser = adamw(self.network.parameters(), config.learning_rate)
        self._graph: CudaGraph | None = None
        self._uses_graph = on_gpu and self.world.count == 1
        self.micro_batch = config.batch // self.world.count  # halved when memory runs out
        self.step = self.eager_steps = 0
        alpha_bar = self.schedule.alpha_bar
        self._signal, self._spread = (part.sqrt().float().to(device) for part in (alpha_bar, 1 - alpha_bar))
        self._generator = torch.Generator(device)
        self.level_loss = torch.zeros(2, LEVEL_BINS, device=device)  # sums and counts since the last picture

    def new_network(self) -> nn.Module:
        return UNet(self.network_config).to(self.device)

    # ---- a step ------------------------------------------------------------------------------------------------------

    def inputs(self, slices: Tensor, labels: Tensor) -> Inputs:
        """Noisy inputs of step number `self.step`, from this process's slices [b, C, H, W] and labels [b]."""
        config, part = self.config, self.world.batch_slice(self.config.batch)
        generator = self._generator.manual_seed(_mix_seeds(config.seed, self.step))

        def draw(*shape: int) -> Tensor:  # for the whole batch: the same for any number of processes
            return torch.rand(config.batch, *shape, generator=generator, device=self.device)[part]

        x0, labels = slices.to(self.device, torch.float32, non_blocking=True), labels.to(self.device, non_blocking=True)
        t = (draw() * len(self.schedule)).long().clamp(max=len(self.schedule) - 1)
        withheld = draw() < config.null_share
        if config.augment:
            x0 = augment(x0, draw(CHANCES + x0.shape[1]) * 2 - 1)
        noise = self.draw_noise(x0, t, generator)
        x = self._signal[t][:, None, None, None] * x0 + self._spread[t][:, None, None, None] * noise
        null = self.network_config.null_label
        known = labels if config.task == Task.GUIDED else torch.full_like(labels, null)
        return Inputs(x, t, torch.where(withheld, null, known), noise)

    def draw_noise(self, x0: Tensor, _t: Tensor, generator: torch.Generator) -> Tensor:
        """Of this process's slices, as part of the noise of the whole batch."""
        batch, part = self.config.batch, self.world.batch_slice(self.config.batch)
        return torch.randn(batch, *x0.shape[1:], generator=generator, device=self.device)[part]

    def update(self, inputs: Inputs) -> Tensor:
        """One step of the optimiser; returns the mean loss of this process's slices."""
        torch.manual_seed(_mix_seeds(self.config.seed, self.step, 1 + self.world.rank))  # dropout
        warmed_up = min(1.0, (self.step + 1) / self.config.warm_up) if self.config.warm_up else 1.0
        set_learning_rate(self.optimiser, self.config.learning_rate * warmed_up)
        if self._uses_graph and self._graph is None and self.eager_steps >= RECORD_AFTER:
            self._graph = self._record(inputs)
        if self._graph is not None:
            loss = self._graph(*inputs).clone()
        else:
            loss = self._optimise_in_memory(inputs)
            self.eager_steps += 1
        self._update_average()
        self.step += 1
        return loss

    def _optimise(self, *tensors: Tensor) -> Tensor:
        self.optimiser.zero_grad()
        loss = self._backward(Inputs(*tensors))
        nn.utils.clip_grad_norm_(self.network.parameters(), self.config.clip)
        self.optimiser.step()
        return loss

    def _optimise_in_memory(self, inputs: Inputs) -> Tensor:
        """With a smaller micro-batch if memory runs out."""
        if self.world.count > 1:
            return self._optimise_distributed(inputs)
        while True:
            loss = unless_out_of_memory(lambda: self._optimise(*inputs))
            if loss is not None:
                return loss
            self._halve()

    def _optimise_distributed(self, inputs: Inputs) -> Tensor:
        """Processes agree on the micro-batch by a trial without synchronisation, before the first step."""
        while not self.eager_steps:
            with self.runner.no_sync():  # type: ignore[operator]
                short = unless_out_of_memory(lambda: self._backward(inputs)) is None
            self.level_loss.zero_()
            self.optimiser.zero_grad()
            if not self.world.any(short, self.device):
                break
            self._halve()
        return self._optimise(*inputs)

    def _record(self, inputs: Inputs) -> CudaGraph | None:
        """None if memory ran out: a graph keeps its memory, and training works without one."""
        graph = unless_out_of_memory(lambda: CudaGraph(self._optimise, inputs))
        self._uses_graph = graph is not None
        return graph

    def losses(self, inputs: Inputs) -> Tensor:
        """[b], one per slice."""
        with self.arithmetic():
            predicted = self.runner(inputs.x, inputs.t, inputs.labels)
        return (predicted - inputs.target).square().mean((1, 2, 3))

    def arithmetic(self) -> torch.autocast:
        """bfloat16 on a GPU."""
        on_gpu = self.device.type == "cuda"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=on_gpu, cache_enabled=False)

    def _backward(self, inputs: Inputs) -> Tensor:
        count, total = len(inputs.x), torch.zeros((), device=self.device)
        for start in range(0, count, self.micro_batch):
            part = Inputs(*(tensor[start : start + self.micro_batch] for tensor in inputs))
            losses = self.losses(part)
            with fast_gradients(self.device):
                (losses.sum() / count).backward()
            total += losses.detach().sum() / count
            bins = part.t * LEVEL_BINS // len(self.schedule)
            self.level_loss[0].index_add_(0, bins, losses.detach())
            self.level_loss[1].index_add_(0, bins, torch.ones_like(losses))
        return total

    def _halve(self) -> None:
        """Halve the micro-batch; the batch stays the same."""
        if self.micro_batch == 1:
            raise TrainingError("not enough memory for a single slice; choose a smaller --preset")
        self.micro_batch = (self.micro_batch + 1) // 2

    @torch.no_grad()
    def _update_average(self) -> None:
        """Moving average with a lower decay in the first steps, so that short runs are usable."""
        decay = min(self.config.average, (1 + self.step) / (10 + self.step))
        now = dict(self.network.named_parameters())
        torch._foreach_lerp_(list(self.average.values()), [now[name] for name in self.average], 1 - decay)

    # ---- state -------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.network.named_parameters():
            tensors |= {NETWORK + name: parameter, AVERAGE + name: self.average[name]}
            moments = self.optimiser.state.get(parameter, {})  # none before the first step, or without a gradient
            tensors |= {f"{moment}.{name}": moments[moment] for moment in MOMENTS if moments}
        return tensors

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor], step: int) -> None:
        for name, parameter in self.network.named_parameters():
            saved = tensors.get(NETWORK + name)
            if saved is None or saved.shape != parameter.shape:
                raise ModelError(f"the weights do not fit this network ({name} is missing or of another shape)")
        self.step = step
        for name, parameter in self.network.named_parameters():
            parameter.copy_(tensors[NETWORK + name])
            self.average[name].copy_(tensors[AVERAGE + name])
            if f"{MOMENTS[0]}.{name}" in tensors:
                steps = torch.tensor(float(step), device=self.device if parameter.is_cuda else "cpu")
                moments = {key: torch.empty_like(parameter).copy_(tensors[f"{key}.{name}"]) for key in MOMENTS}
                self.optimiser.state[parameter] = {"step": steps, **moments}

    def load_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Start at step 0 with a model's weights."""
        self.restore({prefix + name: w for name, w in weights.items() for prefix in (NETWORK, AVERAGE)}, step=0)

    def averaged_network(self) -> nn.Module:
        network = self.new_network()
        network.load_state_dict(self.average)
        return network.eval()


def _mix_seeds(*numbers: int) -> int:
    """One seed from several numbers."""
    mixed = 0
    for number in numbers:
        mixed = (mixed * 6364136223846793005 + number * 2 + 1442695040888963407) % 2**63
    return mixed
