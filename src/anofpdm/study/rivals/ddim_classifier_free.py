"""What is healthy? (Sanchez et al. 2022): encoding without a label, decoding guided to healthy, by one network."""

from collections.abc import Sequence

from torch import Tensor

from anofpdm.labels import NULL
from anofpdm.method.guidance import PredictNoise, noise_pair
from anofpdm.study.rivals.ddim import decode, encode, with_label


def reconstruct(
    predict_noise: PredictNoise,
    x0: Tensor,
    *,
    levels: Sequence[int],  # ascending, up to the highest used
    strength: float,  # w: the healthy prediction has weight 1 + w
    noise: Tensor,
    clamp: bool = True,
) -> Tensor:
    def towards_healthy(x: Tensor, t: int) -> Tensor:
        healthy, unguided = noise_pair(predict_noise, x, t)
        return (1 + strength) * healthy - strength * unguided

    x = encode(with_label(predict_noise, NULL), x0, levels, noise, clamp=clamp)
    return decode(towards_healthy, x, levels, clamp=clamp)
