from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from anofpdm.calibration.calibration_file import from_json, to_json
from anofpdm.errors import CalibrationError, ConfigError, MethodError
from anofpdm.method import calibrate
from anofpdm.method.context import SlicePositions
from anofpdm.method.decision import VARIANTS, DecisionSettings, decide
from anofpdm.method.mask import (
    MaskSettings,
    drop_small_components,
    mask,
    mask_quantiles,
    median_filtered,
    median_image,
    thresholds,
)
from anofpdm.options import Signal
from tests.method.test_calibration import made_up
from tests.method.worlds import literal_mask


def blobs(n=4, side=48, seed=0):
    rng = np.random.default_rng(seed)
    noise = rng.random((n, side, side))
    return np.stack([ndimage.gaussian_filter(one, 3) ** 4 for one in noise])


@pytest.mark.parametrize("strength", [0.0, 0.004, 0.3, 0.53, 0.995, 1.0, 2.0])
def test_the_papers_mask_pixel_by_pixel(strength):
    maps = blobs()
    cuts = thresholds(maps, mask_quantiles(np.full(4, strength), 1.0), None, MaskSettings())
    found = mask(median_filtered(maps), cuts)
    assert found.any()
    for one, image in zip(found, maps, strict=True):
        np.testing.assert_array_equal(one, literal_mask(image, strength, 1.0))


@settings(max_examples=40)
@given(st.integers(1, 3), st.integers(1, 20), st.integers(1, 20), st.integers(0, 2**32 - 1))
def test_the_median_filter_is_scipys(count, height, width, seed):
    maps = np.random.default_rng(seed).integers(0, 9, (count, height, width)).astype(np.float32)  # with ties
    expected = [ndimage.median_filter(one, size=5, mode="reflect") for one in maps]
    np.testing.assert_array_equal(median_filtered(maps), expected)


@pytest.mark.parametrize("count", [1, 3, 9, 25])
def test_the_median_of_images_is_numpys(count):
    images = np.random.default_rng(count).random((count, 11, 7))
    np.testing.assert_array_equal(median_image(list(images)), np.median(images, axis=0))


def test_quantiles_fall_from_98_to_90_percent_in_a_hundred_steps():
    found = mask_quantiles(np.arange(101) / 100, 1.0)
    np.testing.assert_allclose(found, np.linspace(0.90, 0.98, 101)[::-1], atol=1e-12)
    np.testing.assert_allclose(mask_quantiles(np.array([0.53, -1.0, 7.0]), 1.0), [0.9376, 0.98, 0.90])


def test_thresholds_from_healthy_slices_and_from_both():
    maps = blobs()
    quantiles = np.full(4, 0.95)
    paper = thresholds(maps, quantiles, 0.2, MaskSettings("quantile"))
    assert (thresholds(maps, quantiles, 0.2, MaskSettings("healthy")) == 0.2).all()
    np.testing.assert_allclose(thresholds(maps, quantiles, 0.2, MaskSettings("both")) ** 2, paper * 0.2)


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1), st.integers(0, 30), st.floats(0.05, 0.6))
def test_no_component_of_the_limit_or_fewer_is_left_and_no_larger_one_is_lost(seed, limit, share):
    drawn = np.random.default_rng(seed).random((24, 24)) < share
    kept = drop_small_components(drawn, limit)
    assert not (kept & ~drawn).any()
    components, count = ndimage.label(drawn, np.ones((3, 3)))
    for number in range(1, count + 1):
        part = components == number
        assert kept[part].all() if part.sum() > limit else not kept[part].any()


def test_the_smallest_component_scales_with_the_image():
    side = 256
    smooth = np.zeros((1, side, side))
    smooth[0, :16, :10] = 1  # 160 pixels: 40 at 128 x 128
    smooth[0, 100:107, 100:123] = 1  # 161
    found = mask(smooth, np.array([0.5]))[0]
    assert not found[:20, :20].any()
    assert found[100:107, 100:123].all()
    assert mask(smooth, np.array([0.5]), smallest=0)[0, :16, :10].all()


