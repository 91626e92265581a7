"""MODEL/index.html: data, training and calibration of a fit, what its model can tell apart, and next steps."""

import base64
import html
import math
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from anofpdm import __version__
from anofpdm.calibration.calibration_file import FIGURE
from anofpdm.cohorts.store import Cohort
from anofpdm.cohorts.writer import SHEET
from anofpdm.fit.abilities import Abilities, rate_model
from anofpdm.fit.fit_config import FitConfig
from anofpdm.labels import LABEL_NAMES, estimated_note
from anofpdm.method.calibration import Calibration
from anofpdm.network.predictor import TrainedModel
from anofpdm.network.training.log import loss_jump, minutes_trained, read_log
from anofpdm.network.training.sample_pictures import SAMPLES
from anofpdm.options import Split
from anofpdm.scoring.html_page import STYLE
from anofpdm.student.student import Student
from anofpdm.util.drawing import BLUE, MUTED, Line, chart, encode_png

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"
MORE_STYLE = (
    "h2{margin-top:2.2rem}.wide{overflow-x:auto}.wide img{max-width:none}pre{padding:.6rem;background:#8882}"
    ".warning{border-left:4px solid #c06a10;padding-left:.8rem}"
)
SMOOTHED = 20  # lines of the log in a running median
MAX_FAILED = 20


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
    name = html.escape(config.out.absolute().name)
    body = [_data_section(result.cohort), _training_section(config), _calibration_section(config, result)]
    body += [_abilities_section(rate_model(result.cohort, result.calibration, result.student), result)]
    body += [_next_steps(config, result)]
    return f"""<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="{POLICY}"><title>{name}</title><style>{STYLE}{MORE_STYLE}</style>
<h1>Model {name}</h1>
<p>Made from image-level labels of {len(np.unique(result.cohort.patients))} patients,
{html.escape(", ".join(result.cohort.modalities))}.
A research tool, not a medical device.</p>
{"".join(body)}
<p>anofpdm {__version__}, model sha256 {result.model.sha256[:16]}.</p></html>
"""


def _data_section(cohort: Cohort) -> str:
    rows = []
    for split in (one for one in Split if len(cohort.rows(one))):
        some = cohort.rows(split)
        counts = [int((cohort.labels[some] == label).sum()) for label in range(len(LABEL_NAMES))]
        rows.append((split, len(np.unique(cohort.patients[some])), *counts))
    failed = list(cohort.manifest.failed.items())
    lines = [
        f"<p class=warning>Not used: {len(failed)} {'scan' if len(failed) == 1 else 'scans'}.</p>",
        _list(f"{k}: {v}" for k, v in failed[:MAX_FAILED]),
    ]
    path = cohort.path / SHEET
    sheet = _picture(path.read_bytes(), "a sample of the prepared slices") if path.is_file() else ""
    return f"""<h2>Data</h2>
<p>Slices by label. Patients of the train split train the model; those of the val split calibrate and rate it.</p>
{_table(("split", "patients", *LABEL_NAMES), rows)}{"".join(lines) if failed else ""}
<p>Every tile should show a brain, anterior at the top, nothing cut off.</p>{sheet}
"""


def _training_section(config: FitConfig) -> str:
    log, jump, samples = read_log(config.out), loss_jump(config.out), config.out / SAMPLES
    parts = [f"<h2>Training</h2><p>{log[-1]['step'] if log else 0:,} steps of the preset {config.preset} in "]
    parts.append(f"{minutes_trained(config.out):.0f} minutes.</p>")
    if jump:
        parts.append(
            f"<p class=warning>The loss jumped from {jump.before:.2g} to {jump.after:.2g} near step {jump.step}. The "
            "model may be worse for it: fit again with another --seed.</p>"
        )
    if log:
        parts.append(_picture(loss_chart([line["step"] for line in log], [line["loss"] for line in log]), "loss curve"))
    if samples.is_file():
        parts.append("<p>Samples of the network for each label. They should look like the slices above; the more they ")
        parts.append("look like noise, the less the masks can be trusted.</p>")
        parts.append(_picture(samples.read_bytes(), "samples of each label"))
    return "".join(parts)


def loss_chart(steps: Sequence[int], losses: Sequence[float]) -> bytes:
    """The loss of each line of the log, and its running median."""
    smooth = [float(np.median(losses[max(0, n - SMOOTHED) : n + 1])) for n in range(len(losses))]
    lines = [
        Line(steps, losses, MUTED, "loss", dots=len(losses) < SMOOTHED, width=1),
        Line(steps, smooth, BLUE, "running median"),
    ]
    highest = float(np.quantile(losses, 0.98)) * 1.1
    lines = [Line(one.x, np.minimum(one.y, highest), one.colour, one.name, one.dots, width=one.width) for one in lines]
    return encode_png(chart(lines, "Training loss", size=(720, 280), xlabel="step", ylim=(0.0, highest or 1.0)))


