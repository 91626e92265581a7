import copy

import pytest
import torch
from torch import nn

from anofpdm.errors import ConfigError
from anofpdm.labels import HEALTHY, NULL, UNHEALTHY
from anofpdm.network.blocks import Attention, ScaledNorm, upsample
from anofpdm.network.classifier import NoisedClassifier
from anofpdm.network.config import UNetConfig, preset
from anofpdm.network.fast.upsampled import UpsampledConvolution
from anofpdm.network.unet import Embedding, UNet

SMALL = UNetConfig(2, channels=8, multipliers=(1, 2, 2), blocks=1, attention=(2, 4))


def perturbed(network):
    """The output layers start at zero, which would hide all others."""
    generator = torch.Generator().manual_seed(0)
    for parameter in network.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    return network.eval()


@pytest.fixture
def network():
    torch.manual_seed(0)
    return perturbed(UNet(SMALL))


@pytest.fixture
def x():
    return torch.randn(3, 2, 16, 16, generator=torch.Generator().manual_seed(1))


T = torch.tensor([0, 400, 999])


def labelled(label: int) -> torch.Tensor:
    return torch.full((3,), label)


def test_no_label_is_null(network, x):
    torch.testing.assert_close(network(x, T), network(x, T, labelled(NULL)), rtol=0, atol=0)


def test_labels_and_levels_matter(network, x):
    healthy = network(x, T, labelled(HEALTHY))
    assert not torch.allclose(healthy, network(x, T, labelled(UNHEALTHY)))
    assert not torch.allclose(healthy, network(x, T, labelled(NULL)))
    assert not torch.allclose(healthy, network(x, T + 0 * T + torch.tensor([5, -5, -5]), labelled(HEALTHY)))


def weighted(healthy: float, unhealthy: float, null: float) -> torch.Tensor:
    return torch.tensor([[healthy, unhealthy, null]]).repeat(3, 1)


