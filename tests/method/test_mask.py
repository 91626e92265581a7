from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from anofpdm.choices import Signal
from anofpdm.errors import CalibrationError, ConfigError, MethodError
from anofpdm.method import calibrate
from anofpdm.method.context import SlicePositions
from anofpdm.method.decision import DecisionSettings, decide
from anofpdm.method.evidence import SignalMaps
from anofpdm.method.mask import (
    MaskSettings,
    drop_small_components,
    mask,
    mask_quantiles,
    median_filtered,
    thresholds,
)
from tests.method.worlds import literal_mask, made_up


@pytest.fixture(scope="module")
def made():
    return made_up(lift=4.0)


@pytest.fixture(scope="module")
def calibration(made):
    return calibrate(*made)


def blobs():
    noise = np.random.default_rng(0).random((4, 48, 48))
    return np.stack([ndimage.gaussian_filter(image, 3) ** 4 for image in noise])


@pytest.mark.parametrize("share", [0.0, 0.004, 0.3, 0.53, 0.995, 1.0, 2.0])
def test_the_papers_mask_pixel_by_pixel(share):
    maps = blobs()
    cuts = thresholds(maps, mask_quantiles(np.full(4, share), 1.0), None, MaskSettings())
    masks = mask(median_filtered(maps), cuts)
    assert masks.any()
    np.testing.assert_array_equal(masks, [literal_mask(image, share, 1.0) for image in maps])


@settings(max_examples=30)
@given(st.integers(1, 3), st.integers(1, 20), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_the_median_filter_is_scipys(count, height, width, seed):
    maps = np.random.default_rng(seed).integers(0, 9, (count, height, width)).astype(np.float32)  # with ties
    expected = [ndimage.median_filter(image, size=5, mode="reflect") for image in maps]
    np.testing.assert_array_equal(median_filtered(maps), expected)


def test_quantiles_fall_from_98_to_90_percent_in_a_hundred_steps():
    quantiles = mask_quantiles(np.arange(101) / 100, 1.0)
    np.testing.assert_allclose(quantiles, np.linspace(0.90, 0.98, 101)[::-1], atol=1e-12)
    np.testing.assert_allclose(mask_quantiles(np.array([0.53, -1.0, 7.0]), 1.0), [0.9376, 0.98, 0.90])


def test_thresholds_from_healthy_slices_and_from_both():
    maps, quantiles = blobs(), np.full(4, 0.95)
    paper, healthy, combined = (
        thresholds(maps, quantiles, 0.2, MaskSettings(kind)) for kind in ("quantile", "healthy", "both")
    )
    assert (healthy == 0.2).all()
    np.testing.assert_allclose(combined**2, paper * 0.2)


@settings(max_examples=40)
@given(st.integers(0, 2**32 - 1), st.integers(0, 30), st.floats(0.05, 0.6))
def test_no_component_of_the_limit_or_fewer_is_left_and_no_larger_one_is_lost(seed, limit, share):
    image = np.random.default_rng(seed).random((24, 24)) < share
    (kept,) = drop_small_components(image[None], limit)
    assert not (kept & ~image).any()
    components, count = ndimage.label(image, np.ones((3, 3)))
    for number in range(1, count + 1):
        part = components == number
        assert kept[part].all() if part.sum() > limit else not kept[part].any()


def test_the_smallest_component_scales_with_the_image():
    smooth = np.zeros((1, 256, 256))
    smooth[0, :16, :10] = 1  # 160 pixels: 40 at 128 x 128
    smooth[0, 100:107, 100:123] = 1  # 161
    pixels = mask(smooth, np.array([0.5]))[0]
    assert not pixels[:20, :20].any()
    assert pixels[100:107, 100:123].all()
    assert mask(smooth, np.array([0.5]), smallest=0)[0, :16, :10].all()


def test_undetected_slices_have_empty_masks_and_the_detector_can_be_chosen(made, calibration):
    evidence, labels, _ = made
    by_detector = {
        detector: decide(evidence, calibration, DecisionSettings(detector, mask=MaskSettings(smallest=0)))
        for detector in ("cosine", "curve", "none")
    }
    for detector, decisions in by_detector.items():
        assert (0 < decisions.detected.sum() < 40) == (detector != "none")
        np.testing.assert_array_equal(decisions.masks, decisions.drawn & decisions.detected[:, None, None])
        assert decisions.drawn[~decisions.detected].any() == (detector != "none")  # there was something to empty
    cosine = by_detector["cosine"]
    np.testing.assert_array_equal(cosine.detected, cosine.evidence.similarity <= calibration.cut)
    (accuracy,) = (rated.accuracy for rated in calibration.candidates if rated.strength == calibration.strength)
    assert (cosine.detected == (labels == 1)).mean() == pytest.approx(accuracy)


def test_smoothing_needs_positions_and_a_calibration_with_them(made, calibration):
    smoothing = DecisionSettings(context_mm=2.0)
    with pytest.raises(MethodError, match="positions of the slices"):
        decide(made[0], calibration, smoothing)
    positions = SlicePositions(made[2], np.tile([0.0, 2.0, 4.0, 6.0], 10))
    with pytest.raises(CalibrationError, match="not calibrated for smoothing across slices of 2 mm"):
        decide(made[0], calibration, smoothing, positions)
    in_context = calibrate(*made, positions=positions)
    near, far = (decide(made[0], in_context, options, positions) for options in (smoothing, DecisionSettings()))
    assert near.maps.std() < far.maps.std()
    assert len(calibrate(*made, positions=positions, context_mm=0.0).fitted) == 1


def test_masks_may_be_of_the_last_maps_alone(made, calibration):
    evidence = replace(made[0], maps_by_signal={Signal.ERROR: SignalMaps(made[0].last_maps, made[0].maps)})
    last = decide(evidence, calibration, DecisionSettings(last_map=True))
    np.testing.assert_array_equal(last.masks, decide(made[0], calibration, DecisionSettings()).masks)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: MaskSettings(smallest=-1), "must not be negative"),
        (lambda: MaskSettings(peak_share=1.0), "must lie in"),
        (lambda: DecisionSettings(last_map=True, mask=MaskSettings("healthy")), "aggregated"),
    ],
)
def test_invalid_settings_are_refused(make, match):
    with pytest.raises((ConfigError, MethodError), match=match):
        make()


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_a_mask_reaches_a_share_of_its_slices_peak(made, calibration, share):
    def decisions(peak_share):
        return decide(made[0], calibration, DecisionSettings(mask=MaskSettings("healthy", 0, peak_share)))

    plain, above = decisions(0.0), decisions(share)
    cuts = np.maximum(calibration.with_context(0).healthy_threshold, share * plain.maps.max(axis=(1, 2)))
    np.testing.assert_allclose(above.threshold, cuts)
    np.testing.assert_array_equal(above.drawn, plain.maps >= cuts[:, None, None])


@pytest.mark.parametrize("threshold", ["healthy", "both"])
def test_thresholds_from_healthy_slices_need_a_fit_for_the_signal(made, calibration, threshold):
    """Such a calibration was once NaN: it emptied every mask, and could not be saved."""
    other = replace(calibration, fitted=(replace(calibration.fitted[0], healthy_threshold=None),))
    assert decide(made[0], other, DecisionSettings("none")).masks.any()
    with pytest.raises(CalibrationError, match="--signal error"):
        decide(made[0], other, DecisionSettings(mask=MaskSettings(threshold)))
