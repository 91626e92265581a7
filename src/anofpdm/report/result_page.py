"""The report of a segmented scan: one self-contained HTML file that loads nothing from the network."""

import math

from anofpdm.report import wording
from anofpdm.report.display import DisplayData, SegmentedScan
from anofpdm.report.page_data import build_page_data, encode_sheets
from anofpdm.report.render import render
from anofpdm.report.summary import flatten_settings
from anofpdm.scans import Grid
from anofpdm.util.text import count_noun, file_name


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
        warnings=summary.public_warnings(),
        analysed=_describe_range(display, result.grid),
        explained=display.numbers[evidence.rows].tolist() if evidence is not None and explained else [],
        settings={name.replace(".", " "): _format_setting(value) for name, value in flatten_settings(summary.settings)},
        count_noun=count_noun,
        file_name=file_name,
        sheets=encode_sheets(result, data["map_maximum"]),
    )
    return page.encode(errors="replace")  # file names may not be UTF-8


def _describe_range(display: DisplayData, grid: Grid) -> str:
    """Slices with too little brain are not analysed."""
    numbers, planes = display.numbers, display.space.grid
    slices = f"slices {numbers[0]} to {numbers[-1]}" if len(numbers) > 1 else f"slice {numbers[0]}"
    apart = f", {planes.slice_mm:.3g} mm apart" if not math.isclose(planes.slice_mm, grid.slice_mm) else ""
    return f"{slices} of {planes.shape[planes.axial_axis]}{apart}"


def _format_setting(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    if isinstance(value, str):
        return wording.remove_command_folders(value)
    return wording.UNDEFINED if value is None else str(value)
