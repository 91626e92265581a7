"""Options of a segmentation, resolved against a model."""

from dataclasses import replace

import numpy as np
import pytest

from anofpdm.choices import Engine
from anofpdm.errors import CalibrationError, ConfigError, ModelError
from anofpdm.segment.engines import DiffusionEngine, StudentEngine
from tests.optional_toys import make_student
from tests.segment.known_model import known_model


def model_with_student():
    return replace(known_model(seed=7), student=make_student(channels=("t2",), optional=()))


def test_auto_is_the_student_where_there_is_one():
    assert isinstance(known_model().request().engine, DiffusionEngine)
    request = model_with_student().request()
    assert isinstance(request.engine, StudentEngine)
    assert request.modalities == ("t2",)
    assert model_with_student().request(engine="diffusion").engine.name is Engine.DIFFUSION


def test_defaults_are_those_of_the_calibration():
    engine = known_model(seed=7).request().engine
    assert (engine.seed, engine.batch, engine.decision.context_mm) == (7, 8, 0.0)
    assert (engine.decision.detector, engine.decision.mask.threshold) == ("calibrated", "both")
    given = {"seed": 0, "batch": 3, "detector": "cosine", "threshold": "quantile", "peak": 0.0, "smallest": 3}
    engine = known_model(seed=7).request(**given).engine
    decided = engine.decision
    assert (engine.seed, engine.batch, decided.detector) == (0, 3, "cosine")
    assert (decided.mask.threshold, decided.mask.peak_share, decided.mask.smallest) == ("quantile", 0, 3)


def test_an_explanation_needs_the_modalities_of_the_diffusion_model():
    request = model_with_student().request(explain=np.array([9, 4, 9]), seed=3)  # type: ignore[arg-type]
    assert request.modalities == ("flair", "t2")
    assert request.engine.modalities == ("t2",)
    assert request.explain == (4, 9)
    settings = request.settings()
    assert (settings["engine"], settings["explained"], settings["seed"]) == ("student", [4, 9], 3)
    assert "seed" not in model_with_student().request().settings()


def test_explain_is_ignored_where_auto_is_the_diffusion_engine():
    assert known_model().request(explain="findings").explain is None


@pytest.mark.parametrize(
    ("model", "options", "error", "match"),
    [
        (known_model(), {"engine": "teacher"}, ConfigError, "choose one of auto, diffusion, student"),
        (known_model(), {"engine": "student"}, ConfigError, "anofpdm distill"),
        (known_model(), {"engine": "diffusion", "explain": [3]}, ConfigError, "--explain: .* every slice"),
        (known_model(), {"threshold_probability": 0.3}, ConfigError, "not an option of the diffusion .*--threshold"),
        (known_model(), {"detector": "x"}, ConfigError, "unknown detector"),
        (known_model(), {"threshold": "x"}, ConfigError, "unknown threshold"),
        (known_model(), {"context": 7}, CalibrationError, "not calibrated for smoothing"),
        (known_model(), {"brain_mask": "b.nii.gz", "skull_strip": "x"}, ConfigError, "give one of them"),
        (model_with_student(), {"explain": "70,71"}, ConfigError, "explain"),
        (model_with_student(), {"peak": 0.1, "seed": 1}, ConfigError, "--peak, --seed: not an option of the student"),
        (model_with_student(), {"explain": [3], "detector": "curve"}, ConfigError, "--detector: not an option"),
        (replace(known_model(), student_problem="damaged"), {}, ModelError, "damaged; or add --engine diffusion"),
    ],
)
def test_refused_options(model, options, error, match):
    with pytest.raises(error, match=match):
        model.request(**options)


def test_options_beside_a_request_are_refused():
    model = known_model()
    with pytest.raises(ConfigError, match="seed, peak: has no effect beside request="):
        model.segment({}, request=model.request(), seed=3, peak=None)
