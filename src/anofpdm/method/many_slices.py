"""Evidence of more slices than fit into a batch."""

import math
from collections.abc import Callable, Sequence
from typing import TypedDict, Unpack

import numpy as np
import torch

from anofpdm.errors import MethodError
from anofpdm.method.evidence import Evidence, EvidenceSettings, LevelEvidence, forward_signals, joined
from anofpdm.method.guidance import PredictNoise
from anofpdm.network.schedule import NoiseSchedule

BATCH, BATCH_ON_CPU = 50, 8  # slices; a CPU gains nothing from more, and activations would fill gigabytes
Pixels = Callable[[np.ndarray], np.ndarray]  # rows -> slices [n, C, H, W]
Listener = Callable[[int, int], None]  # levels done, levels in all


def batch_for(device: torch.device) -> int:
    return BATCH_ON_CPU if device.type == "cpu" else BATCH


def on_cpu(evidence: Evidence) -> Evidence:
    return evidence.map(torch.Tensor.cpu)


class Gathering(TypedDict, total=False):
    """How, as `signals_of` has it."""

    strengths: Sequence[float]
    device: torch.device
    batch: int
    keep: Callable[[Evidence], Evidence]
    on_progress: Listener
    on_level: Callable[[LevelEvidence], None] | None


def evidence_of(
    predict_noise: PredictNoise,
    pixels: Pixels,
    seeds: Sequence[int],
    *,
    settings: EvidenceSettings,
    **how: Unpack[Gathering],
) -> Evidence:
    """As `signals_of`, of the settings' own signal."""
    return signals_of(predict_noise, pixels, seeds, (settings.signal,), settings=settings, **how)[settings.signal]


def signals_of(
    predict_noise: PredictNoise,
    pixels: Pixels,
    seeds: Sequence[int],
    signals: Sequence[str],
    *,
    settings: EvidenceSettings,
    strengths: Sequence[float],
    device: torch.device,
    batch: int = BATCH,
    keep: Callable[[Evidence], Evidence] = on_cpu,  # what of each batch
    on_progress: Listener = lambda _done, _total: None,
    on_level: Callable[[LevelEvidence], None] | None = None,
) -> dict[str, Evidence]:
    """By signal. As many slices as there are seeds, in batches; in smaller ones once memory has run out.

    Then `on_level` hears slices whose last level it has not heard from their first level again.
    """
    count, levels = len(seeds), len(settings.levels)
    total = math.ceil(count / batch) * levels
    last_was_heard = False

    def climb(rows: np.ndarray) -> dict[str, Evidence]:
        def listen(now: LevelEvidence) -> None:
            nonlocal last_was_heard
            climbed = now.level.number + 1
            at_end = climbed == levels and rows[-1] + 1 == count
            on_progress(total if at_end else int(rows[0] * levels + len(rows) * climbed) // batch, total)
            if on_level is not None:
                last_was_heard = climbed == levels
                on_level(now)

        found = forward_signals(
            predict_noise,
            torch.from_numpy(pixels(rows)).to(device, torch.float32),
            signals,
            settings=settings,
            strengths=strengths,
            schedule=NoiseSchedule.linear(),
            seeds=[seeds[int(row)] for row in rows],
            on_level=listen,
        )
        return {signal: keep(evidence) for signal, evidence in found.items()}

    parts: list[dict[str, Evidence]] = []
    start = 0
    while start < count:
        rows, last_was_heard = np.arange(start, min(start + batch, count)), False
        part = _if_it_fits(climb, rows)
        if part is not None:
            parts.append(part)
            start += len(rows)
        elif len(rows) == 1 or last_was_heard:
            raise MethodError(f"not enough memory for {len(rows)} slices at a time; free some, or lower --batch")
        else:
            batch = (len(rows) + 1) // 2
            total = math.ceil(count / batch) * levels
    return {signal: joined([part[signal] for part in parts]) for signal in signals}


def _if_it_fits(climb: Callable[[np.ndarray], dict[str, Evidence]], rows: np.ndarray) -> dict[str, Evidence] | None:
    """None where memory runs out; on the way out, the failed attempt lets go of what it held."""
    try:
        return climb(rows)
    except torch.OutOfMemoryError:
        pass
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return None


def slice_seeds(indices: Sequence[int] | np.ndarray, seed: int = 0) -> list[int]:
    """A slice's seed follows from its place in its scan: the same scan gives the same result under any name."""
    return [(seed * 1_000_003 + int(index)) % 2**63 for index in indices]
