"""Sentences, numbers and file names as the report shows them."""

import math
import shlex
from collections.abc import Iterable, Iterator

from anofpdm.method.decision import Decisions
from anofpdm.report.display import DisplayData
from anofpdm.util.text import file_name

DIRECTIONS = (("right", "left"), ("anterior", "posterior"), ("superior", "inferior"))
UNDEFINED = "-"
STUDENT_THRESHOLD = 0.5  # lesion probability; a student lowers it in faint lesions, and where too few pixels reach it


# ---- numbers ---------------------------------------------------------------------------------------------------------


def format_number(value: float, spec: str = ".3g") -> str:
    return format(value, spec) if math.isfinite(value) else UNDEFINED


def format_range(lowest: float, highest: float) -> str:
    low, high = format_number(lowest), format_number(highest)
    return f"{low} to {high}" if lowest < highest and low != high else low


def format_millilitres(value: float) -> str:
    return f"{format_number(value, '.1f' if value >= 1 else '.2g')} ml"


# ---- findings --------------------------------------------------------------------------------------------------------


def distances(position_mm: Iterable[float], oriented: bool) -> Iterator[tuple[str, str]]:
    """Millimetres along each axis, and the direction; empty where right and left cannot be told apart."""
    for axis, at in enumerate(position_mm):
        yield format_number(abs(at), ".0f"), DIRECTIONS[axis][at < 0] if oriented or axis else ""


# ---- a slice ---------------------------------------------------------------------------------------------------------


def describe_decision(row: int, decisions: Decisions, display: DisplayData) -> str:
    """Why a slice was classified as it was, and how its mask was made."""
    classified = _describe_class(row, decisions, display)
    evidence, end = decisions.evidence, ""
    if evidence is not None and (entry := evidence.index(row)) is not None:
        end_step = format_number(evidence.end_step[entry], ".0f")
        end = f"Guided and unguided estimate differ most at noise level t_e = {end_step}."
    mask = _describe_mask(row, decisions, display)
    sentences = (classified, end, mask) if decisions.detected[row] else (classified, mask, end)
    return " ".join(filter(None, sentences))


def _describe_class(row: int, decisions: Decisions, display: DisplayData) -> str:
    detector = display.rules.decision.detector
    if detector == "none":
        return "No slice detector was used, so the slice is treated as unhealthy."
    unhealthy = bool(decisions.detected[row])
    classified = f"Classified as {'unhealthy' if unhealthy else 'healthy'}"
    if detector == "cosine":
        side = "at or below" if unhealthy else "above"
        similarity = format_number(decisions.measured.similarity[row], ".5f")
        cut = format_number(display.rules.cosine_cut, ".5f")
        return f"{classified}: cosine similarity of the two error curves {similarity}, {side} the threshold {cut}."
    side = "at or above" if unhealthy else "below"
    return f"{classified}: log odds {format_number(decisions.score[row], '.2f')}, {side} the threshold 0."


def _describe_mask(row: int, decisions: Decisions, display: DisplayData) -> str:
    if not decisions.detected[row]:
        return "Its mask is empty."
    threshold = format_range(decisions.threshold[row], decisions.highest_threshold[row])
    threshold = f"{threshold} ({_describe_threshold(row, decisions, display)})"
    area = decisions.masks[row].sum() * display.pixel_mm**2
    if not area:
        return f"Its mask is empty: no region where the anomaly map is at least {threshold} is large enough."
    mm2 = format_number(area, ".0f")
    return f"The mask is where the anomaly map is at least {threshold}; its area is {mm2} mm\u00b2."


def _describe_threshold(row: int, decisions: Decisions, display: DisplayData) -> str:
    threshold, rules = decisions.threshold[row], display.rules
    if rules.threshold_chosen:
        return "lesion probability, chosen with --threshold-probability"
    if rules.engine == "student":
        if threshold < decisions.highest_threshold[row]:
            return "lesion probability, lower where a lesion is faint"
        faint = f"lowered from {STUDENT_THRESHOLD:g}, as the lesion is faint or small in this slice"
        return faint if threshold < STUDENT_THRESHOLD else "lesion probability"
    settings = rules.decision.mask
    peak = settings.peak_share * decisions.maps[row].max()
    if settings.peak_share and math.isclose(threshold, peak, rel_tol=1e-6):
        return f"{settings.peak_share:.0%} of the maximum in the slice"
    quantile = f"quantile {format_number(decisions.measured.quantile[row], '.2f')} of the slice"
    return {
        "quantile": quantile,
        "healthy": "calibrated on slices labelled healthy",
        "both": f"geometric mean of the {quantile} and the threshold calibrated on slices labelled healthy",
    }.get(settings.threshold, "its threshold")


# ---- file names ------------------------------------------------------------------------------------------------------


def remove_command_folders(command: str) -> str:
    """A setting without folders: a hash, or the command that made a brain mask."""
    try:
        arguments = shlex.split(command)
    except ValueError:
        arguments = command.split()
    return " ".join(file_name(argument) for argument in arguments)
