"""The result for a slice does not depend on the other slices of its batch."""

from collections.abc import Callable

import pytest
import torch

from anofpdm.labels import NULL
from anofpdm.method.forward_process import slice_noise
from anofpdm.study.rivals import anoddpm, cg_cdm, ddim_classifier, ddim_classifier_free
from anofpdm.study.rivals.ddim import decode, encode
from tests.method.worlds import Elementwise, some_slices, unlabelled

NETWORK, LEVELS = Elementwise(), range(0, 400, 40)
PREDICT = unlabelled(NETWORK)


def wave(x, t):
    return torch.sin(2 * x + t / 100)


def with_shares(x, t, labels):
    return NETWORK(x, t, labels if labels.ndim == 1 else torch.full((len(x),), NULL))


def there_and_back(x0, _seeds, **options):
    return decode(PREDICT, encode(PREDICT, x0, **options), options["levels"])


RIVALS: dict[str, Callable[..., torch.Tensor]] = {
    "ddim": there_and_back,
    "anoddpm-gaussian": lambda x0, seeds, **_: anoddpm.reconstruct(
        PREDICT, x0, level=8, draw=anoddpm.gaussian_draws(x0, seeds)
    ),
    "anoddpm-simplex": lambda x0, seeds, **_: anoddpm.reconstruct(
        PREDICT, x0, level=8, draw=anoddpm.simplex_draws(x0, seeds)
    ),
    "classifier": lambda x0, _, **options: ddim_classifier.reconstruct(PREDICT, wave, x0, scale=2.0, **options),
    "classifier-free": lambda x0, _, **options: ddim_classifier_free.reconstruct(NETWORK, x0, strength=1.1, **options),
    "cg-cdm": lambda x0, _, **options: torch.stack(cg_cdm.paths(with_shares, wave, x0, scale=9.0, **options), dim=1),
}


@pytest.mark.parametrize("name", list(RIVALS))
def test_result_does_not_depend_on_the_batch(name):
    x0, seeds = some_slices(4, 3).float(), [5, 6, 7, 8]

    def of(rows):
        chosen = [seeds[row] for row in rows]
        noise = slice_noise(x0[rows], chosen)()
        return RIVALS[name](x0[rows], chosen, levels=LEVELS, noise=noise)

    whole = of([0, 1, 2, 3])
    for rows in ([2], [3, 0]):
        assert torch.equal(of(rows), whole[rows])
