"""The report of a segmented scan: one self-contained HTML file that loads nothing from the network."""

import base64
import hashlib
import html
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from importlib import resources
from string import Template
from typing import Any

from anofpdm.report import wording
from anofpdm.report.display import DecisionRules, DisplayData, SegmentedScan, slice_space
from anofpdm.report.page_data import FindingData, Score, build_page_data, encode_sheets
from anofpdm.report.prepared import render_preparation

POLICY = "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; base-uri 'none'"
SHORT_HASH = 12
FINDING_COLUMNS = ("No.", "Volume", "Centre (mm)", "Map maximum", "Slice")
ENGINES = {"diffusion": "diffusion model", "student": "student network"}
CHARTS = {
    "errors": 'Mean squared error of the estimated clean slice: <span class="key guided">guided to healthy</span>, '
    '<span class="key unguided">unguided</span>',
    "divergence": "Divergence <var>M<sub>t</sub></var>: mean squared difference of the two estimates",
}
MAP_SCALE = (  # colour bar of the map, with a mark at the threshold of the slice
    '<span class="scale" aria-hidden="true" title="The mark is the lowest threshold in this slice"><span>0</span>'
    '<span class="bar"><span id="threshold-mark"></span></span><span id="map-maximum"></span></span>'
)


def render_report(result: SegmentedScan, title: str) -> bytes:
    """Deterministic: equal results give equal bytes."""
    style, script = _read_asset("page.css"), _read_asset("charts.js") + _read_asset("page.js")
    data = build_page_data(result)
    rules = DecisionRules.from_settings(result.summary["settings"])
    parts = {
        "policy": POLICY.format(script=_csp_hash(script), style=_csp_hash(style)),
        "title": html.escape(title),
        "warnings": _render_warnings(result.summary),
        "summary": _render_summary(result),
        "figures": _render_figures(result, rules),
        "estimate": _render_estimate(result.estimated_dice),
        "identity": _render_identity(result),
        "preparation": render_preparation(result),
        "panels": _render_panels(result.display),
        "sides": " They are seen from the feet: the patient's right (R) is on the left."
        if result.grid.oriented
        else "",
        "curves": _render_curves(result.display),
        "notes": _render_notes(result.display, rules),
        "score": _render_score(data.score),
        "findings": _render_findings(result, data.findings),
        "settings": _render_settings(result.summary),
        "provenance": _render_provenance(result.summary["settings"]),
        "sheets": _render_sheets(result, data.map_maximum or 0.0),
        "data": encode_script_json(asdict(data)),
        "style": style,
        "script": script,
    }
    return Template(_read_asset("page.html")).substitute(parts).encode(errors="replace")  # file names may not be UTF-8


def encode_script_json(data: Mapping[str, Any]) -> str:
    """JSON that cannot end the script element it is in."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))  # ASCII: everything else is escaped
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _read_asset(name: str) -> str:
    return (resources.files("anofpdm.report") / name).read_text(encoding="utf-8")


def _csp_hash(text: str) -> str:
    """Hash by which the Content-Security-Policy allows this script or style sheet only."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


# ---- the scan --------------------------------------------------------------------------------------------------------


def _render_warnings(summary: Mapping[str, Any]) -> str:
    files = [source["file"] for source in summary["inputs"].values()]
    items = "".join(f"<li>{html.escape(wording.remove_folders(text, files))}</li>" for text in summary["warnings"])
    if not items:
        return ""
    heading = "<h2>Warnings: check these first</h2>"
    return f'<section class="warning" aria-label="Warnings">{heading}<ul>{items}</ul></section>'


def _render_summary(result: SegmentedScan) -> str:
    first, *rest = (html.escape(sentence) for sentence in wording.describe_scan(result))
    return f"<strong>{first}</strong> {' '.join(rest)}"


def _render_figures(result: SegmentedScan, rules: DecisionRules) -> str:
    detected, count = int(result.decisions.detected.sum()), len(result.decisions.detected)
    largest = wording.format_millilitres(result.findings[0].volume_ml) if result.findings else wording.UNDEFINED
    figures = {
        "Lesion volume": wording.format_millilitres(result.volume_ml),
        "Findings": str(len(result.findings)),
        "Largest finding": largest,
    }
    slices = {"Unhealthy slices": f"{detected} of {count}"} if rules.detects else {"Analysed slices": str(count)}
    estimate = result.estimated_dice
    overlap = {"Expected DICE": f"about {estimate:.2f}"} if math.isfinite(estimate) else {}
    return _render_pairs({**figures, **slices, **overlap})


def _render_estimate(estimate: float) -> str:
    sentence = wording.describe_estimate(estimate)
    return f'<p class="quiet" id="estimate">{html.escape(sentence)}</p>' if sentence else ""


