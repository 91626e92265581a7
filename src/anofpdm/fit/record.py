"""fit.json, in the model's folder: settings that a resumed fit must share, and the time that its stages have taken."""

import contextlib
import json
import time
from collections.abc import Iterator
from typing import Any

from anofpdm.errors import CohortError, ConfigError, ModelError
from anofpdm.fit.fit_config import STUDENT_SHARE, FitConfig, digest
from anofpdm.util.files import read_regular_file, write_atomically

FILE = "fit.json"
FORMAT = 1


def check_settings(config: FitConfig) -> None:
    """Refuse other settings than those the folder was started with."""
    if (config.out / FILE).is_file():
        _check_same(config, _settings(config), _read(config))
    elif config.has_begun_training:
        raise ConfigError(f"{config.out} holds a model that was not made by `anofpdm fit`; choose another --out")


def record_settings(config: FitConfig) -> None:
    config.out.mkdir(parents=True, exist_ok=True)
    _update(config, _settings(config))


@contextlib.contextmanager
def count_minutes(config: FitConfig, stage: str) -> Iterator[None]:
    """Add the time of a stage to the record, also of one that is interrupted."""
    start = time.monotonic()
    try:
        yield
    finally:
        minutes = _read(config).get("minutes", {})
        _update(config, {"minutes": {**minutes, stage: minutes.get(stage, 0.0) + (time.monotonic() - start) / 60}})


def minutes_beside_training(config: FitConfig) -> float:
    """Of the other stages, over all runs."""
    return float(sum(_read(config).get("minutes", {}).values())) if (config.out / FILE).is_file() else 0.0


def record_trained(config: FitConfig, student_minutes: float) -> None:
    """Training has used its share of --minutes; `student_minutes` are left for the student's."""
    _update(config, {"trained_for": config.budget.minutes, "student_minutes": student_minutes})


def is_trained_for(config: FitConfig, minutes: float) -> bool:
    return (config.out / FILE).is_file() and (_read(config).get("trained_for") or 0.0) >= minutes


def student_minutes(config: FitConfig) -> float | None:
    if config.budget.minutes is None:
        return None
    return float(_read(config).get("student_minutes", STUDENT_SHARE * config.budget.minutes))


def _settings(config: FitConfig) -> dict[str, Any]:
    return {"format": FORMAT, "settings": config.settings(), "labels": digest(config.data.labels_file)}


def _update(config: FitConfig, changes: dict[str, Any]) -> None:
    path = config.out / FILE
    earlier = _read(config) if path.is_file() else {}
    write_atomically(path, json.dumps({**earlier, **changes}, indent=2).encode())


def _check_same(config: FitConfig, payload: dict[str, Any], recorded: dict[str, Any]) -> None:
    for option, value in payload["settings"].items():
        before = recorded["settings"].get(option)
        if before != value:
            raise ConfigError(
                f"{config.out} was started {_describe(option, before)}; re-run like that, or choose another --out"
            )
    if recorded["labels"] != payload["labels"] and config.has_begun_training:
        raise CohortError(
            f"{config.data.labels_file or 'labels'}: changed since {config.out} was trained; restore the file, "
            "or choose another --out"
        )


def _describe(option: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"with {option}" if value else f"without {option}"
    if not value:
        return f"without {option}"
    return f"with {option} {'another file' if option == '--split' else value}"


def _read(config: FitConfig) -> dict[str, Any]:
    path = config.out / FILE
    try:
        payload: dict[str, Any] = json.loads(read_regular_file(path))
        if payload["format"] != FORMAT or not isinstance(payload["settings"], dict) or "labels" not in payload:
            raise ValueError("written by another version")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
        raise ModelError(f"{path}: damaged ({problem}); remove it, or choose another --out") from None
    return payload
