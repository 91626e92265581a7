"""Accuracy of a classifier of noised slices, on which classifier guidance depends."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from anofpdm.cohorts.store import Cohort
from anofpdm.labels import HEALTHY, UNHEALTHY
from anofpdm.method.detection import auc
from anofpdm.network.predictor import Guide
from anofpdm.study.rivals.ddim import SCHEDULE
from anofpdm.util.progress import Progress, silent

LEVELS = (0, 200, 500)  # comparison methods use it from level 500 or 200 down
MOST, BATCH = 1000, 50  # slices
GUIDED_FROM, WEAK_AUC = 200, 0.8


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