def _calibration_section(config: FitConfig, result: FitResult) -> str:
    calibration, figure = result.calibration, config.out / FIGURE
    scored = ", ".join(calibration.modalities[channel] for channel in calibration.settings.channels)
    picture = _picture(figure.read_bytes(), "calibration", wide=True) if figure.is_file() else ""
    return f"""<h2>Calibration</h2>
<p>Guidance strength {calibration.strength:g}; maps of {html.escape(str(calibration.settings.signal))}; scored
modalities: {html.escape(scored)}. Chosen by {calibration.n_healthy} healthy and {calibration.n_unhealthy} unhealthy
slices of {calibration.n_patients} patients{estimated_note(calibration.n_estimated)}.</p>{picture}
"""


def _abilities_section(abilities: Abilities, result: FitResult) -> str:
    parts = ["<h2>What the model can and cannot tell apart</h2>"]
    parts += [f"<p>{html.escape(abilities.verdict)}</p>"]
    parts += [f'<p class="warning">{html.escape(text)}</p>' for text in abilities.warnings]
    if result.student_problem:
        parts.append(f'<p class="warning">There is no student: {html.escape(result.student_problem)}.</p>')
    parts.append(
        "<p>Healthy against unhealthy slices of validation patients, each rated by a detector that was fitted without "
        f"its patient ({abilities.n_healthy} healthy, {abilities.n_unhealthy} unhealthy slices):</p>"
    )
    rows = [(one.name, _number(one.accuracy), _number(one.auc)) for one in abilities.detectors]
    parts.append(_table(("detector", "accuracy", "AUC"), rows))
    if abilities.found:
        parts.append(
            "<p>The same slices as <code>anofpdm segment</code> decides on them, with a detector fitted on all:</p>"
        )
        parts.append(_table(("slices", "number", "called unhealthy"), abilities.found))
    if abilities.by_burden:
        groups = [
            (f"{group.smallest_mm2:.0f} to {group.largest_mm2:.0f}", group.slices, _share(group.detected, group.slices))
            for group in abilities.by_burden
        ]
        parts.append("<p>Slices with a lesion, by its area in the slice (masks are used here only):</p>")
        parts.append(_table(("lesion area, mm²", "slices", "detected"), groups))
    else:
        parts.append("<p>Detection by lesion size is not known, because no lesion masks were given.</p>")
    return "".join(parts)


def _next_steps(config: FitConfig, result: FitResult) -> str:
    out, source = shlex.quote(str(config.out)), shlex.quote(str(config.data.source))
    part = Split.TEST if len(result.cohort.rows(Split.TEST)) else Split.VAL
    commands = {
        "Segment new scans, and look at the masks:": f"anofpdm segment {out} SCANS --out masks\nanofpdm view masks",
        f"Segment scans of the {part} split:": (
            f"anofpdm segment {out} {shlex.quote(str(config.cohort))} --split {part} --out masks_{part}"
        ),
        "Train longer; the calibration and the student are then made again:": _longer(config, out, source),
    }
    if result.cohort.has_mask.any():
        commands[f"Compare with lesion masks of the {part} split:"] = (
            f"anofpdm evaluate {out} {shlex.quote(str(config.cohort))} --split {part} --out scores"
        )
    blocks = [f"<p>{html.escape(text)}</p><pre>{html.escape(command)}</pre>" for text, command in commands.items()]
    return "<h2>Next steps</h2>" + "".join(blocks)


def _longer(config: FitConfig, out: str, source: str) -> str:
    data, budget = config.data, config.budget
    words = ["anofpdm fit", source, f"--out {out}", f"--layout {data.layout}"]
    options: dict[str, Path | str | None] = {"--labels": data.labels, "--split": data.split}
    options |= {"--modalities": ",".join(data.modalities), "--score": ",".join(config.score)}
    words += [f"{name} {shlex.quote(str(value))}" for name, value in options.items() if value]
    words += [f"--size {data.size}"] if data.size != type(data).size else []
    words += [f"--raw {data.raw}"] if data.raw != type(data).raw else []
    words += [f"--preset {config.preset}"] if config.preset != type(config).preset else []
    words += [f"--seed {config.seed}"] if config.seed else []
    longer = f"--steps {2 * (budget.steps or 0)}" if budget.minutes is None else f"--minutes {2 * budget.minutes:g}"
    return " ".join([*words, longer])


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    cells = "".join(f"<tr>{''.join(f'<td>{html.escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{html.escape(name)}</th>' for name in head)}</tr>{cells}</table>"


def _list(lines: Iterable[str]) -> str:
    return "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in lines) + "</ul>"


def _picture(png: bytes, text: str, *, wide: bool = False) -> str:
    image = f'<img src="data:image/png;base64,{base64.b64encode(png).decode()}" alt="{html.escape(text)}">'
    return f'<div class="wide" tabindex="0">{image}</div>' if wide else image


def _number(value: float) -> str:
    return "unknown" if math.isnan(value) else f"{value:.3f}"


def _share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.0%})" if whole else "0"
