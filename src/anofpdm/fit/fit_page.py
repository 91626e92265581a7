"""MODEL/index.html: data, training and calibration of a fit, what its model can tell apart, and next steps."""

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anofpdm import __version__
from anofpdm.calibration.calibration_file import FIGURE
from anofpdm.choices import Split
from anofpdm.cohorts.store import Cohort
from anofpdm.cohorts.writer import SHEET
from anofpdm.fit.abilities import count_detected, detect_validation_slices, judge, label_warnings, rate_detectors
from anofpdm.fit.fit_config import FitConfig
from anofpdm.labels import LABEL_NAMES, estimated_note
from anofpdm.method.calibration import Calibration
from anofpdm.network.predictor import TrainedModel
from anofpdm.network.training.log import loss_jump, minutes_trained, read_log
from anofpdm.report.render import render
from anofpdm.scoring.burden import detected_by_burden
from anofpdm.student.student import Student
from anofpdm.util.drawing import BLUE, MUTED, Line, chart, encode_png

SMOOTHED = 20  # lines of the log in a running median


@dataclass(frozen=True)
class FitResult:
    cohort: Cohort
    model: TrainedModel
    calibration: Calibration
    student: Student | None
    student_problem: str = ""  # why there is none

    @property
    def is_partial(self) -> bool:
        return self.student is None or bool(self.cohort.manifest.failed)


def render_page(config: FitConfig, result: FitResult) -> str:
    cohort, calibration, student = result.cohort, result.calibration, result.student
    ratings, log = rate_detectors(calibration, student), read_log(config.out)
    in_use = list(ratings)[-1]
    detected = None if student is None else detect_validation_slices(cohort, student)
    counts = [] if detected is None else count_detected(cohort, detected)
    burden = [] if detected is None else detected_by_burden(cohort, cohort.rows(Split.VAL), detected)
    no_student = [f"There is no student: {result.student_problem}."] if student is None else []
    return render(
        "fit.html",
        config=config,
        cohort=cohort,
        patients=len(np.unique(cohort.patients)),
        splits=[(split, *numbers) for split, numbers in cohort.split_counts().items() if any(numbers)],
        label_names=LABEL_NAMES,
        sheet=_read(cohort.path / SHEET),
        steps=log[-1]["step"] if log else 0,
        minutes=minutes_trained(config.out),
        jump=loss_jump(config.out),
        losses=draw_losses([line["step"] for line in log], [line["loss"] for line in log]) if log else None,
        calibration=calibration,
        scored=", ".join(calibration.modalities[channel] for channel in calibration.settings.channels),
        estimated=estimated_note(calibration.n_estimated),
        figure=_read(config.out / FIGURE),
        verdict=judge(in_use, ratings[in_use].auc),
        warnings=[*label_warnings(cohort, calibration), *no_student],
        detectors=[(name, _number(rating.accuracy), _number(rating.auc)) for name, rating in ratings.items()],
        called=[(name, total, _share(part, total)) for name, total, part in counts],
        burden=[
            (f"{group.smallest_mm2:.0f} to {group.largest_mm2:.0f}", group.slices, _share(group.detected, group.slices))
            for group in burden
        ],
        out=shlex.quote(str(config.out)),
        data=shlex.quote(str(config.cohort)),
        last_split=Split.TEST if len(cohort.rows(Split.TEST)) else Split.VAL,
        version=__version__,
        model=result.model,
    )


def _read(path: Path) -> bytes | None:
    """A picture, where there is one."""
    return path.read_bytes() if path.is_file() else None


def draw_losses(steps: Sequence[int], losses: Sequence[float]) -> bytes:
    """The loss of each line of the log, and its running median."""
    smooth = [float(np.median(losses[max(0, n - SMOOTHED) : n + 1])) for n in range(len(losses))]
    highest = float(np.quantile(losses, 0.98)) * 1.1
    lines = [
        Line(steps, losses, MUTED, "loss", dots=len(losses) < SMOOTHED, width=1),
        Line(steps, smooth, BLUE, "running median"),
    ]
    return encode_png(chart(lines, "Training loss", size=(720, 280), xlabel="step", ylim=(0.0, highest or 1.0)))


def _number(value: float) -> str:
    return "unknown" if math.isnan(value) else f"{value:.3f}"


def _share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.0%})" if whole else "0"
