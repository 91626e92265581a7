"""Settings of a fit."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anofpdm.choices import Layout, Preset, Raw
from anofpdm.cohorts.plan import labels_file
from anofpdm.network.checkpoint import STATE, WEIGHTS
from anofpdm.network.training.training_config import check_minutes
from anofpdm.util.files import file_sha256

COHORT, PAGE = "cohort", "index.html"
DEFAULT_STEPS = 10_000  # as in results/glioma.md
LEARNING_RATE = 2e-4  # likewise
STUDENT_STEPS = 3000
STUDENT_SHARE = 1 / 3  # of what calibration and pseudo-labelling leave of --minutes


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    source: Path
    layout: Layout
    out: Path  # folder of the model
    labels: Path | None = None  # None: as `prepare` finds them
    split: Path | None = None  # None: drawn
    modalities: tuple[str, ...] = ()
    size: int = 128
    raw: Raw = Raw.AUTO
    keep_isolated: bool = False
    fill_labels_mm: float = 0.0
    steps: int = DEFAULT_STEPS  # of training, over all runs
    minutes: float | None = None  # of all stages, over all runs; if given, instead of the steps
    preset: Preset = Preset.SMALL
    score: tuple[str, ...] = ()  # scored modalities; default: all
    seed: int = 0
    workers: int = 1

    def __post_init__(self) -> None:
        check_minutes(self.minutes)

    @property
    def student_steps(self) -> int:
        """At most as many as the diffusion model has: a trial run stays short."""
        return min(STUDENT_STEPS, self.steps) if self.minutes is None else STUDENT_STEPS

    @property
    def cohort(self) -> Path:
        return self.out / COHORT

    @property
    def labels_file(self) -> Path | None:
        return labels_file(self.layout, self.source, self.labels)

    @property
    def has_begun_training(self) -> bool:
        return any((self.out / name).is_file() for name in (STATE, WEIGHTS))

    def settings(self) -> dict[str, Any]:
        """By option: what cannot change between runs."""
        return {
            "SRC": str(self.source.absolute()),
            "--layout": str(self.layout),
            "--split": file_sha256(self.split) if self.split and self.split.is_file() else None,
            "--modalities": ",".join(self.modalities),
            "--size": self.size,
            "--raw": str(self.raw),
            "--keep-isolated": self.keep_isolated,
            "--fill-labels": self.fill_labels_mm,
            "--preset": str(self.preset),
            "--seed": self.seed,
        }


def detect_layout(source: Path) -> Layout:
    """BIDS where there are folders of subjects or a dataset description, else plain NIfTI files."""
    if (source / "dataset_description.json").is_file() or any(source.glob("sub-*/**/anat")):
        return Layout.BIDS
    return Layout.NIFTI
