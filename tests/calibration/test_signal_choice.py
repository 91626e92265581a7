"""The choice of maps, on evidence whose best maps are known."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from anofpdm.calibration.signal_choice import choose_maps, contrast
from anofpdm.choices import Signal
from anofpdm.method import calibrate
from anofpdm.method.evidence import SignalMaps
from tests.method.worlds import LEVELS, made_up

SIDE = 32
LESION = np.zeros((SIDE, SIDE), dtype=bool)
LESION[8:16] = True  # from side to side: the median filter would round corners
INSIDE = np.zeros((SIDE, SIDE), dtype=bool)
INSIDE[4:28, 4:28] = True


def labelled(error, gradient):
    """Maps with these values in the lesions of unhealthy slices, and about 1 elsewhere in the brain."""
    evidence, labels, patients = made_up(n=24, strengths=(2.0,))
    rng, maps = np.random.default_rng(1), {}
    for signal, value in ((Signal.ERROR, error), (Signal.GRADIENT_ABOVE, gradient)):
        image = np.where(INSIDE, rng.lognormal(0, 0.1, (len(labels), 1, SIDE, SIDE)), 1e-3)
        image = np.where((labels[:, None, None] == 1)[:, None] & LESION, value, image)
        maps[signal] = SignalMaps(torch.tensor(image), torch.zeros(len(labels), 1, 0, 0))
    evidence = replace(evidence, maps_by_signal=maps, end_step=torch.full((len(labels), 1), LEVELS[-1]))
    calibration = calibrate(evidence, labels, patients)
    return calibration, evidence, labels == 1, np.repeat(INSIDE[None], len(labels), axis=0)


@pytest.mark.parametrize(
    ("error", "gradient", "signal", "share"),
    [(3.0, 30.0, Signal.AGREEMENT, 2 / 3), (30.0, 3.0, Signal.ERROR, 1 / 3)],
)
def test_maps_in_which_lesions_stand_out_are_chosen(error, gradient, signal, share):
    calibration, *maps = labelled(error, gradient)
    chosen = choose_maps(calibration, *maps)
    assert (chosen.signal, chosen.gradient_share) == (signal, share)
    assert replace(chosen, signal=Signal.ERROR, gradient_share=1 / 3) == calibration.settings


@pytest.mark.parametrize("share", [0.0, 0.5, 2 / 3])
def test_contrast_is_the_logarithm_of_the_ratio(share):
    calibration, evidence, unhealthy, inside = labelled(20.0, 100.0)
    expected = (1 - share) * np.log(20.0) + share * np.log(100.0)  # against about 1
    assert contrast(calibration, evidence, unhealthy, inside, share) == pytest.approx(expected, abs=0.05)
