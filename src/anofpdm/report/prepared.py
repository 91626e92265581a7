"""The section of a report that shows how a raw study was registered and stripped."""

import base64
import html
from collections.abc import Mapping
from typing import Any

from anofpdm.report import wording
from anofpdm.report.display import SegmentedScan

COLUMNS = ("Series", "File", "Brain", "Registration", "Brain masks agree", "Seconds")
ADVICE = (
    "Check before you trust the mask: on every series, the orange edges of the reference must follow the same borders, "
    "and the blue outline must enclose the whole brain and nothing else."
)


def render_preparation(result: SegmentedScan) -> str:
    """Empty where the scan was used as it is."""
    study = result.summary.get("study")
    if not study:
        return ""
    reference = str(study["reference"])
    lead = f"{len(study['series'])} series on one grid; the reference is {reference.upper()}."
    if study.get("template"):
        lead += (
            f" Registered to {study['template']['name']}: brains overlap by {study['template']['overlap']:.2f} (DICE)."
        )
    rows = "".join(_render_row(name, one, reference) for name, one in study["series"].items())
    head = "".join(f'<th scope="col">{name}</th>' for name in COLUMNS)
    return (
        '<section id="preparation" aria-labelledby="preparation-title">'
        '<h2 id="preparation-title">Registration and brain mask</h2>'
        f"<p>{html.escape(lead)} {ADVICE}</p>"
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
        f"{''.join(_render_picture(name, png, reference) for name, png in result.pictures.items())}</section>"
    )


def _render_row(name: str, one: Mapping[str, Any], reference: str) -> str:
    agreement = one.get("agreement")
    cells = (
        name.upper(),
        wording.file_name(str(one["file"])),
        f"{one['brain_ml']:.0f} ml",
        describe_registration(one.get("registration"), reference),
        wording.UNDEFINED if agreement is None else f"{agreement['dice']:.2f} (DICE)",
        f"{sum(one['seconds'].values()):.1f}" + (" (reused)" if one["reused"] else ""),
    )
    return f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in cells)}</tr>"


def describe_registration(registration: Mapping[str, Any] | None, reference: str) -> str:
    if registration is None:
        return "reference"
    if registration["kept"]:
        return f"position in the header fits {reference.upper()}, kept"
    return f"moved by {registration['moved_mm']:.1f} mm, rotated by {registration['rotated_degrees']:.1f}\u00b0"


def _render_picture(name: str, png: bytes, reference: str) -> str:
    edges = "" if name == reference else f", edges of {reference.upper()}"
    described = html.escape(f"Planes of {name.upper()} with the outline of the brain mask{edges}")
    source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
    return f'<div class="scroll"><img class="planes" alt="{described}" src="{source}"></div>'
