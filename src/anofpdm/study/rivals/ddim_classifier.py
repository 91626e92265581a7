"""Diffusion models for medical anomaly detection (Wolleb et al. 2022): DDIM encoding, then classifier-guided decoding.

The diffusion model is trained on all slices; the gradient of a classifier of noised slices guides decoding to healthy.
"""

from collections.abc import Sequence

from torch import Tensor

from anofpdm.network.predictor import HealthyGradient
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.study.rivals.ddim import Predict, decode, encode


def reconstruct(
    predict: Predict,
    healthy_gradient: HealthyGradient,
    x0: Tensor,
    *,
    levels: Sequence[int],  # ascending, up to the highest used
    scale: float,
    noise: Tensor,
    schedule: NoiseSchedule,
    invert: bool = True,  # as Wolleb et al.; otherwise random noise, as run by the AnoFPDM authors
    clamp: bool = True,
) -> Tensor:
    def guided(x: Tensor, t: int) -> Tensor:
        """eps - sqrt(1 - a_t) s grad log p(healthy | x_t)."""
        _, spread = schedule.signal_and_noise(t, x)
        return predict(x, t) - spread * scale * healthy_gradient(x, t)

    if invert:
        x = encode(predict, x0, levels, noise=noise, schedule=schedule, clamp=clamp)
    else:
        x = schedule.add_noise(x0, levels[-1], noise)
    return decode(guided, x, levels, schedule=schedule, clamp=clamp)
