"""Evidence of more slices than fit into a batch."""

from collections.abc import Callable, Sequence
from dataclasses import asdict

import numpy as np
import torch

from anofpdm.errors import MethodError
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
    """As many slices as there are seeds, in batches; in smaller ones where memory runs out.

    A listener then hears the same slices from the first level again, though never after their last level.
    """
    count, levels = len(seeds), len(settings.levels)
    total = -(-count // batch) * levels
    heard_all = False

    def climbed(rows: np.ndarray) -> Evidence:
        def listen(now: LevelEvidence) -> None:
            nonlocal heard_all
            done = rows[0] / batch * levels + len(rows) / batch * (now.level.number + 1)
            on_progress(total if rows[-1] + 1 == count and now.level.number + 1 == levels else int(done), total)
            if on_level is not None:
                heard_all = now.level.number + 1 == levels
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
        return keep(found)

    parts: list[Evidence] = []
    start, portion = 0, batch
    while start < count:
        rows, heard_all = np.arange(start, min(start + portion, count)), False
        try:
            parts.append(climbed(rows))
            start += len(rows)
            continue
        except torch.OutOfMemoryError:
            if len(rows) == 1 or heard_all:
                raise MethodError(f"not enough memory for {len(rows)} slices; free some, or a smaller --batch") from None
        portion = (len(rows) + 1) // 2  # out here, where the failed attempt no longer holds its memory
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return joined(parts)


def slice_seeds(indices: Sequence[int] | np.ndarray, seed: int = 0) -> list[int]:
    """A slice's seed follows from its place in its scan: the same scan gives the same result under any name."""
    return [(seed * 1_000_003 + int(index)) % 2**63 for index in indices]
