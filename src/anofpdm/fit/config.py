"""Settings of a fit, and fit.json, which keeps them in the model's folder: a resumed fit must have the same ones."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from anofpdm.errors import CohortError, ConfigError, ModelError
from anofpdm.network.checkpoint import STATE, WEIGHTS
from anofpdm.options import Layout, Preset, Raw
from anofpdm.util.files import read_regular_file, write_atomically

FILE, COHORT, PAGE = "fit.json", "cohort", "index.html"
FORMAT = 1
DEFAULT_STEPS = 10_000  # as in results/glioma.md
LEARNING_RATE = 2e-4  # likewise
STUDENT_STEPS = 3000
STUDENT_SHARE = 0.5  # of --minutes


@dataclass(frozen=True)
class Data:
    """What is prepared, and how."""

    source: Path
    layout: Layout
    labels: Path | None = None  # None: as `prepare` finds them
    split: Path | None = None  # None: drawn
    modalities: tuple[str, ...] = ()
    size: int = 128
    raw: Raw = Raw.AUTO
    keep_isolated: bool = False
    fill_labels_mm: float = 0.0


@dataclass(frozen=True)
class Budget:
    """Length of the training, counted over all runs of the command."""

    steps: int | None = None
    minutes: float | None = None

    def __post_init__(self) -> None:
        if self.steps is not None and self.minutes is not None:
            raise ConfigError("--steps and --minutes: give one of them")
        if self.minutes is not None and not self.minutes > 0:
            raise ConfigError(f"--minutes {self.minutes:g}: must be more than 0")
        if self.steps is None and self.minutes is None:
            object.__setattr__(self, "steps", DEFAULT_STEPS)

    @property
    def student_steps(self) -> int:
        """At most as many as the diffusion model has: a trial run stays short."""
        return STUDENT_STEPS if self.steps is None else min(STUDENT_STEPS, self.steps)

    @property
    def student_minutes(self) -> float | None:
        return None if self.minutes is None else STUDENT_SHARE * self.minutes

    def __str__(self) -> str:
        return f"--steps {self.steps}" if self.minutes is None else f"--minutes {self.minutes:g}"


@dataclass(frozen=True)
class FitConfig:
    data: Data
    out: Path  # folder of the model
    budget: Budget = field(default_factory=Budget)
    preset: Preset = Preset.SMALL
    score: tuple[str, ...] = ()  # scored modalities; default: all
    seed: int = 0
    workers: int = 1

    @property
    def cohort(self) -> Path:
        return self.out / COHORT

    @property
    def has_begun_training(self) -> bool:
        return any((self.out / name).is_file() for name in (STATE, WEIGHTS))

    def settings(self) -> dict[str, Any]:
        """By option: what cannot change between runs."""
        data = self.data
        return {
            "SRC": str(data.source.absolute()),
            "--layout": str(data.layout),
            "--split": _digest(data.split),
            "--modalities": ",".join(data.modalities),
            "--size": data.size,
            "--raw": str(data.raw),
            "--keep-isolated": data.keep_isolated,
            "--fill-labels": data.fill_labels_mm,
            "--preset": str(self.preset),
            "--seed": self.seed,
        }


def detect_layout(source: Path) -> Layout:
    """BIDS where there are folders of subjects or a dataset description, else plain NIfTI files."""
    if (source / "dataset_description.json").is_file() or any(source.glob("sub-*/**/anat")):
        return Layout.BIDS
    return Layout.NIFTI


def check_and_record(config: FitConfig) -> None:
    """Refuse other settings than those the folder was started with, and record those of a new one."""
    path, labels = config.out / FILE, _digest(_labels_file(config.data))
    payload = {"format": FORMAT, "settings": config.settings(), "labels": labels}
    if path.is_file():
        _check_same(config, payload, _read(path))
    elif config.has_begun_training:
        raise ConfigError(f"{config.out} holds a model that was not made by `anofpdm fit`; choose another --out")
    config.out.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(payload, indent=2).encode())


def _check_same(config: FitConfig, payload: dict[str, Any], recorded: dict[str, Any]) -> None:
    for option, value in payload["settings"].items():
        before = recorded["settings"].get(option)
        if before != value:
            raise ConfigError(
                f"{config.out} was started {_describe(option, before)}; re-run like that, or choose another --out"
            )
    if recorded["labels"] != payload["labels"] and config.has_begun_training:
        raise CohortError(
            f"{_labels_file(config.data) or 'labels'}: changed since {config.out} was trained; restore the file, "
            "or choose another --out"
        )


def _describe(option: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"with {option}" if value else f"without {option}"
    if not value:
        return f"without {option}"
    return f"with {option} {'another file' if option == '--split' else value}"


def _read(path: Path) -> dict[str, Any]:
    try:
        payload: dict[str, Any] = json.loads(read_regular_file(path))
        if payload["format"] != FORMAT or not isinstance(payload["settings"], dict) or "labels" not in payload:
            raise ValueError("written by another version")
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as problem:
        raise ModelError(f"{path}: damaged ({problem}); remove it, or choose another --out") from None
    return payload


def _labels_file(data: Data) -> Path | None:
    """The file that labels are read from; None: they are derived from masks."""
    if data.labels is None and data.layout is Layout.NIFTI:
        return data.source / "labels.csv"
    return data.labels


def _digest(path: Path | None) -> str | None:
    if path is None or not path.is_file():
        return None
    return hashlib.sha256(read_regular_file(path)).hexdigest()
