import pytest
import torch

from anofpdm.labels import HEALTHY, NULL
from anofpdm.method.forward_process import slice_noise
from anofpdm.study.rivals.ddim import decode, encode, levels_up_to
from anofpdm.study.rivals.ddim_classifier_free import reconstruct
from tests.method.worlds import Elementwise, some_slices

WORLD = Elementwise()


def labelled(label):
    return lambda x, t: WORLD(x, t, torch.full((len(x),), label))


@pytest.mark.parametrize("clamp", [True, False])
@pytest.mark.parametrize("strength", [0.0, -1.0, 1.1])
def test_decoding_is_guided_to_healthy(clamp, strength):
    """At strength 0 with the label healthy alone, at -1 without a label."""
    x0, levels = some_slices(), levels_up_to(450, 30)
    noise = slice_noise(x0, [1, 2])()
    healthy, unguided = labelled(HEALTHY), labelled(NULL)

    def formula(x, t):
        return healthy(x, t) + strength * (healthy(x, t) - unguided(x, t))

    x = encode(unguided, x0, levels, noise, clamp=clamp)
    expected = decode({0.0: healthy, -1.0: unguided}.get(strength, formula), x, levels, clamp=clamp)
    got = reconstruct(WORLD, x0, levels=levels, strength=strength, noise=noise, clamp=clamp)
    torch.testing.assert_close(got, expected)
