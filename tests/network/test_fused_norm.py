import pytest
import torch
import torch.nn.functional as F

from anofpdm.network.unet import modulated, norm_silu

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="our GPU kernels need a GPU")


@pytest.mark.parametrize("with_scale", [False, True])
@pytest.mark.parametrize(("channels", "side", "groups"), [(64, 128, 16), (192, 16, 16), (1024, 8, 32), (24, 9, 2)])
def test_the_kernels_equal_the_plain_formula_and_its_gradients(channels, side, groups, with_scale):
    torch.manual_seed(0)
    x = (2 * torch.randn(3, channels, side, side, device="cuda") + 1).requires_grad_()
    weight, bias = (torch.randn(channels, device="cuda", requires_grad=True) for _ in range(2))
    scale, shift = (
        torch.randn(3, channels, device="cuda", requires_grad=True) if with_scale else None for _ in range(2)
    )
    leaves = [leaf for leaf in (x, weight, bias, scale, shift) if leaf is not None]
    plain = F.silu(modulated(F.group_norm(x, groups, weight, bias), scale, shift))
    fused = norm_silu(x, weight, bias, groups=groups, scale=scale, shift=shift)
    torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-4)
    upstream = torch.randn_like(plain)
    for one, other in zip(
        torch.autograd.grad(fused, leaves, upstream), torch.autograd.grad(plain, leaves, upstream), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))
