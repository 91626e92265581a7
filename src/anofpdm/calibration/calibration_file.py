"""calibration.json: a calibration as a file beside the weights it belongs to."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from anofpdm.errors import CalibrationError, ConfigError, MethodError
from anofpdm.method.calibration import Calibration, Candidate, ContextFit
from anofpdm.method.detection import Accuracy, CurveDetector
from anofpdm.method.evidence import EvidenceSettings
from anofpdm.network.predictor import TrainedModel
from anofpdm.util.files import read_regular_file, remove_temporary_files, write_atomically

FILE, FIGURE = "calibration.json", "calibration.png"
FORMAT = 1


def save_calibration(calibration: Calibration, figure: bytes, folder: Path) -> None:
    remove_temporary_files(folder, "calibration.*")
    write_atomically(folder / FIGURE, figure)
    write_atomically(folder / FILE, to_json(calibration).encode())


def load_calibration(model: TrainedModel) -> tuple[Calibration, str]:
    """The calibration of this model, and the file's hash."""
    path = model.folder / FILE
    if not path.is_file():
        raise CalibrationError(
            f"{model.folder}: not calibrated (no {FILE}); run `anofpdm calibrate {model.folder} COHORT` first"
        )
    data = read_regular_file(path)
    calibration = from_json(data.decode(errors="replace"), str(path))
    if calibration.checkpoint_sha256 != model.sha256:
        raise CalibrationError(
            f"{path} belongs to another checkpoint (sha256 {calibration.checkpoint_sha256[:12]}..., the weights have "
            f"{model.sha256[:12]}...); calibrate again"
        )
    if calibration.modalities != model.modalities:
        raise CalibrationError(f"{path}: damaged (its modalities differ from the model's); calibrate again")
    return calibration, hashlib.sha256(data).hexdigest()


def to_json(calibration: Calibration) -> str:
    """NaN, which JSON does not have, becomes null: only cross-validated accuracies can be NaN."""
    values = {"format": FORMAT, **asdict(calibration)}
    values["cosine_accuracy"] = _accuracy_to_dict(calibration.cosine_accuracy)
    for saved, fit in zip(values["fitted"], calibration.fitted, strict=True):
        saved["curve_accuracy"] = _accuracy_to_dict(fit.curve_accuracy)
    return json.dumps(values, indent=2, default=np.ndarray.tolist, allow_nan=False)


def from_json(text: str, source: str) -> Calibration:
    """The dataclasses check what they are given."""
    try:
        values = json.loads(text)
        if values.pop("format", None) != FORMAT:
            raise CalibrationError(f"{source}: written by another version; calibrate again")
        return _from_dict(values)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as problem:
        raise CalibrationError(f"{source}: damaged ({problem}); calibrate again") from None
    except (ConfigError, MethodError) as problem:
        raise CalibrationError(f"{source}: invalid ({problem}); calibrate again") from None


def _from_dict(values: Mapping[str, Any]) -> Calibration:
    settings: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in values["settings"].items()
    }
    return Calibration(
        **{
            **values,
            "settings": EvidenceSettings(**settings),
            "cosine_accuracy": _accuracy_from_dict(values["cosine_accuracy"]),
            "candidates": tuple(Candidate(**one) for one in values["candidates"]),
            "fitted": tuple(_fit_from_dict(one) for one in values["fitted"]),
            "modalities": tuple(values["modalities"]),
            "foreground": tuple(values["foreground"]),
        }
    )


def _fit_from_dict(values: Mapping[str, Any]) -> ContextFit:
    return ContextFit(
        values["context_mm"],
        CurveDetector.from_dict(values["curve"]),
        _accuracy_from_dict(values["curve_accuracy"]),
        values["healthy_threshold"],
    )


def _accuracy_to_dict(accuracy: Accuracy) -> dict[str, float | None]:
    return {name: None if math.isnan(value) else value for name, value in asdict(accuracy).items()}


def _accuracy_from_dict(values: Mapping[str, float | None]) -> Accuracy:
    return Accuracy(**{name: math.nan if value is None else float(value) for name, value in values.items()})
