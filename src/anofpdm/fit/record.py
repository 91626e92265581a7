"""fit.json, in the model's folder: settings that a resumed fit must share, and the time that its stages have taken."""

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from anofpdm.errors import CohortError, ConfigError, ModelError
from anofpdm.fit.fit_config import FitConfig
from anofpdm.util.artifacts import decode, encode
from anofpdm.util.files import file_sha256, read_regular_file, write_atomically

FILE = "fit.json"


@dataclass(frozen=True)
class Record:
    settings: dict[str, Any] = field(default_factory=dict)  # by option
    labels: str | None = None  # sha256 of the file
    minutes: float = 0.0  # of all stages, over all runs
    trained_for: float = 0.0  # --minutes whose share training has used
    student_minutes: float | None = None  # what is left of --minutes for training the student


def load_record(config: FitConfig) -> Record:
    path = config.out / FILE
    if not path.is_file():
        return Record()
    try:
        return decode(Record, read_regular_file(path))
    except (OSError, ValueError) as problem:
        raise ModelError(f"{path}: damaged ({problem}); remove it, or choose another --out") from None


def change_record(config: FitConfig, **changes: Any) -> None:
    write_atomically(config.out / FILE, encode(replace(load_record(config), **changes)))


def check_settings(config: FitConfig) -> None:
    """Refuse several processes, and other settings than those the folder was started with."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError(
            "fit runs in one process; for several, run prepare, train, calibrate and distill with torchrun"
        )
    if not (config.out / FILE).is_file():
        if config.has_begun_training:
            raise ConfigError(f"{config.out} holds a model that was not made by `anofpdm fit`; choose another --out")
        return
    record = load_record(config)
    for option, value in config.settings().items():
        before = record.settings.get(option)
        if before != value:
            earlier = f"with {option} {before}" if before else f"without {option}"
            raise ConfigError(f"{config.out} was started {earlier}; re-run like that, or choose another --out")
    if record.labels != _labels_sha256(config) and config.has_begun_training:
        raise CohortError(
            f"{config.labels_file or 'labels'}: changed since {config.out} was trained; restore the file, "
            "or choose another --out"
        )


def record_settings(config: FitConfig) -> None:
    config.out.mkdir(parents=True, exist_ok=True)
    change_record(config, settings=config.settings(), labels=_labels_sha256(config))


def _labels_sha256(config: FitConfig) -> str | None:
    path = config.labels_file
    return file_sha256(path) if path is not None and path.is_file() else None


@contextlib.contextmanager
def count_minutes(config: FitConfig) -> Iterator[None]:
    """Add the time of a stage to the record, also of one that is interrupted."""
    start = time.monotonic()
    try:
        yield
    finally:
        change_record(config, minutes=load_record(config).minutes + (time.monotonic() - start) / 60)
