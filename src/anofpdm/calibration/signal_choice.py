"""Which maps suit a model: errors, or agreement with some share of the gradient? Chosen with image-level labels.

Masks are made for slices labelled unhealthy, with each share. The maps whose values inside their masks stand out most
from those of the rest of the brain are chosen: maps that respond to edges everywhere stand out less.
"""

from dataclasses import replace

import numpy as np
import torch

from anofpdm.choices import Signal
from anofpdm.method.calibration import Calibration, refit_maps, to_numpy
from anofpdm.method.context import SlicePositions
from anofpdm.method.decision import OURS, decide
from anofpdm.method.evidence import Evidence, EvidenceSettings
from anofpdm.util.workers import map_in_threads

SHARES = (0.0, 0.2, 1 / 3, 0.5, 2 / 3)  # of the gradient; 0: maps of errors
MOST = 400  # slices
TINY = 1e-12


def choose_maps(
    calibration: Calibration, evidence: Evidence, unhealthy: np.ndarray, inside: np.ndarray
) -> EvidenceSettings:
    """The calibration's settings, with the signal whose maps have the highest contrast.

    Evidence of labelled slices, with the components of agreement; and whether a pixel is in the brain, [n, H, W].
    """
    step = -(-len(unhealthy) // MOST)
    rows = np.concatenate([np.flatnonzero(unhealthy == kind)[::step] for kind in (False, True)])  # every n-th of both
    labelled = evidence[torch.from_numpy(rows)], unhealthy[rows], inside[rows]
    contrasts = list(map_in_threads(lambda share: contrast(calibration, *labelled, share), SHARES))
    return with_share(calibration.settings, SHARES[int(np.argmax(contrasts))])


def with_share(settings: EvidenceSettings, share: float) -> EvidenceSettings:
    return replace(settings, signal=Signal.AGREEMENT, gradient_share=share) if share else settings


def contrast(
    calibration: Calibration, evidence: Evidence, unhealthy: np.ndarray, inside: np.ndarray, share: float
) -> float:
    """Mean logarithm of the ratio of a map's mean inside its mask and in the rest of the brain."""
    evidence = evidence.with_maps_of(with_share(calibration.settings, share))
    alone = SlicePositions.unrelated(len(evidence))
    without_context = replace(calibration, fitted=(calibration.with_context(0.0),))
    refitted = refit_maps(without_context, evidence, unhealthy, alone)
    masks = decide(evidence, refitted, replace(OURS, context_mm=0.0), alone).drawn
    return map_contrast(to_numpy(evidence.maps[:, 0])[unhealthy], masks[unhealthy], inside[unhealthy])


def map_contrast(maps: np.ndarray, masks: np.ndarray, inside: np.ndarray) -> float:
    """All [n, H, W]. Slices whose mask is empty, or the whole brain, do not count."""
    ratios = []
    for values, mask, brain in zip(maps, masks, inside, strict=True):
        lesion, rest = mask & brain, brain & ~mask
        if lesion.any() and rest.any():
            ratios.append(np.log(max(values[lesion].mean(), TINY) / max(values[rest].mean(), TINY)))
    return float(np.mean(ratios)) if ratios else 0.0
