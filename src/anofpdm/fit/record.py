"""fit.json, in the model's folder: settings that a resumed fit must share, and the time that its stages have taken."""

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from anofpdm.errors import CohortError, ConfigError, ModelError
from anofpdm.fit.fit_config import STUDENT_SHARE, FitConfig, digest
from anofpdm.util.artifacts import decode, encode
from anofpdm.util.files import read_regular_file, write_atomically

FILE = "fit.json"


@dataclass(frozen=True)
class Record:
    settings: dict[str, Any] = field(default_factory=dict)  # by option
    labels: str | None = None  # sha256 of the file
    minutes: dict[str, float] = field(default_factory=dict)  # by stage, over all runs, beside training
    trained_for: float = 0.0  # --minutes whose share training has used
    student_minutes: float | None = None  # that are left for the student's training


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
            words = "without" if not before else "with"
            given = "" if not before or before is True else " another file" if option == "--split" else f" {before}"
            raise ConfigError(
                f"{config.out} was started {words} {option}{given}; re-run like that, or choose another --out"
            )
    if record.labels != digest(config.data.labels_file) and config.has_begun_training:
        raise CohortError(
            f"{config.data.labels_file or 'labels'}: changed since {config.out} was trained; restore the file, "
            "or choose another --out"
        )


def record_settings(config: FitConfig) -> None:
    config.out.mkdir(parents=True, exist_ok=True)
    change_record(config, settings=config.settings(), labels=digest(config.data.labels_file))


@contextlib.contextmanager
def count_minutes(config: FitConfig, stage: str) -> Iterator[None]:
    """Add the time of a stage to the record, also of one that is interrupted."""
    start = time.monotonic()
    try:
        yield
    finally:
        minutes = load_record(config).minutes
        spent = minutes.get(stage, 0.0) + (time.monotonic() - start) / 60
        change_record(config, minutes={**minutes, stage: spent})


def student_minutes(config: FitConfig) -> float | None:
    if config.budget.minutes is None:
        return None
    left = load_record(config).student_minutes
    return STUDENT_SHARE * config.budget.minutes if left is None else left
