"""A trained network as the method asks it: a noisy slice, a noise level, a label; the noise in return."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from anofpdm.errors import ConfigError, ModelError
from anofpdm.labels import HEALTHY, UNHEALTHY
from anofpdm.network import checkpoint
from anofpdm.network.kernels.cuda_graph import Recorded
from anofpdm.network.training.run import network_config
from anofpdm.network.training.trainer import Network, build_network, out_of_memory
from anofpdm.network.unet import UNet, UNetConfig

PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
HealthyGradient = Callable[[Tensor, int], Tensor]  # x [N, C, H, W], t -> [N, C, H, W]
MAX_SIZE = 4096  # pixels along a slice
MOST_RECORDED = 16  # shapes of a batch; the oldest makes room for another


class NoisePredictor:
    """On a GPU in half precision, save the last layer, and recorded, so that it does not wait for Python.

    Half precision is fp16, not bf16: the answers to two labels differ by a hundredth of either, and bf16 is
    off by a quarter of that (docs/method.md has the measurement). Activations stay far below what fp16 can hold.
    """

    def __init__(self, network: UNet, device: torch.device, precision: str = "auto"):
        if precision == "auto":
            precision = "fp16" if device.type == "cuda" else "fp32"
        if precision not in PRECISIONS:
            raise ModelError(f"unknown precision {precision!r}; choose one of auto, {', '.join(PRECISIONS)}")
        self.device, self.precision = device, precision
        if precision == "fp32" and device.type == "cuda":
            network = network.as_in_a_textbook()  # cuDNN has no fast float32 for channels last
        for module in network.modules():
            if isinstance(module, nn.Conv2d | nn.Linear) and module is not network.last:
                module.to(PRECISIONS[precision])  # once, not at every question
        self.network = network.to(device).to(memory_format=network.memory_format).eval()  # type: ignore[call-overload]
        self.portion: int | None = None  # slices at a time, once memory has run short
        self._records = device.type == "cuda"
        self._recorded: dict[tuple[int, ...], Recorded] = {}
        self._pool = self._new_pool()

    @torch.no_grad()
    def __call__(self, x: Tensor, t: int, labels: Tensor) -> Tensor:
        """x [N, C, H, W], labels [N] or shares of each [N, n_labels] -> noise [N, C, H, W], float32.

        As much at a time as memory allows.
        """
        with torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext():
            return self._in_portions(x, t, labels)

    def _in_portions(self, x: Tensor, t: int, labels: Tensor) -> Tensor:
        while True:
            portion = self.portion or len(x)
            try:
                parts = [
                    self._predict(x[at : at + portion], t, labels[at : at + portion])
                    for at in range(0, len(x), portion)
                ]
                return parts[0] if len(parts) == 1 else torch.cat(parts)
            except RuntimeError as problem:
                if not out_of_memory(problem):
                    raise
            self._halve(portion)  # out here, where the failed attempt no longer holds its memory

    def _predict(self, x: Tensor, t: int, labels: Tensor) -> Tensor:
        levels = torch.full((len(x),), t, device=x.device)
        if not self._records:
            return self._forward(x, levels, labels)
        count, known = len(x), [shape[0] for shape in self._recorded if shape[1:] == (*x.shape[1:], *labels.shape[1:])]
        x, levels, labels = (padded(one, recorded_size(count, known)) for one in (x, levels, labels))
        shape = (*x.shape, *labels.shape[1:])  # labels, or shares of each
        if shape not in self._recorded:
            if len(self._recorded) >= MOST_RECORDED:
                self._recorded.pop(next(iter(self._recorded)))
            self._forward(x, levels, labels)  # in which libraries choose their kernels
            self._recorded[shape] = Recorded(self._forward, (x, levels, labels), self._pool)
        return self._recorded[shape](x, levels, labels)[:count].clone()

    def _forward(self, x: Tensor, levels: Tensor, labels: Tensor) -> Tensor:
        if self.precision == "fp32":
            with _true_float32():
                return self.network(x, levels, labels)
        with torch.autocast(x.device.type, PRECISIONS[self.precision], cache_enabled=False):
            return self.network(x, levels, labels)

    def _halve(self, portion: int) -> None:
        if portion == 1:
            raise ModelError("not enough memory for one slice at a time; free some, or use --device cpu")
        self.portion = (portion + 1) // 2
        self._recorded.clear()
        self._pool = self._new_pool()  # the old one is as large as what did not fit
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _new_pool(self) -> Any:
        return torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None


def recorded_size(count: int, known: Sequence[int]) -> int:
    """How many slices to ask at once, for so many: recording another size takes longer than a few slices too many.

    The largest so far is recorded as it is; less goes with a size that is known, or one of four to an octave.
    """
    if not known or count > max(known):
        return count
    octave = 1 << (count.bit_length() - 1)
    step = max(1, octave // 4)
    size = -(-count // step) * step
    return min([one for one in known if count <= one <= 5 * count / 4], default=min(size, max(known)))


def padded(tensor: Tensor, count: int) -> Tensor:
    """Its last entry repeated until there are so many."""
    missing = count - len(tensor)
    return torch.cat([tensor, tensor[-1:].expand(missing, *tensor.shape[1:])]) if missing else tensor


@contextlib.contextmanager
def _true_float32() -> Iterator[None]:
    """Without TF32, which is half precision by another name."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        # `enabled` must be said: it defaults to no cuDNN.
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


