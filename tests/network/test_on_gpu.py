"""The network and training on a GPU."""

import copy

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from anofpdm.network.blocks import upsample
from anofpdm.network.config import preset
from anofpdm.network.training.trainer import Trainer
from anofpdm.network.training.training_config import TrainingConfig
from anofpdm.network.unet import UNet
from tests.network.trainers import without_zeros

pytestmark = pytest.mark.gpu
GPU = torch.device("cuda", 0)


@pytest.mark.parametrize("name", ["tiny", "compact", "small", "paper"])
def test_attention_uses_a_flash_kernel_forward_and_backward(name):
    network = UNet(preset(name, 4)).to(GPU).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x, t, labels = torch.randn(2, 4, 128, 128), torch.tensor([10, 500]), torch.tensor([0, 2])
    with sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION]):  # raises if only others apply
        with torch.autocast("cuda", torch.bfloat16):
            output = network(x.to(GPU), t.to(GPU), labels.to(GPU))
        output.sum().backward()
    assert output.isfinite().all()


def trained(steps, *, graph, memory=1.0):
    torch.manual_seed(0)
    trainer = Trainer(preset("tiny", 2, dropout=0.0), TrainingConfig(batch=32, warm_up=5), GPU)
    trainer.uses_graph = graph
    generator = torch.Generator().manual_seed(3)
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(memory)
    try:
        losses = []
        for _ in range(steps):
            slices = torch.rand(32, 2, 64, 64, generator=generator).half().pin_memory()
            labels = torch.randint(0, 2, (32,), generator=generator).pin_memory()
            losses.append(trainer.update(trainer.inputs(slices, labels)))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    return trainer, torch.stack(losses).cpu()


def test_a_step_as_a_cuda_graph_equals_the_plain_step():
    recorded, losses = trained(40, graph=True)
    plain, same = trained(40, graph=False)
    assert recorded.graph is not None
    assert plain.graph is None
    torch.testing.assert_close(losses, same, rtol=0.02, atol=0)
    assert losses[-1] < 0.8 * losses[0]


def test_short_memory_gives_the_same_losses_with_smaller_micro_batches():
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    plenty, losses = trained(6, graph=False)
    needed = torch.cuda.max_memory_allocated() - before
    held = torch.cuda.memory_allocated()
    whole = torch.cuda.get_device_properties(GPU).total_memory
    short, same = trained(6, graph=True, memory=(held + 0.6 * needed) / whole)
    assert plenty.micro_batch == 32
    assert 1 <= short.micro_batch < 32
    torch.testing.assert_close(losses, same, rtol=0.02, atol=0)


def test_half_precision_resolves_the_difference_between_labels():
    """The method uses the small difference between two predictions; bf16 has an eighth of fp16's resolution."""
    from anofpdm.network.predictor import NoisePredictor

    network = without_zeros(UNet(preset("small", 4)))
    for module in network.modules():  # labels have little influence, as in a trained network
        if isinstance(module, torch.nn.Embedding):
            torch.nn.init.normal_(module.weight, std=0.02)
    x = torch.randn(4, 4, 128, 128, device=GPU).repeat(2, 1, 1, 1)
    labels = torch.tensor([0, 2], device=GPU).repeat_interleave(4)
    differences = {}
    for precision in ("fp32", "fp16", "bf16"):
        healthy, unguided = NoisePredictor(copy.deepcopy(network), GPU, precision)(x, 300, labels).chunk(2)
        differences[precision] = healthy - unguided
    size = differences["fp32"].square().mean().sqrt()
    error = {name: (differences[name] - differences["fp32"]).square().mean().sqrt() for name in ("fp16", "bf16")}
    assert error["fp16"] < 0.25 * size
    assert error["fp16"] < 0.25 * error["bf16"]


@pytest.mark.parametrize("name", ["tiny", "compact", "small", "paper"])
def test_inference_kernels_equal_plain_layers(name):
    """Skips without concatenation and the fused last layer: the same as plain layers in float32."""
    network = without_zeros(UNet(preset(name, 4))).to(GPU).to(memory_format=torch.channels_last).eval()
    x, t = torch.randn(3, 4, 128, 128, device=GPU), torch.tensor([0, 300, 900], device=GPU)
    labels = torch.tensor([0, 1, 2], device=GPU)
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        ours = network(x, t, labels)
        plain = copy.deepcopy(network).use_plain_layers()(x, t, labels)
    torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4 * float(plain.abs().max()))


@pytest.mark.parametrize(("channels", "out", "side"), [(32, 1, 32), (64, 4, 128), (128, 2, 48)])
def test_the_last_layer_is_exact_to_float32(channels, out, side):
    from anofpdm.network.fast.last_layer import last_layer

    torch.manual_seed(0)
    norm, conv = torch.nn.GroupNorm(8, channels).to(GPU), torch.nn.Conv2d(channels, out, 3, padding=1).to(GPU)
    conv = conv.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # as in the network
    torch.nn.init.normal_(norm.weight)
    x = torch.randn(2, channels, side, side, device=GPU, dtype=torch.float16)
    with torch.no_grad():
        exact = conv.double()(torch.nn.functional.silu(norm.double()(x.double())))
        ours = last_layer(x, norm.float(), conv.float())
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), exact, rtol=0, atol=2e-5)


def test_batches_of_several_sizes_share_graphs_and_agree():
    from anofpdm.network.predictor import NoisePredictor

    predict = NoisePredictor(without_zeros(UNet(preset("tiny", 2))), GPU, "fp16")
    x, labels = torch.randn(40, 2, 64, 64, device=GPU), torch.arange(40, device=GPU) % 3
    whole = predict(x, 300, labels)
    for count in (39, 33, 21, 7, 1):
        torch.testing.assert_close(predict(x[:count], 300, labels[:count]), whole[:count], rtol=0, atol=2e-2)
    assert sum(map(len, predict._graphs.values())) < 6


def test_upsampling_repeats_every_pixel():
    x = torch.randn(2, 24, 6, 5, device=GPU, dtype=torch.float16).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        assert torch.equal(upsample(x), torch.nn.functional.interpolate(x, scale_factor=2))
