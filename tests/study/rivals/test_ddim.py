import numpy as np
import pytest
import torch

from anofpdm.method.forward_process import slice_noise
from anofpdm.study.rivals.ddim import decode, encode, levels_up_to
from tests.method.worlds import Elementwise, alpha_bars, some_slices, unlabelled

BARS = alpha_bars()


@pytest.mark.parametrize("clamp", [True, False])
@pytest.mark.parametrize("levels", [[0, 30, 100, 450], [7], [5, 6]])
def test_equals_the_explicit_formula(levels, clamp):
    predict, x0, noise = unlabelled(Elementwise()), some_slices(), slice_noise(some_slices(), [3, 4])()
    limit = (lambda v: v.clamp(-1, 1)) if clamp else (lambda v: v)

    def move(x, t, to):
        clean = limit((x - np.sqrt(1 - BARS[t]) * predict(x, t)) / np.sqrt(BARS[t]))
        if to is None:
            return clean
        seen = (x - np.sqrt(BARS[t]) * clean) / np.sqrt(1 - BARS[t])
        return np.sqrt(BARS[to]) * clean + np.sqrt(1 - BARS[to]) * seen

    x = np.sqrt(BARS[levels[0]]) * x0 + np.sqrt(1 - BARS[levels[0]]) * noise
    for number in range(len(levels) - 1):
        x = move(x, levels[number], levels[number + 1])
    encoded = encode(predict, x0, levels, noise=noise, clamp=clamp)
    torch.testing.assert_close(encoded, x)
    for number in range(len(levels) - 1, 0, -1):
        x = move(x, levels[number], levels[number - 1])
    decoded = decode(predict, encoded, levels, clamp=clamp)
    torch.testing.assert_close(decoded, move(x, levels[0], None))


def test_levels_reach_from_0_to_the_top():
    assert levels_up_to(400, 5) == [0, 100, 200, 300, 400]
    assert levels_up_to(3, 10) == [0, 1, 2, 3]
    assert levels_up_to(999, 1000) == list(range(1000))
    assert levels_up_to(400, 10)[0::9] == [0, 400]
    assert len(levels_up_to(400, 10)) == 10
