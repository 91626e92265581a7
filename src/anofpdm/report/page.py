"""The report of a segmented scan: one HTML file that holds everything and asks nothing of the network."""

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Mapping
from importlib import resources
from string import Template
from typing import Any

from anofpdm.report import wording
from anofpdm.report.display import DisplayData, SegmentedScan
from anofpdm.report.page_data import axial_axis, build_page_data
from anofpdm.report.sheets import data_uri, grey_sheet, heat_sheet, mask_sheet

POLICY = "default-src 'none'; script-src '{script}'; style-src '{style}'; img-src data:; base-uri 'none'"
SHORT = 12  # letters of a hash that are enough to tell it apart
ENGINES = {"diffusion": "the diffusion model", "student": "the student network"}


def render_report(result: SegmentedScan, title: str) -> bytes:
    """Nothing but what is passed in ends up in it: equal results give equal bytes."""
    style, script = _piece("page.css"), _piece("charts.js") + _piece("page.js")
    data = build_page_data(result)
    parts = {
        "policy": POLICY.format(script=_fingerprint(script), style=_fingerprint(style)),
        "title": html.escape(title),
        "warnings": _warnings(result.summary),
        "found": _found(result),
        "figures": _figures(result),
        "identity": _identity(result),
        "panels": _panels(result.display),
        "curves": _curves(result.display) + _neighbours(result.summary["settings"]),
        "score": _score(data["score"]),
        "findings": _findings(result, data["findings"]),
        "settings": _settings(result.summary),
        "made_by": _made_by(result.summary["settings"]),
        "sheets": _sheets(result, data["highest"]),
        "data": script_safe(data),
        "style": style,
        "script": script,
    }
    return Template(_piece("page.html")).substitute(parts).encode(errors="replace")  # names on disk may be no text


def script_safe(data: Mapping[str, Any]) -> str:
    """JSON that no HTML parser can mistake for the end of its element."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))  # ASCII: all else is escaped
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _piece(name: str) -> str:
    return (resources.files("anofpdm.report") / name).read_text(encoding="utf-8")


def _fingerprint(text: str) -> str:
    """By which a policy knows the one script, the one style sheet, that may be used."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


# ---- the scan --------------------------------------------------------------------------------------------------------


def _warnings(summary: Mapping[str, Any]) -> str:
    files = [one["file"] for one in summary["inputs"].values()]
    said = [html.escape(wording.without_folders(text, files)) for text in summary["warnings"]]
    if not said:
        return ""
    items = "".join(f"<li>{one}</li>" for one in said)
    return (
        f'<section class="warning" aria-label="Warnings"><h2>Warning: look at this first</h2><ul>{items}</ul></section>'
    )


def _found(result: SegmentedScan) -> str:
    first, *rest = (html.escape(sentence) for sentence in wording.what_was_found(result))
    return f"<strong>{first}</strong> {' '.join(rest)}"


def _figures(result: SegmentedScan) -> str:
    detected, count = int(result.decisions.detected.sum()), len(result.decisions.detected)
    largest = wording.millilitres(result.findings[0].volume_ml) if result.findings else wording.UNDEFINED
    named = {
        "Volume": wording.millilitres(result.volume_ml),
        "Findings": str(len(result.findings)),
        "Largest finding": largest,
    }
    asked = result.summary["settings"].get("detector") != "none"
    slices = {"Slices called unhealthy": f"{detected} of {count}"} if asked else {"Slices looked at": str(count)}
    return _pairs({**named, **slices})


def _identity(result: SegmentedScan) -> str:
    grid, engine = result.grid, result.display.engine
    shape, spacing = " x ".join(map(str, grid.shape)), " x ".join(f"{edge:.3g}" for edge in grid.spacing_mm)
    named = {name.upper(): wording.file_name(one["file"]) for name, one in result.summary["inputs"].items()}
    named["Grid"] = f"{shape} voxels, {spacing} mm each"
    named["Looked at"] = _looked_at(result)
    named["Scored"] = ", ".join(name.upper() for name in result.display.modalities)
    named["Masks drawn by"] = ENGINES.get(engine, engine)
    return _pairs(named)


def _looked_at(result: SegmentedScan) -> str:
    """Slices with too little brain are left out."""
    indices, axis = result.display.indices, axial_axis(result.grid)[0]
    some = f"slices {indices[0]} to {indices[-1]}" if len(indices) > 1 else f"slice {indices[0]}"
    return f"{some}, of {result.grid.shape[axis]}"


def _pairs(named: Mapping[str, str]) -> str:
    return "".join(f"<div><dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd></div>" for k, v in named.items())


def _settings(summary: Mapping[str, Any]) -> str:
    rows = dict(_flat("", summary["settings"]))
    rows |= {f"{name} sha256": one["sha256"] for name, one in summary["inputs"].items()}
    rows["seconds"] = str(summary.get("seconds", wording.UNDEFINED))
    return _pairs(rows)


