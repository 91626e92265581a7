import itertools

import pytest
import torch

from anofpdm.errors import ConfigError
from anofpdm.labels import HEALTHY, NULL, UNHEALTHY
from anofpdm.network.blocks import Attention, ScaledNorm, embed_labels
from anofpdm.network.config import UNetConfig, preset
from anofpdm.network.unet import Embedding, UNet

SMALL = UNetConfig(2, channels=8, multipliers=(1, 2, 2), blocks=1, attention=(2, 4))
T = torch.tensor([0, 400, 999])


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


def labelled(label: int) -> torch.Tensor:
    return torch.full((3,), label)


def weighted(healthy: float, unhealthy: float, null: float) -> torch.Tensor:
    return torch.tensor([[healthy, unhealthy, null]]).repeat(3, 1)


@torch.no_grad()
def test_weighted_labels_mix_the_embeddings(network, x):
    for label in (HEALTHY, UNHEALTHY, NULL):
        shares = weighted(*(float(label == other) for other in (HEALTHY, UNHEALTHY, NULL)))
        torch.testing.assert_close(network(x, T, shares), network(x, T, labelled(label)), rtol=1e-5, atol=1e-6)
    table = network.embedding.label
    healthy, unhealthy, _ = table.weight
    torch.testing.assert_close(embed_labels(table, weighted(0.3, 0.7, 0))[0], 0.3 * healthy + 0.7 * unhealthy)


@pytest.mark.parametrize("disabled", [(), Embedding, Attention])
@torch.no_grad()
def test_labels_act_in_embedding_and_attention(network, x, disabled):
    """Either alone still separates the labels, and a mixture from both."""
    for module in network.modules():
        if isinstance(module, disabled):
            module.label.weight.data.zero_()
    labels = (weighted(0.4, 0.6, 0), *map(labelled, (HEALTHY, UNHEALTHY, NULL)))
    outputs = [network(x, T, label) for label in labels]
    assert not any(torch.allclose(first, second) for first, second in itertools.combinations(outputs, 2))
    assert not torch.allclose(outputs[1], network(x, T + torch.tensor([5, -5, -5]), labelled(HEALTHY)))


@torch.no_grad()
def test_slices_are_independent(network, x):
    labels = torch.tensor([HEALTHY, NULL, UNHEALTHY])
    alone = torch.cat([network(x[[i]], T[[i]], labels[[i]]) for i in range(3)])
    torch.testing.assert_close(network(x, T, labels), alone, rtol=1e-4, atol=1e-5)


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


def test_dropout_only_while_training():
    norm, x = ScaledNorm(8, dropout=0.5), torch.randn(2, 8, 16, 16)
    assert (norm.train()(x) == 0).float().mean() > 0.3
    assert (norm.eval()(x) == 0).float().mean() < 0.01


@pytest.mark.parametrize(("name", "low", "high"), [("paper", 90e6, 110e6), ("small", 20e6, 30e6), ("tiny", 1e6, 3e6)])
def test_presets(name, low, high):
    with torch.device("meta"):
        assert low < sum(parameter.numel() for parameter in UNet(preset(name, 4)).parameters()) < high


def test_an_unknown_preset():
    with pytest.raises(ConfigError, match="tiny, compact, small, paper"):
        preset("huge", 4)