@pytest.mark.parametrize(("label", "shares"), [(HEALTHY, (1, 0, 0)), (UNHEALTHY, (0, 1, 0)), (NULL, (0, 0, 1))])
def test_the_full_weight_of_one_label_is_that_label(network, x, label, shares):
    torch.testing.assert_close(network(x, T, weighted(*shares)), network(x, T, labelled(label)), rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_weighted_labels_lie_between_the_labels(network, x):
    """From unhealthy to healthy, the prediction moves away from the one and towards the other."""
    unhealthy, healthy = network(x, T, labelled(UNHEALTHY)), network(x, T, labelled(HEALTHY))
    mixed = [network(x, T, weighted(share, 1 - share, 0)) for share in (0.05, 0.3, 0.6, 0.95)]
    away = [float((one - unhealthy).square().mean()) for one in mixed]
    ahead = [float((one - healthy).square().mean()) for one in mixed]
    assert 0 < away[0] < away[1] < away[2] < away[3]
    assert ahead[0] > ahead[1] > ahead[2] > ahead[3] > 0


def test_weighted_labels_act_in_embedding_and_attention(network, x):
    """Either alone still separates a mixture from a label."""
    for disabled in (Embedding, Attention):
        changed = copy.deepcopy(network)
        for module in changed.modules():
            if isinstance(module, disabled):
                module.label.weight.data.zero_()
        for label in (HEALTHY, UNHEALTHY):
            assert not torch.allclose(changed(x, T, weighted(0.4, 0.6, 0)), changed(x, T, labelled(label)))


def test_several_labels_in_one_call(network, x):
    """Layers before the first use of a label are computed once, with the same result."""
    labels, levels = torch.tensor([HEALTHY, NULL]).repeat_interleave(len(x)), torch.full((len(x),), 100)
    alone = torch.cat([network(x, levels, some) for some in labels.split(len(x))])
    torch.testing.assert_close(network(x, levels, labels), alone, rtol=1e-6, atol=1e-6)


def test_slices_are_independent(network, x):
    together = network(x, T, torch.tensor([0, 1, 2]))
    alone = torch.cat([network(x[i : i + 1], T[i : i + 1], torch.tensor([i])) for i in range(3)])
    torch.testing.assert_close(together, alone, rtol=1e-4, atol=1e-5)


def test_the_label_reaches_every_attention_block_by_itself(network, x):
    """Without the label in the embedding, changing it still changes the output of every attention block."""
    network.embedding.label.weight.data.zero_()
    blocks = [module for module in network.modules() if isinstance(module, Attention)]
    outputs: list[list[torch.Tensor]] = []
    for label in (HEALTHY, UNHEALTHY):
        changes: list[torch.Tensor] = []
        hooks = [
            block.register_forward_hook(lambda _m, inputs, out, changes=changes: changes.append(out - inputs[0]))
            for block in blocks
        ]
        network(x, T, labelled(label))
        for hook in hooks:
            hook.remove()
        outputs.append(changes)
    assert {one.shape[-1] for one in outputs[0]} == {8, 4}  # both attention resolutions of 16 x 16
    assert all(not torch.allclose(one, other) for one, other in zip(*outputs, strict=True))


def test_attention_is_softmax_over_pixels_and_the_label():
    """Against the formula, written out."""
    torch.manual_seed(0)
    block = perturbed(Attention(SMALL, 8))
    x, labels = torch.randn(2, 8, 3, 3), torch.tensor([0, 1])
    places = block.norm(x).flatten(2).transpose(1, 2)
    query, key, value = block.places(places).chunk(3, dim=-1)
    label_key, label_value = block.label(labels).chunk(2, dim=-1)
    key, value = torch.cat([key, label_key[:, None]], 1), torch.cat([value, label_value[:, None]], 1)
    heads = []
    for part in (slice(0, 4), slice(4, 8)):
        weights = torch.softmax(query[..., part] @ key[..., part].transpose(1, 2) / 2, dim=-1)  # sqrt(4) = 2
        heads.append(weights @ value[..., part])
    expected = x + block.out(torch.cat(heads, -1)).transpose(1, 2).reshape(x.shape)
    torch.testing.assert_close(block(x, labels), expected, rtol=1e-4, atol=1e-5)


def test_doubling_is_nearest_neighbour():
    x = torch.randn(2, 3, 5, 4)
    torch.testing.assert_close(
        upsample(x), nn.functional.interpolate(x, scale_factor=2, mode="nearest"), rtol=0, atol=0
    )


def test_dropout_only_while_training():
    norm = ScaledNorm(8, dropout=0.5)
    x = torch.randn(2, 8, 16, 16)
    assert (norm.train()(x) == 0).float().mean() > 0.3
    assert (norm.eval()(x) == 0).float().mean() < 0.01


def test_an_untrained_network_predicts_0():
    assert UNet(SMALL)(torch.randn(1, 2, 16, 16), torch.tensor([3])).abs().max() == 0


@pytest.mark.parametrize(("channels", "labels", "side"), [(1, 1, 16), (4, 3, 32), (7, 6, 24)])
def test_any_number_of_channels_and_labels(channels, labels, side):
    config = UNetConfig(channels, labels, labels - 1, channels=8, multipliers=(1, 2), blocks=2, attention=(2,))
    out = UNet(config)(torch.randn(2, channels, side, side), torch.tensor([1, 2]), torch.tensor([0, labels - 1]))
    assert out.shape == (2, channels, side, side)


def test_presets():
    sizes = {}
    for name in ("paper", "small", "tiny"):
        with torch.device("meta"):
            sizes[name] = sum(parameter.numel() for parameter in UNet(preset(name, 4)).parameters())
    assert 90e6 < sizes["paper"] < 110e6
    assert 20e6 < sizes["small"] < 30e6
    assert sizes["tiny"] * 2 < 6e6  # bytes in half precision
    with pytest.raises(ConfigError, match="tiny, compact, small, paper"):
        preset("huge", 4)


@pytest.mark.parametrize(
    "wrong", [{"in_channels": 0}, {"null_label": 3}, {"heads": 3}, {"multipliers": ()}, {"channels": 6}]
)
def test_impossible_networks(wrong):
    with pytest.raises(ConfigError):
        UNetConfig(**{"in_channels": 1, **wrong})


def test_the_classifier_depends_on_noise_level_and_slice():
    torch.manual_seed(0)
    classifier = perturbed(NoisedClassifier(UNetConfig(2, 1, 0, channels=8, multipliers=(1, 2), attention=(2,))))
    x = torch.randn(3, 2, 16, 16)
    logits = classifier(x, T)
    assert logits.shape == (3, 2)
    assert not torch.allclose(logits, classifier(x, T.flip(0)))
    assert not torch.allclose(logits, classifier(-x, T))


def test_an_upsampled_image_is_convolved_without_computing_it():
    convolution = torch.nn.Conv2d(6, 5, 3, padding=1, bias=False)
    x = torch.randn(2, 6, 5, 8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = convolution(torch.nn.functional.interpolate(x, scale_factor=2))
        torch.testing.assert_close(UpsampledConvolution(convolution)(x), expected, rtol=1e-5, atol=1e-6)
