"""A trained network as a callable: noisy slices, a noise level and labels -> predicted noise."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from anofpdm.choices import Noise, Precision, Task, parse
from anofpdm.errors import ModelError
from anofpdm.network import checkpoint
from anofpdm.network.config import ModelConfig, UNetConfig
from anofpdm.network.fast.cpu import SliceThreads
from anofpdm.network.fast.cuda_graph import CudaGraph
from anofpdm.network.fast.winograd import is_faster_here, use_winograd
from anofpdm.network.unet import UNet
from anofpdm.scans.expects import ScanExpectation
from anofpdm.util.artifacts import convert
from anofpdm.util.memory import half_of, release_cached_memory, unless_out_of_memory

DTYPES = {Precision.FP32: torch.float32, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


class NoisePredictor:
    """By default on a GPU: in fp16 except for the last layer, and as CUDA graphs.

    fp16, not bf16: predictions for two labels differ by a hundredth of their size, and the error of bf16 is a quarter
    of that (measured in docs/method.md). Activations stay far below the range of fp16.
    """

    def __init__(self, network: UNet, device: torch.device, precision: str = Precision.AUTO):
        self.device, self.precision = device, parse(Precision, precision)
        if self.precision == Precision.AUTO:
            self.precision = Precision.FP16 if device.type == "cuda" else Precision.FP32
        if self.precision == Precision.FP32 and device.type == "cuda":
            network = network.use_plain_layers()  # cuDNN has no fast float32 for channels last
        for module in network.modules():
            if isinstance(module, nn.Conv2d | nn.Linear) and module is not network.last:
                module.to(DTYPES[self.precision])  # once, not at every call
        self.network = network.to(device).to(memory_format=network.memory_format).eval()  # type: ignore[call-overload]
        self._threads: SliceThreads | None = None
        if self.precision == Precision.FP32 and device.type == "cpu":
            self.network.decoder.skip_upsampling()
            self._threads = SliceThreads()
            if is_faster_here():
                use_winograd(self.network)
        self.max_batch: int | None = None  # set once memory has run out
        self._uses_graphs = device.type == "cuda"
        self._forget_graphs()

    @torch.no_grad()
    def __call__(self, x: Tensor, t: int, labels: Tensor) -> Tensor:
        """x [N, C, H, W], labels [N] or weights of each [N, n_labels] -> noise [N, C, H, W], float32.

        In smaller batches if memory runs out.
        """

        def predict(batch: int) -> Tensor:
            with torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext():
                batches = zip(x.split(batch), labels.split(batch), strict=True)
                return torch.cat([self._predict(part, t, part_labels) for part, part_labels in batches])

        while True:
            batch = min(self.max_batch or len(x), len(x))
            noise = unless_out_of_memory(partial(predict, batch))
            if noise is not None:
                return noise
            self._halve(batch)

    def _predict(self, x: Tensor, t: int, labels: Tensor) -> Tensor:
        levels = torch.full((len(x),), t, device=x.device)
        if not self._uses_graphs:
            return self._forward(x, levels, labels)
        graphs = self._graphs.setdefault((*x.shape[1:], *labels.shape[1:]), {})  # labels, or weights of each
        size = graph_batch_size(len(x), graphs)
        inputs = [pad_batch(part, size) for part in (x, levels, labels)]
        if size not in graphs:
            self._forward(*inputs)  # libraries choose their kernels here
            graphs[size] = CudaGraph(self._forward, inputs, self._pool)
        return graphs[size](*inputs)[: len(x)].clone()

    def _forward(self, x: Tensor, levels: Tensor, labels: Tensor) -> Tensor:
        with self._arithmetic():
            if self._threads:
                return torch.cat(self._threads.map(self._run_network, x, levels, labels))
            return self._run_network(x, levels, labels)

    @torch.no_grad()  # which does not hold in other threads
    def _run_network(self, x: Tensor, levels: Tensor, labels: Tensor) -> Tensor:
        noise: Tensor = self.network(x, levels, labels)
        return noise

    def _arithmetic(self) -> contextlib.AbstractContextManager[None]:
        if self.precision == Precision.FP32:
            return _without_tf32()
        return torch.autocast(self.device.type, DTYPES[self.precision], cache_enabled=False)

    def _halve(self, batch: int) -> None:
        self._forget_graphs()  # their memory is as large as the batch that did not fit
        release_cached_memory()
        self.max_batch = None  # for the next scan, where there is not enough for a single slice of this one
        self.max_batch = half_of(batch)

    def _forget_graphs(self) -> None:
        self._graphs: dict[tuple[int, ...], dict[int, CudaGraph]] = {}  # by the shapes of inputs, and the batch size
        self._pool = torch.cuda.graph_pool_handle() if self.device.type == "cuda" else None


def graph_batch_size(count: int, known: Collection[int]) -> int:
    """Batch size to pad `count` slices to: recording another graph takes longer than computing a few slices more.

    A new largest size is not padded. Smaller ones are padded to a known size, or to one of four sizes per power of two.
    """
    if not known or count > max(known):
        return count
    octave = 1 << (count.bit_length() - 1)
    step = max(1, octave // 4)
    size = -(-count // step) * step
    return min([other for other in known if count <= other <= 5 * count / 4], default=min(size, max(known)))


def pad_batch(tensor: Tensor, count: int) -> Tensor:
    """Repeats the last entry, to `count` entries."""
    missing = count - len(tensor)
    return torch.cat([tensor, tensor[-1:].expand(missing, *tensor.shape[1:])]) if missing else tensor


@contextlib.contextmanager
def _without_tf32() -> Iterator[None]:
    """TF32 has the mantissa of half precision."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        # `enabled` defaults to False: no cuDNN.
        with torch.backends.cudnn.flags(enabled=True, benchmark=True, allow_tf32=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


@dataclass(frozen=True)
class TrainedModel:
    """A loaded model folder."""

    folder: Path
    predict: NoisePredictor
    modalities: tuple[str, ...]  # in the order of the network's channels
    size: int  # slices are size x size
    sha256: str
    expects: ScanExpectation = field(default_factory=ScanExpectation)

    @property
    def device(self) -> torch.device:
        return self.predict.device

    def channels(self, names: Sequence[str]) -> tuple[int, ...]:
        """Indices of these modalities; none given: of all."""
        unknown = [name for name in names if name not in self.modalities]
        if unknown:
            known = ", ".join(self.modalities)
            raise ModelError(f"{self.folder} was not trained on {', '.join(unknown)}, only on {known}")
        return tuple(self.modalities.index(name) for name in names or self.modalities)


def load_trained(
    folder: Path,
    device: torch.device,
    precision: str = Precision.AUTO,
    *,
    task: str = Task.GUIDED,
    noise: str = Noise.GAUSSIAN,
) -> TrainedModel:
    network, config, digest = load_network(folder, UNet, task, noise)
    assert isinstance(network, UNet)
    try:
        expects = convert(ScanExpectation, config.expects)
    except (TypeError, ValueError) as problem:
        raise ModelError(f"{folder}: invalid configuration ({problem}); train it again") from None
    predict = NoisePredictor(network, device, precision)
    return TrainedModel(folder, predict, config.modalities, config.size, digest, expects)


def load_network(
    folder: Path, build: Callable[[UNetConfig], nn.Module], task: str, noise: str
) -> tuple[nn.Module, ModelConfig, str]:
    """Trained for this task with this noise; its configuration and hash."""
    weights, payload, digest = checkpoint.load_model(folder)
    config = ModelConfig.from_header(payload, folder)
    if (config.task, config.training.noise) != (task, noise):
        raise ModelError(
            f"{folder}: trained for task '{config.task}' with {config.training.noise} noise; needed is a model for "
            f"task '{task}' with {noise} noise"
        )
    with torch.device("meta"):  # no memory is allocated for a network that the weights do not fit
        network = build(config.network)
    with checkpoint.weights_must_fit(folder):
        network.load_state_dict(
            {name: tensor.to(torch.float32, copy=True) for name, tensor in weights.items()}, assign=True
        )
    return network, config, digest
