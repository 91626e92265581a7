"""The guide of the classifier-guided methods: a trained classifier of noised slices, and how accurate it is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from anofpdm.choices import Noise, Task
from anofpdm.cohorts.store import Cohort
from anofpdm.labels import HEALTHY, UNHEALTHY
from anofpdm.method.detection import auc
from anofpdm.network.fast.cpu import fast_gradients
from anofpdm.network.predictor import load_network
from anofpdm.study.rivals.ddim import SCHEDULE, HealthyGradient
from anofpdm.study.rivals.noised_classifier import NoisedClassifier
from anofpdm.util.progress import Progress, silent

LEVELS = (0, 200, 500)  # comparison methods use it from level 500 or 200 down
MOST, BATCH = 1000, 50  # slices
GUIDED_FROM, WEAK_AUC = 200, 0.8


@dataclass(frozen=True)
class Guide:
    gradient: HealthyGradient  # of log p(healthy | x_t) with respect to x_t
    log_odds: Callable[[Tensor, int], Tensor]  # x [N, C, H, W], t -> [N], of unhealthy
    modalities: tuple[str, ...]
    size: int
    sha256: str


def load_guide(folder: Path, device: torch.device) -> Guide:
    network, config, digest = load_network(folder, NoisedClassifier, Task.CLASSIFIER, Noise.GAUSSIAN)
    classifier = network.to(device).eval()

    def logits(x: Tensor, t: int) -> Tensor:
        return classifier(x, torch.full((len(x),), t, device=x.device))

    @torch.enable_grad()
    def gradient(x: Tensor, t: int) -> Tensor:
        x = x.detach().requires_grad_()
        log_healthy = logits(x, t).log_softmax(dim=1)[:, HEALTHY].sum()
        with fast_gradients(x.device):
            return torch.autograd.grad(log_healthy, x)[0]

    @torch.no_grad()
    def log_odds(x: Tensor, t: int) -> Tensor:
        healthy, unhealthy = logits(x, t)[:, [HEALTHY, UNHEALTHY]].T
        return unhealthy - healthy

    return Guide(gradient, log_odds, config.modalities, config.size, digest)


def rate_classifier(
    guide: Guide,
    cohort: Cohort,
    device: torch.device,
    levels: Sequence[int] = LEVELS,
    split: str = "val",
    on_progress: Progress = silent,
) -> dict[int, float]:
    """AUC of its log odds against image-level labels by noise level, on held-out slices; NaN without both classes."""
    rows = cohort.rows(split)
    rows = rows[np.isin(cohort.labels[rows], (HEALTHY, UNHEALTHY))]
    rows = rows[:: -(-len(rows) // MOST) or 1]
    unhealthy = cohort.labels[rows] == UNHEALTHY
    if unhealthy.all() or not unhealthy.any():
        return dict.fromkeys(levels, float("nan"))
    starts = range(0, len(rows), BATCH)

    def log_odds(number: int, t: int) -> np.ndarray:
        generator = torch.Generator().manual_seed(t)
        parts: list[Tensor] = []
        for place, start in enumerate(starts, start=1):
            x0 = torch.from_numpy(cohort.pixels(rows[start : start + BATCH]))
            x = SCHEDULE.add_noise(x0, t, torch.randn(x0.shape, generator=generator))
            parts.append(guide.log_odds(x.to(device), t).cpu())
            on_progress("Rating the classifier", number * len(starts) + place, len(levels) * len(starts))
        return torch.cat(parts).numpy()

    return {t: auc(log_odds(number, t), unhealthy) for number, t in enumerate(levels)}


def describe_rating(rating: dict[int, float]) -> str:
    """One or two lines for the terminal; empty if nothing could be measured."""
    defined = {t: value for t, value in rating.items() if not np.isnan(value)}
    if not defined:
        return ""
    values = ", ".join(f"{value:.2f} at noise level {t}" for t, value in defined.items())
    text = f"AUC of the classifier on validation slices: {values}"
    if min(value for t, value in defined.items() if t <= GUIDED_FROM) < WEAK_AUC:
        text += "\nnote: too weak for guidance; train it longer, or with another --learning-rate"
    return text
