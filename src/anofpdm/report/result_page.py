"""The report of a segmented scan: one self-contained HTML file that loads nothing from the network."""

import math
from collections.abc import Mapping
from typing import Any

from anofpdm.report import wording
from anofpdm.report.display import SegmentedScan
from anofpdm.report.page_data import build_page_data, encode_sheets
from anofpdm.report.render import render
from anofpdm.report.summary import Summary, flatten_settings
from anofpdm.util.text import file_name

SHORT_HASH = 12
ENGINES = {"diffusion": "diffusion model", "student": "student network"}


def render_report(result: SegmentedScan, title: str) -> bytes:
    """Deterministic: equal results give equal bytes."""
    data, display, summary = build_page_data(result), result.display, result.summary
    evidence = result.decisions.evidence
    explained = evidence is not None and len(evidence.rows) < len(display.indices)
    page = render(
        "result.html",
        title=title,
        result=result,
        data=data,
        finding_rows=display.space.central_rows(result.findings, display.indices),
        wording=wording,
        engine=_engine(result),
        warnings=summary.public_warnings(),
        sentences=wording.describe_scan(result),
        estimate=wording.describe_estimate(result.estimated_dice),
        figures=_figures(result),
        identity=_identity(result),
        explained=display.numbers[evidence.rows].tolist() if evidence is not None and explained else [],
        context_mm=display.rules.context_mm,
        settings=_settings(summary),
        provenance=_provenance(summary.settings),
        sheets=encode_sheets(result, data["map_maximum"]),
    )
    return page.encode(errors="replace")  # file names may not be UTF-8


def _figures(result: SegmentedScan) -> dict[str, str]:
    detected, count = result.summary.slices_detected, result.summary.slices
    figures = {
        "Lesion volume": wording.format_millilitres(result.volume_ml),
        "Findings": str(len(result.findings)),
        "Largest finding": wording.format_millilitres(result.findings[0].volume_ml) if result.findings else "-",
    }
    figures |= (
        {"Unhealthy slices": f"{detected} of {count}"}
        if result.display.rules.detects
        else {"Analysed slices": str(count)}
    )
    if math.isfinite(result.estimated_dice):
        figures["Expected DICE"] = f"about {result.estimated_dice:.2f}"
    return figures


def _identity(result: SegmentedScan) -> dict[str, str]:
    grid, display = result.grid, result.display
    pairs = {name.upper(): file_name(source.file) for name, source in result.summary.inputs.items()}
    if missing := result.summary.missing_modalities:
        pairs["Missing modalities"] = ", ".join(missing).upper()
    spacing = " x ".join(f"{edge:.3g}" for edge in grid.spacing_mm)
    pairs["Grid"] = f"{' x '.join(map(str, grid.shape))} voxels of {spacing} mm"
    numbers = display.numbers  # slices with too little brain are not analysed
    slices = f"slices {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"slice {numbers[0]}"
    planes = display.space.grid
    apart = f", {planes.slice_mm:.3g} mm apart" if not math.isclose(planes.slice_mm, grid.slice_mm) else ""
    pairs["Analysed"] = f"{slices} of {planes.shape[planes.axial_axis]}{apart}"
    pairs["Scored modalities"] = ", ".join(display.modalities).upper()
    pairs["Masks made by"] = _engine(result)
    return pairs


def _engine(result: SegmentedScan) -> str:
    name = result.display.rules.engine
    return ENGINES.get(name, name)


def _settings(summary: Summary) -> dict[str, str]:
    rows = {name.replace(".", " "): _format_setting(value) for name, value in flatten_settings(summary.settings)}
    rows |= {f"{name} sha256": source.sha256 for name, source in summary.inputs.items()}
    return rows | {"seconds": wording.UNDEFINED if summary.seconds is None else str(summary.seconds)}


def _format_setting(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, str):
        return wording.remove_command_folders(value)
    return wording.UNDEFINED if value is None else str(value)


def _provenance(settings: Mapping[str, Any]) -> str:
    hashes = {name: settings.get(f"{name}_sha256") for name in ("model", "calibration")}  # a student has no calibration
    words = [f"{name} {digest[:SHORT_HASH]}" for name, digest in hashes.items() if digest]
    return ", ".join([f"anofpdm {settings.get('anofpdm', wording.UNDEFINED)}", *words])