def _render_identity(result: SegmentedScan) -> str:
    grid, engine = result.grid, result.display.engine
    shape, spacing = " x ".join(map(str, grid.shape)), " x ".join(f"{edge:.3g}" for edge in grid.spacing_mm)
    pairs = {name.upper(): wording.file_name(source["file"]) for name, source in result.summary["inputs"].items()}
    if missing := result.summary.get("missing_modalities"):
        pairs["Missing modalities"] = ", ".join(name.upper() for name in missing)
    pairs["Grid"] = f"{shape} voxels of {spacing} mm"
    numbers = result.display.numbers  # slices with too little brain are not analysed
    slices = f"slices {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"slice {numbers[0]}"
    planes = slice_space(result).grid
    apart = f", {planes.slice_mm:.3g} mm apart" if not math.isclose(planes.slice_mm, grid.slice_mm) else ""
    pairs["Analysed"] = f"{slices} of {planes.shape[planes.axial_axis]}{apart}"
    pairs["Scored modalities"] = ", ".join(name.upper() for name in result.display.modalities)
    pairs["Masks made by"] = ENGINES.get(engine, engine)
    return _render_pairs(pairs)


def _render_pairs(pairs: Mapping[str, str]) -> str:
    return "".join(f"<div><dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd></div>" for k, v in pairs.items())


def _render_settings(summary: Mapping[str, Any]) -> str:
    rows = dict(_flatten("", summary["settings"]))
    rows |= {f"{name} sha256": source["sha256"] for name, source in summary["inputs"].items()}
    rows["seconds"] = str(summary.get("seconds", wording.UNDEFINED))
    return _render_pairs(rows)


def _render_provenance(settings: Mapping[str, Any]) -> str:
    words = [f"anofpdm {settings.get('anofpdm', wording.UNDEFINED)}"]
    hashes = {name: settings.get(f"{name}_sha256") for name in ("model", "calibration")}  # a student has no calibration
    words += [f"{name} {digest[:SHORT_HASH]}" for name, digest in hashes.items() if digest]
    return html.escape(", ".join(words))


def _flatten(prefix: str, value: Any) -> Iterable[tuple[str, str]]:
    """Settings as names and texts; nested settings are prefixed with the name of their parent."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flatten(f"{prefix} {name}".strip(), inner)
    elif isinstance(value, list | tuple):
        yield prefix, ", ".join(map(str, value))
    elif isinstance(value, str):
        yield prefix, wording.remove_command_folders(value)
    else:
        yield prefix, wording.UNDEFINED if value is None else str(value)


# ---- slices ----------------------------------------------------------------------------------------------------------


def _render_sheets(result: SegmentedScan, map_maximum: float) -> str:
    return "\n".join(
        f'<img hidden alt="" data-sheet="{name}" src="data:image/png;base64,{base64.b64encode(png).decode()}">'
        for name, png in encode_sheets(result, map_maximum).items()
    )


def _render_panels(display: DisplayData) -> str:
    modalities = [_render_panel(str(number), name.upper()) for number, name in enumerate(display.modalities)]
    return "\n".join([*modalities, _render_panel("map", "Anomaly map", MAP_SCALE)])


def _render_panel(sheet: str, name: str, scale: str = "") -> str:
    sides = "".join(f'<span class="side {side}" aria-hidden="true"></span>' for side in ("west", "east", "north"))
    name = html.escape(name)
    return (
        f'<figure><div class="frame"><canvas class="panel" data-sheet="{sheet}" data-name="{name}" role="img" '
        f'width="512" height="512"></canvas>{sides}</div><figcaption>{name}{scale}</figcaption></figure>'
    )


def _render_curves(display: DisplayData) -> str:
    charts = CHARTS if display.curves is not None else {}
    return "".join(
        f'<figure class="chart"><figcaption>{caption}</figcaption><svg id="{name}" role="img"></svg></figure>'
        for name, caption in charts.items()
    )


def _render_notes(display: DisplayData, rules: DecisionRules) -> str:
    notes = {}
    if display.curves is None:
        engine = ENGINES.get(display.engine, display.engine)
        notes["no-curves"] = f"No curves over noise levels: the {engine} predicts each slice in one step."
    elif display.curves.explained is not None:
        numbers = [str(number) for number in display.numbers[display.curves.explained]]
        curves = f"Curves of the diffusion model are shown for slice{'s' if len(numbers) > 1 else ''}"
        notes["explained"] = f"The masks were made by the student network. {curves} {', '.join(numbers)}."
    if rules.context_mm:
        sigma = f"sigma {rules.context_mm:g} mm"
        notes["smoothing"] = f"Anomaly maps and divergence curves are smoothed across slices ({sigma})."
    return "".join(f'<p class="quiet" id="{name}">{html.escape(note)}</p>' for name, note in notes.items())


def _render_score(score: Score) -> str:
    name = f"{html.escape(score.name)}, by slice"
    if score.threshold is None:
        return name
    side = "at or below" if score.detector == "cosine" else "at or above"
    return f'{name}; unhealthy {side} <span class="key threshold">threshold {score.threshold:.{score.digits}g}</span>'


# ---- findings --------------------------------------------------------------------------------------------------------


def _render_findings(result: SegmentedScan, positions: list[FindingData]) -> str:
    if not result.findings:
        return "<p>None.</p>"
    oriented = result.grid.oriented
    rows = []
    for finding, position in zip(result.findings, positions, strict=True):
        cells = (
            str(finding.number),
            wording.format_millilitres(finding.volume_ml),
            wording.format_position(finding.centre_mm, oriented),
            wording.format_number(finding.peak),
        )
        jump = f'<button type="button" class="jump" data-row="{position.row}">slice {position.slice}</button>'
        rows.append(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}<td>{jump}</td></tr>")
    head = "".join(f'<th scope="col">{name}</th>' for name in FINDING_COLUMNS)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
