"""Diffusion models for medical anomaly detection (Wolleb et al. 2022): DDIM encoding, then classifier-guided decoding.

The diffusion model is trained on all slices; the gradient of a classifier of noised slices guides decoding to healthy.
"""

from collections.abc import Sequence

from torch import Tensor

from anofpdm.study.rivals.ddim import SCHEDULE, HealthyGradient, Predict, decode, encode, guide


def reconstruct(
    predict: Predict,
    healthy_gradient: HealthyGradient,
    x0: Tensor,
    *,
    levels: Sequence[int],  # ascending, up to the highest used
    scale: float,
    noise: Tensor,
    invert: bool = True,  # as Wolleb et al.; otherwise random noise, as run by the AnoFPDM authors
    clamp: bool = True,
) -> Tensor:
    x = encode(predict, x0, levels, noise, clamp=clamp) if invert else SCHEDULE.add_noise(x0, levels[-1], noise)
    return decode(guide(predict, healthy_gradient, scale), x, levels, clamp=clamp)