def test_undetected_slices_have_empty_masks_and_the_detector_can_be_chosen():
    evidence, labels, patients = made_up(40, lift=4.0)
    calibration = calibrate(evidence, labels, patients)
    for detector in ("cosine", "curve"):
        found = decide(evidence, calibration, DecisionSettings(detector, mask=MaskSettings(smallest=0)))
        assert 0 < found.detected.sum() < 40
        assert not found.masks[~found.detected].any()
        np.testing.assert_array_equal(found.masks[found.detected], found.drawn[found.detected])
        assert found.drawn[~found.detected].any()  # the detector had something to empty
    everything = decide(evidence, calibration, DecisionSettings("none"))
    np.testing.assert_array_equal(everything.masks, everything.drawn)
    cosine = decide(evidence, calibration, DecisionSettings("cosine"))
    np.testing.assert_array_equal(cosine.detected, cosine.similarity <= calibration.cut)
    assert (cosine.detected == (labels == 1)).mean() == pytest.approx(
        next(one.accuracy for one in calibration.candidates if one.strength == calibration.strength)
    )


def test_smoothing_needs_positions_and_a_calibration_with_them():
    evidence, labels, patients = made_up()
    alone = calibrate(evidence, labels, patients)
    with pytest.raises(MethodError, match="positions of the slices"):
        decide(evidence, alone, DecisionSettings(context_mm=2.0))
    places = SlicePositions(patients, np.tile([0.0, 2.0, 4.0, 6.0], 10))
    with pytest.raises(CalibrationError, match="not calibrated for smoothing across slices of 2 mm"):
        decide(evidence, alone, DecisionSettings(context_mm=2.0), places)
    both = calibrate(evidence, labels, patients, positions=places)
    near = decide(evidence, both, DecisionSettings(context_mm=2.0), places)
    far = decide(evidence, both, DecisionSettings(), places)
    assert near.maps.std() < far.maps.std()


@pytest.mark.parametrize("name", VARIANTS)
def test_every_variant_runs_by_name(name):
    chosen = VARIANTS[name]
    evidence, labels, patients = made_up()
    found = decide(evidence, calibrate(evidence, labels, patients), DecisionSettings(last_map=chosen.last_map))
    assert found.masks.shape == (40, 16, 16)


def test_invalid_settings_are_refused():
    with pytest.raises(ConfigError, match="unknown threshold"):
        MaskSettings("otsu")
    with pytest.raises(ConfigError, match="unknown detector"):
        DecisionSettings("eye")
    with pytest.raises(MethodError, match="must not be negative"):
        MaskSettings(smallest=-1)
    with pytest.raises(MethodError, match="aggregated"):
        DecisionSettings(last_map=True, mask=MaskSettings("healthy"))


def test_a_mask_reaches_a_share_of_its_slices_peak():
    evidence, labels, patients = made_up()
    calibration = calibrate(evidence, labels, patients)
    plain = decide(evidence, calibration, DecisionSettings(mask=MaskSettings("healthy", smallest=0)))
    peaks = plain.maps.max(axis=(1, 2))
    for share in (0.3, 0.9):
        found = decide(
            evidence, calibration, DecisionSettings(mask=MaskSettings("healthy", smallest=0, peak_share=share))
        )
        cuts = np.maximum(calibration.with_context(0).healthy_threshold, share * peaks)
        np.testing.assert_allclose(found.threshold, cuts)
        np.testing.assert_array_equal(found.drawn, plain.maps >= cuts[:, None, None])
    with pytest.raises(MethodError, match="must lie in"):
        MaskSettings(peak_share=1.0)


@pytest.mark.parametrize("threshold", ["healthy", "both"])
def test_thresholds_from_healthy_slices_need_a_fit_for_the_signal(threshold):
    """Such a calibration was once NaN: it emptied every mask, and could not be saved."""
    evidence, labels, patients = made_up()
    other = calibrate(evidence, labels, patients).for_signal(Signal.GRADIENT)
    evidence = replace(evidence, maps_by_signal=dict.fromkeys([Signal.GRADIENT], evidence.maps_by_signal[Signal.ERROR]))
    evidence = evidence.with_signal(Signal.GRADIENT)
    assert from_json(to_json(other), "here").fitted[0].healthy_threshold is None
    assert decide(evidence, other, DecisionSettings("none")).masks.any()
    with pytest.raises(CalibrationError, match="--signal gradient"):
        decide(evidence, other, DecisionSettings(mask=MaskSettings(threshold)))


@pytest.mark.parametrize("value", [float("nan"), -1.0, "x"])
def test_a_healthy_threshold_is_a_number(value):
    fit = calibrate(*made_up()).fitted[0]
    with pytest.raises(MethodError, match="healthy_threshold"):
        replace(fit, healthy_threshold=value)
