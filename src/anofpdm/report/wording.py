"""What a page says of a scan, in short sentences."""

import math
import re
import shlex
from collections.abc import Iterable
from typing import Any

from anofpdm.method.decision import Decisions
from anofpdm.report.display import DisplayData, SegmentedScan
from anofpdm.report.findings import Finding

SIDES = (("right", "left"), ("anterior", "posterior"), ("superior", "inferior"))
UNDEFINED = "-"
FOLDERS = re.compile(r"(?:(?<=[\s\"'(=])|^)(?:~|[A-Za-z]:)?[/\\](?:[^\s/\\]*[/\\])*")


# ---- numbers ---------------------------------------------------------------------------------------------------------


def number(value: float, shape: str = ".3g") -> str:
    return format(value, shape) if math.isfinite(value) else UNDEFINED


def millilitres(value: float) -> str:
    return f"{number(value, '.1f' if value >= 1 else '.2g')} ml"


def counted(count: int, one: str) -> str:
    return f"{count} {one}" if count == 1 else f"{count} {one}s"


# ---- the scan --------------------------------------------------------------------------------------------------------


def what_was_found(result: SegmentedScan) -> list[str]:
    """One sentence each: slices, volume, the largest finding."""
    said = [_slices_called(result)]
    if not result.findings:
        return ["Nothing was found.", *said, *_called_and_yet_empty(result)]
    one = len(result.findings) == 1
    said.append(f"The mask holds {millilitres(result.volume_ml)}, in {counted(len(result.findings), 'finding')}.")
    largest = result.findings[0]
    place = f"centre lies {centre_in_words(largest, sides_known(result))} of the scanner's origin."
    said.append(f"Its {place}" if one else f"The largest has {millilitres(largest.volume_ml)}; its {place}")
    return said


def _slices_called(result: SegmentedScan) -> str:
    detected, count = int(result.decisions.detected.sum()), len(result.decisions.detected)
    if result.summary["settings"].get("detector") == "none":
        return f"No detector was asked: {'all ' if count > 1 else ''}{counted(count, 'slice')} counted as unhealthy."
    if not detected:
        return f"None of {counted(count, 'slice')} was called unhealthy."
    was = "was" if detected == 1 else "were"
    return f"{detected} of {counted(count, 'slice')} {was} called unhealthy."


def _called_and_yet_empty(result: SegmentedScan) -> list[str]:
    called = bool(result.decisions.detected.any())
    return ["Even so, nothing in the maps was large enough to be drawn."] if called else []


def centre_in_words(finding: Finding, known: bool) -> str:
    """32 mm right, 14 mm anterior and 21 mm superior."""
    across, along, up = (_side(at, axis) for axis, at in enumerate(finding.centre_mm))
    if not known:
        across = f"{number(abs(finding.centre_mm[0]), '.0f')} mm to a side that the file does not tell"
    return f"{across}, {along} and {up}"


def _side(at: float, axis: int) -> str:
    return f"{number(abs(at), '.0f')} mm {SIDES[axis][at < 0]}"


def centre_in_letters(place: Iterable[float], known: bool) -> str:
    """32 R, 14 A, 21 S."""
    letters = [f"{number(abs(at), '.0f')} {SIDES[axis][at < 0][0].upper()}" for axis, at in enumerate(place)]
    if not known:
        letters[0] = f"{letters[0][:-1]}?"
    return ", ".join(letters)


def sides_known(result: SegmentedScan) -> bool:
    """Without an orientation in its header, a file does not tell left from right."""
    header = result.grid.header
    return bool(int(header["sform_code"]) or int(header["qform_code"]))


# ---- a slice ---------------------------------------------------------------------------------------------------------


def decision(row: int, decisions: Decisions, display: DisplayData, settings: dict[str, Any]) -> str:
    """Why this slice was called what it was called, and what its mask is."""
    called = _called(row, decisions, display, settings.get("detector", ""))
    end = number(decisions.end_step[row], ".0f")
    known = display.curves is not None and display.curves.has(row)
    moved = f"Guidance moved the estimate most at t_e = {end}." if known else ""
    drawn = _drawn(row, decisions, display, settings)
    said = (called, moved, drawn) if decisions.detected[row] else (called, drawn, moved)
    return " ".join(filter(None, said))


def _called(row: int, decisions: Decisions, display: DisplayData, detector: str) -> str:
    if detector == "none":
        return "No detector was asked, so the slice counts as unhealthy."
    unhealthy = bool(decisions.detected[row])
    called = "Called unhealthy" if unhealthy else "Called healthy"
    if detector == "cosine":
        beside = "at or below" if unhealthy else "above"
        similarity, cut = number(decisions.similarity[row], ".5f"), number(display.cosine_cut, ".5f")
        return f"{called}: the cosine of its two error curves is {similarity}, {beside} the cut of {cut}."
    name = "log odds" if detector == "curve" else "score"
    return f"{called}: {name} {number(decisions.score[row], '.2f')}, cut 0."


def _drawn(row: int, decisions: Decisions, display: DisplayData, settings: dict[str, Any]) -> str:
    if not decisions.detected[row]:
        return "Its mask is left empty."
    threshold = f"{number(decisions.threshold[row])} ({_from_where(row, decisions, settings)})"
    area = decisions.masks[row].sum() * display.pixel_mm**2
    if not area:
        return f"No large enough part of the map reaches {threshold}, so its mask is empty."
    return f"The mask is where the map is at least {threshold}; it covers {number(area, '.0f')} mm\u00b2."


EVEN = 0.5  # chance of lesion at which a student cuts, if enough pixels reach it


def _from_where(row: int, decisions: Decisions, settings: dict[str, Any]) -> str:
    if settings.get("engine") == "student":
        lowered = decisions.threshold[row] < EVEN
        return f"below {EVEN:g}, which too few pixels reach" if lowered else "even odds"
    quantile = f"its quantile {number(decisions.quantile[row], '.2f')}"
    mask = settings.get("choices", {}).get("mask", {})
    chosen, share = mask.get("threshold", ""), mask.get("peak_share", 0.0)
    if share and math.isclose(decisions.threshold[row], share * decisions.maps[row].max(), rel_tol=1e-6):
        return f"{share:.0%} of the slice's highest value"
    return {
        "quantile": quantile,
        "healthy": "from slices labelled healthy",
        "both": f"the geometric mean of {quantile} and what slices labelled healthy gave",
    }.get(chosen, "its threshold")


# ---- names without folders -------------------------------------------------------------------------------------------


def file_name(path: str) -> str:
    """The last part of a path of any system."""
    return re.split(r"[/\\]", path)[-1]


def without_folders(text: str, files: Iterable[str] = ()) -> str:
    """A sentence, with the folders of files taken away: pages are passed on, and folders name people."""
    for path in sorted(files, key=len, reverse=True):
        text = text.replace(path, file_name(path))
    where, colon, rest = text.partition(": ")
    return FOLDERS.sub("", f"{file_name(where)}{colon}{rest}" if colon else text)


def command_without_folders(text: str) -> str:
    """What settings say of a brain mask: a hash, or a command in the user's own words."""
    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    return " ".join(file_name(word) for word in words)
