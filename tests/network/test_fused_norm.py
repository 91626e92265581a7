import pytest
import torch
import torch.nn.functional as F
from torch import nn

pytestmark = pytest.mark.gpu


def plain_norm(x, norm, scale=None, shift=None):
    normal = F.group_norm(x, norm.num_groups, norm.weight, norm.bias)
    return normal if scale is None else normal * (1 + scale[:, :, None, None]) + shift[:, :, None, None]


def random_norm(groups, channels):
    norm = nn.GroupNorm(groups, channels, device="cuda")
    nn.init.normal_(norm.weight)
    nn.init.normal_(norm.bias)
    return norm


@pytest.mark.parametrize("activate", [False, True])
@pytest.mark.parametrize("with_scale", [False, True])
@pytest.mark.parametrize(("channels", "side", "groups"), [(64, 128, 16), (192, 16, 16), (1024, 8, 32), (24, 9, 2)])
def test_the_kernels_equal_the_plain_formula_and_its_gradients(channels, side, groups, with_scale, activate):
    from anofpdm.network.fast.fused_norm import norm_silu

    torch.manual_seed(0)
    x = (2 * torch.randn(3, channels, side, side, device="cuda") + 1).requires_grad_()
    norm = random_norm(groups, channels)
    # Halves of one tensor, as the network has them: they do not lie one after another in memory.
    modulation = torch.randn(3, 2 * channels, device="cuda", requires_grad=True)
    scale, shift = modulation.chunk(2, dim=1) if with_scale else (None, None)
    leaves = [x, norm.weight, norm.bias, *([modulation] if with_scale else [])]
    plain = plain_norm(x, norm, scale, shift)
    plain = F.silu(plain) if activate else plain
    fused = norm_silu(x, norm, scale, shift, activate=activate)
    torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-4)
    upstream = torch.randn_like(plain)
    ours, theirs = (torch.autograd.grad(out, leaves, upstream, retain_graph=True) for out in (fused, plain))
    for gradient, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-3 * float(expected.abs().max()))


def test_in_half_precision_the_kernels_are_as_close_as_rounding_allows():
    from anofpdm.network.fast.fused_norm import norm_silu

    torch.manual_seed(0)
    x = torch.randn(4, 128, 32, 32, device="cuda", dtype=torch.bfloat16).contiguous(memory_format=torch.channels_last)
    norm = random_norm(32, 128)
    scale, shift = torch.randn(4, 256, device="cuda", dtype=torch.bfloat16).chunk(2, dim=1)
    exact = F.silu(plain_norm(x.float(), norm, scale.float(), shift.float()))
    fused = norm_silu(x, norm, scale, shift)
    assert fused.dtype == torch.bfloat16
    assert fused.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(fused.float(), exact, rtol=2**-8, atol=1e-3)
