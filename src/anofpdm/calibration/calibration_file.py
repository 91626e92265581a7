"""calibration.json: a calibration as a file beside the weights it belongs to."""

import hashlib
from pathlib import Path
from typing import Any

from anofpdm.errors import CalibrationError, ConfigError, MethodError
from anofpdm.method.calibration import Calibration
from anofpdm.network.predictor import TrainedModel
from anofpdm.util.artifacts import convert, decode, encode, to_plain
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
    return encode({"format": FORMAT, **to_plain(calibration)}).decode()


def from_json(text: str, source: str) -> Calibration:
    try:
        values = decode(dict[str, Any], text)
        if values.pop("format", None) != FORMAT:
            raise CalibrationError(f"{source}: written by another version; calibrate again")
        return convert(Calibration, values)
    except (ValueError, ConfigError, MethodError) as problem:
        raise CalibrationError(f"{source}: damaged ({problem}); calibrate again") from None
