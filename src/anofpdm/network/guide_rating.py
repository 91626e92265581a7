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

LEVELS = (0, 200, 500)  # the comparison methods guide from 500 or 200 down
MOST, BATCH = 1000, 50  # slices
WEAK = 0.8


def rated_guide(
    guide: Guide, cohort: Cohort, device: torch.device, levels: Sequence[int] = LEVELS, split: str = "val"
) -> dict[int, float]:
    """By noise level, the AUC of its odds on slices it has not seen, against their labels; NaN without both classes."""
    rows = cohort.rows(split)
    rows = rows[np.isin(cohort.labels[rows], (HEALTHY, UNHEALTHY))]
    rows = rows[:: max(1, len(rows) // MOST)]
    schedule = NoiseSchedule.linear()

    def odds(t: int) -> np.ndarray:
        generator = torch.Generator().manual_seed(t)
        found: list[Tensor] = []
        for start in range(0, len(rows), BATCH):
            x0 = torch.from_numpy(cohort.pixels(rows[start : start + BATCH]))
            x = schedule.add_noise(x0, t, torch.randn(x0.shape, generator=generator))
            found.append(guide.odds(x.to(device), t).cpu())
        return torch.cat(found).numpy() if found else np.zeros(0)

    unhealthy = cohort.labels[rows] == UNHEALTHY
    return {t: auc(odds(t), unhealthy) for t in levels}


def in_words(rating: dict[int, float]) -> str:
    """What to tell whoever has trained it; nothing where nothing could be measured."""
    known = {t: value for t, value in rating.items() if not np.isnan(value)}
    if not known:
        return ""
    said = ", ".join(f"{value:.2f} at noise level {t}" for t, value in known.items())
    words = f"on validation slices it tells healthy from unhealthy with an AUC of {said}"
    if max(known.values()) < WEAK:
        words += "\nnote: as a guide it is weak; train it longer, or with another --learning-rate"
    return words