def _made_by(settings: Mapping[str, Any]) -> str:
    said = f"anofpdm {settings.get('anofpdm', wording.UNDEFINED)}"
    for name in ("model", "calibration"):
        said += f", {name} {str(settings.get(f'{name}_sha256', wording.UNDEFINED))[:SHORT]}"
    return html.escape(said)


def _flat(before: str, value: Any) -> Iterable[tuple[str, str]]:
    """Settings, one line each: what is inside another is named after it."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _flat(f"{before} {name}".strip(), inner)
    elif isinstance(value, list | tuple):
        yield before, ", ".join(map(str, value))
    elif isinstance(value, str):
        yield before, wording.command_without_folders(value)
    else:
        yield before, wording.UNDEFINED if value is None else str(value)


# ---- slices ----------------------------------------------------------------------------------------------------------


def _sheets(result: SegmentedScan, highest: float) -> str:
    display, decisions = result.display, result.decisions
    pictures = {str(number): grey_sheet(display.pixels[:, number]) for number in range(len(display.modalities))}
    pictures |= {"map": heat_sheet(decisions.maps, highest), "mask": mask_sheet(decisions.masks)}
    return "\n".join(
        f'<img hidden alt="" data-sheet="{name}" src="{data_uri(picture)}">' for name, picture in pictures.items()
    )


def _panels(display: DisplayData) -> str:
    names = {str(number): name.upper() for number, name in enumerate(display.modalities)}
    return "\n".join(_panel(sheet, name) for sheet, name in {**names, "map": "Anomaly map"}.items())


def _panel(sheet: str, name: str) -> str:
    sides = "".join(f'<span class="side {side}" aria-hidden="true"></span>' for side in ("west", "east", "north"))
    name = html.escape(name)
    return (
        f'<figure><div class="frame"><canvas class="panel" data-sheet="{sheet}" data-name="{name}" role="img" '
        f'width="512" height="512"></canvas>{sides}</div><figcaption>{name}{_scale(sheet)}</figcaption></figure>'
    )


def _scale(sheet: str) -> str:
    """From black to white, and where the slice's threshold lies."""
    if sheet != "map":
        return ""
    return (
        '<span class="scale" aria-hidden="true"><span>0</span><span class="bar"><span id="threshold-mark"></span>'
        '</span><span id="highest"></span></span>'
    )


def _curves(display: DisplayData) -> str:
    if display.curves is None:
        engine = html.escape(ENGINES.get(display.engine, display.engine))
        return f'<p class="quiet" id="no-curves">There are no curves: {engine} looks at each slice once.</p>'
    charts = "".join(
        f'<figure class="chart"><figcaption>{caption}</figcaption><svg id="{name}" role="img"></svg></figure>'
        for name, caption in CHARTS.items()
    )
    if display.curves.explained is None:
        return charts
    numbers = [str(index) for index in display.indices[display.curves.explained]]
    some = f"slice{'s' if len(numbers) > 1 else ''} {', '.join(numbers)}"
    said = f"Masks are the student's. The diffusion model was asked about {some}; its curves are shown there."
    return f'{charts}<p class="quiet" id="explained">{said}</p>'


def _neighbours(settings: Mapping[str, Any]) -> str:
    context = settings.get("choices", {}).get("context_mm", 0.0)
    if not context:
        return ""
    return f'<p class="quiet">Map and decision also took in neighbouring slices, within about {context:g} mm.</p>'


def _score(score: Mapping[str, Any]) -> str:
    name = f"{html.escape(score['name'])} along the head"
    if score["cut"] is None:
        return name
    side = "at or below" if score["detector"] == "cosine" else "at or above"
    return f'{name}; unhealthy {side} the <span class="key cut">cut of {score["cut"]:.{score["digits"]}g}</span>'


CHARTS = {
    "errors": 'Error of the two estimates: <span class="key guided">guided to healthy</span>, '
    '<span class="key unguided">unguided</span>',
    "divergence": "How far guidance moves the estimate, <var>M<sub>t</sub></var>",
}


# ---- findings --------------------------------------------------------------------------------------------------------


def _findings(result: SegmentedScan, places: list[dict[str, Any]]) -> str:
    if not result.findings:
        return "<p>There are none.</p>"
    known = wording.sides_known(result)
    rows = []
    for finding, place in zip(result.findings, places, strict=True):
        cells = (
            str(finding.number),
            wording.millilitres(finding.volume_ml),
            wording.centre_in_letters(finding.centre_mm, known),
            wording.number(finding.peak),
        )
        jump = f'<button type="button" class="jump" data-row="{place["row"]}">slice {place["slice"]}</button>'
        rows.append(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}<td>{jump}</td></tr>")
    heads = ("No.", "Volume", "Centre in mm", "Peak of map", "Slice")
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
