"""Is a classifier of noised slices any good as a guide? One that cannot tell slices apart pulls anywhere."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from anofpdm.cohorts.store import Cohort
from anofpdm.labels import HEALTHY, UNHEALTHY
from anofpdm.method.detection import auc
from anofpdm.network.predictor import Guide
from anofpdm.network.schedule import NoiseSchedule
from anofpdm.util.progress import Progress, silent

LEVELS = (0, 200, 500)  # the comparison methods guide from 500 or 200 down
MOST, BATCH = 1000, 50  # slices
GUIDED_FROM, WEAK = 200, 0.8


def rated_guide(
    guide: Guide,
    cohort: Cohort,
    device: torch.device,
    levels: Sequence[int] = LEVELS,
    split: str = "val",
    on_progress: Progress = silent,
) -> dict[int, float]:
    """By noise level, the AUC of its odds on slices it has not seen, against their labels; NaN without both classes."""
    rows = cohort.rows(split)
    rows = rows[np.isin(cohort.labels[rows], (HEALTHY, UNHEALTHY))]
    rows = rows[:: -(-len(rows) // MOST) or 1]
    unhealthy = cohort.labels[rows] == UNHEALTHY
    if unhealthy.all() or not unhealthy.any():
        return dict.fromkeys(levels, float("nan"))
    schedule, starts = NoiseSchedule.linear(), range(0, len(rows), BATCH)

    def odds(number: int, t: int) -> np.ndarray:
        generator = torch.Generator().manual_seed(t)
        found: list[Tensor] = []
        for place, start in enumerate(starts, start=1):
            x0 = torch.from_numpy(cohort.pixels(rows[start : start + BATCH]))
            x = schedule.add_noise(x0, t, torch.randn(x0.shape, generator=generator))
            found.append(guide.log_odds(x.to(device), t).cpu())
            on_progress("Rating the classifier", number * len(starts) + place, len(levels) * len(starts))
        return torch.cat(found).numpy()

    return {t: auc(odds(number, t), unhealthy) for number, t in enumerate(levels)}


def in_words(rating: dict[int, float]) -> str:
    """What to tell whoever has trained it; nothing where nothing could be measured."""
    known = {t: value for t, value in rating.items() if not np.isnan(value)}
    if not known:
        return ""
    said = ", ".join(f"{value:.2f} at noise level {t}" for t, value in known.items())
    words = f"on validation slices it tells healthy from unhealthy with an AUC of {said}"
    if min(value for t, value in known.items() if t <= GUIDED_FROM) < WEAK:
        words += "\nnote: as a guide it is weak; train it longer, or with another --learning-rate"
    return words
