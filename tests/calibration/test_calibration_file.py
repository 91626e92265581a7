"""calibration.json."""

import json
from dataclasses import replace

import numpy as np
import pytest

from anofpdm.calibration.calibration_file import FILE, from_json, load_calibration, to_json
from anofpdm.errors import CalibrationError
from anofpdm.method import calibrate
from anofpdm.method.context import SlicePositions
from tests.method.worlds import LEVELS, made_up


@pytest.fixture(scope="module")
def calibration():
    evidence, labels, patients = made_up()
    positions = SlicePositions(patients, np.arange(len(labels)) * 2.0)
    fitted = calibrate(evidence, labels, patients, positions=positions)
    return replace(fitted, checkpoint_sha256="abc", modalities=("flair",))


def test_a_calibration_survives_its_file(calibration):
    again = from_json(to_json(calibration), "here")
    assert to_json(again) == to_json(calibration)
    assert again.settings == calibration.settings
    logs = np.random.default_rng(0).normal(size=(5, len(LEVELS)))
    np.testing.assert_array_equal(again.fitted[1].curve.scores(logs), calibration.fitted[1].curve.scores(logs))


def test_what_is_not_known_stays_unknown():
    """Accuracies with a single patient, and the threshold of another signal."""
    evidence, labels, _ = made_up(12)
    calibration = calibrate(evidence, labels, ["a"] * 12)
    assert calibration.detector == "cosine"
    fitted = (replace(calibration.fitted[0], healthy_threshold=None),)
    again = from_json(to_json(replace(calibration, fitted=fitted)), "here")
    assert again.n_patients == 1
    assert np.isnan([again.cosine_accuracy.accuracy, again.fitted[0].curve_accuracy.auc]).all()
    assert again.fitted[0].healthy_threshold is None


@pytest.mark.parametrize(
    ("where", "value"),
    [
        ("strength", float("nan")),
        ("strength", -1),
        ("cut", None),
        ("divergence_max", 0),
        ("detector", "eye"),
        ("seed", 10**400),
        ("settings.levels", [0, 100, 200, 5000]),
        ("settings.levels", [0, 100]),
        ("settings.channels", [7]),
        ("fitted.0.healthy_threshold", -1),
        ("fitted.0.curve.scale", [0, 0, 0, 0]),
        ("fitted.0.curve.offset", float("inf")),
        ("candidates.0.accuracy", None),
        ("other", 1),
        ("format", 99),
    ],
)
def test_invalid_values_are_refused(calibration, where, value):
    payload = json.loads(to_json(calibration))
    *path, last = (int(part) if part.isdigit() else part for part in where.split("."))
    place = payload
    for part in path:
        place = place[part]
    place[last] = value
    with pytest.raises(CalibrationError, match="calibrate again"):
        from_json(json.dumps(payload), "here")


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"format": 1}', "null", 100_000 * "["])
def test_a_damaged_file_is_refused(text):
    with pytest.raises(CalibrationError, match="calibrate again"):
        from_json(text, "here")


def test_a_missing_calibration_or_one_of_another_model_is_refused(model, calibration, tmp_path):
    model = replace(model, folder=tmp_path)
    with pytest.raises(CalibrationError, match="anofpdm calibrate"):
        load_calibration(model)
    (tmp_path / FILE).write_text(to_json(calibration))
    with pytest.raises(CalibrationError, match="another checkpoint"):
        load_calibration(model)
    (tmp_path / FILE).write_text(to_json(replace(calibration, checkpoint_sha256=model.sha256)))
    with pytest.raises(CalibrationError, match="modalities differ"):
        load_calibration(model)
