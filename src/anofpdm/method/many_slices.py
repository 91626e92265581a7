"""Evidence of more slices than fit into a batch."""

from collections.abc import Callable, Sequence
from dataclasses import asdict

import numpy as np
import torch

from anofpdm.method.evidence import Evidence, LevelEvidence, Settings, forward_evidence, joined
from anofpdm.method.guidance import PredictNoise
from anofpdm.network.schedule import NoiseSchedule

BATCH = 50
Pixels = Callable[[np.ndarray], np.ndarray]  # rows -> slices [n, C, H, W]
Listener = Callable[[int, int], None]  # levels done, levels in all


def on_cpu(evidence: Evidence) -> Evidence:
    return evidence.map(torch.Tensor.cpu)


def evidence_of(
    predict_noise: PredictNoise,
    pixels: Pixels,
    seeds: Sequence[int],
    *,
    settings: Settings,
    strengths: Sequence[float],
    device: torch.device,
    batch: int = BATCH,
    keep: Callable[[Evidence], Evidence] = on_cpu,  # what of each batch
    on_progress: Listener = lambda _done, _total: None,
    on_level: Callable[[LevelEvidence], None] | None = None,
) -> Evidence:
    """As many slices as there are seeds, in batches."""
    count, levels = len(seeds), len(settings.levels)
    starts = range(0, count, batch)
    parts = []
    for number, start in enumerate(starts):
        rows = np.arange(start, min(start + batch, count))

        def listen(now: LevelEvidence, before: int = number * levels) -> None:
            on_progress(before + now.level.number + 1, len(starts) * levels)
            if on_level is not None:
                on_level(now)

        found = forward_evidence(
            predict_noise,
            torch.from_numpy(pixels(rows)).to(device, torch.float32),
            strengths=strengths,
            schedule=NoiseSchedule.linear(),
            seeds=[seeds[int(row)] for row in rows],
            on_level=listen,
            **asdict(settings),
        )
        parts.append(keep(found))
    return joined(parts)


def slice_seeds(indices: Sequence[int] | np.ndarray, seed: int = 0) -> list[int]:
    """A slice's seed follows from its place in its scan: the same scan gives the same result under any name."""
    return [(seed * 1_000_003 + int(index)) % 2**63 for index in indices]