@dataclass(frozen=True)
class TrainedModel:
    """A model folder, opened."""

    folder: Path
    predict: NoisePredictor
    modalities: tuple[str, ...]  # in the order of the network's channels
    size: int  # slices are size x size
    sha256: str

    @property
    def device(self) -> torch.device:
        return self.predict.device

    def channels(self, names: Sequence[str]) -> tuple[int, ...]:
        """Of these modalities; none named: all."""
        unknown = [name for name in names if name not in self.modalities]
        if unknown:
            has = ", ".join(self.modalities)
            raise ModelError(f"{self.folder} was not trained on {', '.join(unknown)}; it knows {has}")
        return tuple(self.modalities.index(name) for name in names or self.modalities)


def load_trained(
    folder: Path, device: torch.device, precision: str = "auto", *, task: str = "guided", noise: str = "gaussian"
) -> TrainedModel:
    network, said, digest = _load(folder, task, noise)
    assert isinstance(network, UNet)
    predict = NoisePredictor(network, device, precision)
    return TrainedModel(folder, predict, tuple(said["modalities"]), int(said["size"]), digest)


@dataclass(frozen=True)
class Guide:
    """A classifier of noised slices, as a direction, and as what it says."""

    gradient: HealthyGradient  # of log p(healthy | x_t) with respect to x_t
    odds: Callable[[Tensor, int], Tensor]  # x [N, C, H, W], t -> [N], log-odds of unhealthy
    modalities: tuple[str, ...]
    size: int
    sha256: str


def load_guide(folder: Path, device: torch.device) -> Guide:
    network, said, digest = _load(folder, "classifier", "gaussian")
    classifier = network.to(device).eval()

    def logits(x: Tensor, t: int) -> Tensor:
        found: Tensor = classifier(x, torch.full((len(x),), t, device=x.device))
        return found

    @torch.enable_grad()
    def gradient(x: Tensor, t: int) -> Tensor:
        x = x.detach().requires_grad_()
        (found,) = torch.autograd.grad(logits(x, t).log_softmax(dim=1)[:, HEALTHY].sum(), x)
        return found

    @torch.no_grad()
    def odds(x: Tensor, t: int) -> Tensor:
        healthy, unhealthy = logits(x, t)[:, [HEALTHY, UNHEALTHY]].T
        return unhealthy - healthy

    return Guide(gradient, odds, tuple(said["modalities"]), int(said["size"]), digest)


def _load(folder: Path, task: str, noise: str) -> tuple[Network, dict[str, Any], str]:
    weights, said, digest = checkpoint.load_model(folder)
    try:
        found, config = (said["task"], said.get("training", {}).get("noise", "gaussian")), network_config(said)
        _check_slices(said, config)
    except (ConfigError, ModelError, KeyError, TypeError, ValueError, AttributeError) as problem:
        raise ModelError(f"{folder}: its configuration cannot be ({problem}); train it again") from None
    if found != (task, noise):
        raise ModelError(
            f"{folder}: trained for {found[0]!r} with {found[1]} noise; needed here is {task!r} with {noise} noise"
        )
    others = f"{folder}: its weights are not for the network it names; train it again"
    if least_parameters(config) > sum(tensor.numel() for tensor in weights.values()):
        raise ModelError(others)  # before memory is taken for it
    network = build_network(task, config)
    try:
        network.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    except RuntimeError:
        raise ModelError(others) from None
    return network, said, digest


def least_parameters(config: UNetConfig) -> int:
    """A block has a convolution of 3 x 3 from its width to its width, and more."""
    return sum(9 * config.blocks * (config.channels * one) ** 2 for one in config.multipliers)


def _check_slices(said: dict[str, Any], config: UNetConfig) -> None:
    names, size = said["modalities"], said["size"]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("modalities are a list of names")
    if len(set(names)) != config.in_channels or len(names) != config.in_channels:
        raise ValueError(f"{len(names)} modalities for a network of {config.in_channels}")
    if type(size) is not int or not 0 < size <= MAX_SIZE or size % config.side_divisor:
        raise ValueError(f"slices of {size} pixels")
