"""Assign series to modalities by their names. Ambiguous series are never guessed; the user has to choose."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anofpdm.errors import ConfigError, ScanError
from anofpdm.scans.dicom.header import Label
from anofpdm.scans.dicom.series import Series
from anofpdm.scans.dicom.source import listed
from anofpdm.scans.modalities import InputModalities

# Series that are not used, by patterns in their names (with _ - . / replaced by spaces). The first match counts.
EXCLUDED = {
    "a localiser": r"\bloc\b|locali[sz]er|scout|survey|\b3 ?plane|autoalign|smart ?brain",
    "diffusion": r"\bdwi|\bdti|\bdiff|\badc|\btrace|\bep2d|tensor|\bb ?[1-9]\d{2,3}\b|\bfa map",
    "susceptibility": r"\bswi|\bswan|\bsw[pm]\b|t2 ?\*|t2 ?star|\bhemo|\bheme|\bminip\b|\bmip\b",
    "perfusion": r"perf|\bdsc\b|\bdce\b|\basl\b|r?cb[fv]\b|\bmtt\b|\bttp\b|\btmax\b|\bk ?trans\b",
    "angiography": r"\btof\b|\bmr[av]\b|angio|\bpca?\b|phase ?contrast|venogra",
    "spectroscopy": r"spectro|\bmrs\b|\bsvs\b|\bcsi\b",
    "functional": r"\bbold\b|fmri|\brest(ing)?\b",
    "a calibration": r"calibration|field ?map|\bb[01] ?map|\bshim|\basset\b|reference scan|\bcoil\b",
    "a parameter map": r"\bt[12]r? ?map|mapping|\bqsm\b|\bsub\b|subtract|\bcolou?r\b|\bfusion",
    "fat-suppressed inversion (STIR)": r"\bstir\b",
    "double inversion": r"\bdir\b|double inversion",
    "the spine": r"spine|spinal|cervical|thoracic|lumbar",
}
EXCLUDED_IMAGE_TYPES = {
    "ADC", "ASL", "B0 MAP", "CBF", "CBV", "CSA REPORT", "DIFFUSION", "FA", "LOCALIZER", "MIP", "MNIP", "MOSAIC", "MTT",
    "PERFUSION", "PHASE", "PHASE MAP", "PROJECTION IMAGE", "RELCBF", "RELCBV", "SUBTRACT", "SUBTRACTION", "SWI",
    "T1 MAP", "T2 MAP", "TENSOR", "TRACEW", "TTP", "VELOCITY",
}  # fmt: skip
T1_FLAIR = r"\bt1(?!.*\bt2).{0,20}\b(flair|tirm)|\bflair.{0,3}\bt1"  # an inversion sequence, but T1-weighted
FLAIR = r"flair|dark ?fluid|\bda fl\b|\btirm\b|\bt2f\b"
T2_STAR = r"\bgre\b|\bfl[23]d\b|\bt?ffe\b|gradient|\bmedic\b|\bmerge\b"  # in names with T2
WEIGHTS = {
    "T1": r"\b(3d ?|s)?t1|\bmp2?rage|\bmp rage|spgr\b|\bbravo\b",
    "T2": r"\b(3d ?|s)?t2",
    "PD": r"\bs?pd|proton",
}
AFTER = (
    r"\+ ?(c|gd|km|ce|gad\w*|contrast)\b|\+$|\bc ?\+|\bt1 ?c\b|\bt1 ?ce\b|\bce\b|\bgd\b|\bt1 ?gd|\bgad|\bkm\b|\bmdc\b|"
    r"\bpost\b(?! ?op)|\bpost ?(con|gd|gad|km|inj)|\bcontrast|\benhanced"
)
BEFORE = (
    r"\bpre\b|\bpre ?con|\bwo\b|\bw o\b|\bwithout|\bohne\b|\bsans\b|\bsenza\b|\bnativ|\bnon\b|\bnon ?(con|enh)|\bno\b|"
    r"\bunenhanced|\bplain\b"
)
CONTRAST_SUFFIX = r"\w*( (contrast\w*|gad\w*|gd|km|ce|c|enhanced|mdc)\b)?"  # belongs to the word before it
CONFLICTS = {("t1", "t1ce"), ("t2", "flair")}  # description and protocol name, where the protocol is more specific
UNNAMED = "its name does not give the contrast"
NO_AGENT = ("", "no", "none", "n", "0", "no contrast", "without")


@dataclass(frozen=True)
class Guess:
    modality: str | None
    reason: str


@dataclass(frozen=True)
class Row:
    """A row of the preview table."""

    number: int | None
    description: str
    size: str  # columns x rows x slices
    spacing: str  # millimetres
    modality: str | None  # that it would be used as
    note: str  # reason for or against using it


@dataclass(frozen=True)
class Preview:
    rows: list[Row]  # one per series, by number
    skipped: tuple[str, ...]  # files that are not DICOM


def guess(label: Label) -> Guess:
    """By the description; if it is not informative, by the protocol name."""
    if label.kind != "MR":
        return Guess(None, f"{label.kind or 'unknown modality'}, not MR")
    types = sorted(EXCLUDED_IMAGE_TYPES.intersection(label.image_type))
    if types:
        return Guess(None, f"of type {types[0]}")
    by_description = _guess_from_text(label.description, label.agent, "description")
    by_protocol = _guess_from_text(label.protocol, label.agent, "protocol name")
    if by_description is None or by_protocol is None:
        return by_description or by_protocol or Guess(None, UNNAMED)
    if (by_description.modality, by_protocol.modality) in CONFLICTS:
        names = f"{by_description.modality} by its description, {by_protocol.modality} by its protocol name"
        return Guess(None, f"{names}; choose with --series")
    return by_description


def _guess_from_text(text: str, agent: str, where: str) -> Guess | None:
    text = " ".join(re.sub(r"[_\-./\\^,;:()\[\]=<>#&|]", " ", text.lower()).split())
    for kind, pattern in EXCLUDED.items():
        if re.search(pattern, text):
            return Guess(None, f"{kind}, by its {where}")
    t1_flair = re.search(T1_FLAIR, text)
    if not t1_flair and (word := re.search(FLAIR, text)):
        return Guess("flair", f"'{word[0]}' in its {where}")
    found = {name: word[0] for name, pattern in WEIGHTS.items() if (word := re.search(pattern, text))}
    if len(found) > 1:
        return Guess(None, f"{' and '.join(found)} in its {where}")
    if "PD" in found:
        return Guess(None, f"proton density, by its {where}")
    if "T2" in found and (word := re.search(T2_STAR, text)):
        return Guess(None, f"T2*, by '{word[0]}' in its {where}")
    if "T2" in found:
        return Guess("t2", f"'{found['T2']}' in its {where}")
    return _t1_or_t1ce(found["T1"], text, agent, where) if found else None


def _t1_or_t1ce(word: str, text: str, agent: str, where: str) -> Guess:
    before = re.search(BEFORE, text)
    after = re.search(AFTER, re.sub(f"({BEFORE}){CONTRAST_SUFFIX}", " ", text))
    given = agent.lower() not in NO_AGENT
    if before and after:
        return Guess(None, f"both before and after contrast ('{before[0]}', '{after[0]}') in its {where}")
    if before and given:
        return Guess(None, f"before contrast by its {where}, but its header names a contrast agent")
    if after:
        return Guess("t1ce", f"'{word}' and '{after[0].strip()}' in its {where}")
    if given:
        return Guess("t1ce", f"'{word}' in its {where}, and its header names a contrast agent")
    return Guess("t1", f"'{word}' in its {where}")


def parse_series(options: Sequence[str]) -> dict[str, str]:
    """["flair=3", "t2=7"] -> {"flair": "3", "t2": "7"}."""
    chosen: dict[str, str] = {}
    for option in options:
        modality, separator, series = (part.strip() for part in option.partition("="))
        if not (modality and separator and series):
            raise ConfigError(f"--series {option}: write it as MODALITY=SERIES, such as flair=3")
        if modality.lower() in chosen:
            raise ConfigError(f"--series {option}: duplicate {modality}; give each modality once")
        chosen[modality.lower()] = series
    return chosen


def _select_series(series: Sequence[Series], modality: str, which: str) -> Series:
    """By number, UID or description, in this order; must be unique."""
    tests = (
        lambda one: which.isdecimal() and one.label.number == int(which),
        lambda one: one.label.uid == which,
        lambda one: one.label.description.casefold() == which.casefold(),
    )
    for test in tests:
        found = [one for one in series if test(one)]
        if len(found) == 1:
            return found[0]
        if found:
            raise ScanError(
                f"--series {modality}={which}: {len(found)} series match ({_list_series(found)}); "
                f"choose one by its UID: {' or '.join(one.label.uid for one in found[:3])}"
            )
    raise ScanError(f"--series {modality}={which}: no such series; choose from {_list_series(series)}")


def series_key(one: Series, series: Sequence[Series]) -> str:
    """How to choose this series with --series MODALITY=..."""
    number = one.label.number
    alone = number is not None and sum(other.label.number == number for other in series) == 1
    return str(number) if alone else one.label.uid


def _list_series(series: Sequence[Series]) -> str:
    labels = [one.label for one in series[:12]]
    names = ", ".join(f"{'-' if one.number is None else one.number} '{one.description}'" for one in labels)
    return names + (f" and {len(series) - 12} more" if len(series) > 12 else "")


def choose(series: Sequence[Series], modalities: InputModalities, override: Mapping[str, str]) -> dict[str, Series]:
    """One series per modality; no match or several are errors where it is needed. An optional modality is left out
    unless a single series can be used as it."""
    unknown = [name for name in override if name not in modalities.names]
    if unknown:
        raise ScanError(
            f"--series {unknown[0]}={override[unknown[0]]}: not a modality of the model; "
            f"choose from {', '.join(modalities.names)}"
        )
    candidates = find_candidates(series, modalities.names, override)
    for modality in modalities.needed:
        _check_one(candidates[modality], modality, series, modalities.explain())
    for modality in modalities.optional:
        if modality not in override:
            usable = [one for one in candidates[modality] if one.problem is None]
            candidates[modality] = usable if len(usable) == 1 else []
    chosen = {modality: found[0] for modality, found in candidates.items() if found}
    for modality, one in chosen.items():
        for other in chosen:
            if other != modality and chosen[other] is one:
                raise ScanError(f"{one.label} cannot be both {modality} and {other}; choose another with --series")
    return chosen


def explain_ignored(series: Sequence[Series], chosen: Mapping[str, Series], optional: Sequence[str] = ()) -> list[str]:
    """A line for each series that was not chosen."""
    others = [one for one in series if not any(one is used for used in chosen.values())]
    return [f"{one.label} ignored: {_why_ignored(one, others, chosen, optional)}" for one in others]


def _why_ignored(one: Series, others: Sequence[Series], chosen: Mapping[str, Series], optional: Sequence[str]) -> str:
    found = guess(one.label)
    modality = found.modality
    if modality is None:
        return found.reason
    if modality in chosen or modality not in optional:
        return f"{modality}, not needed"
    if one.problem is not None:
        return f"{modality}, but {one.problem}"
    count = sum(guess(other.label).modality == modality and other.problem is None for other in others)
    return f"one of {count} that could be {modality}; use it with --series {modality}={series_key(one, others)}"


def find_candidates(
    series: Sequence[Series], modalities: Sequence[str], override: Mapping[str, str]
) -> dict[str, list[Series]]:
    """The candidates for each modality."""
    taken = {modality: _select_series(series, modality, which) for modality, which in override.items()}
    free = [one for one in series if not any(one is other for other in taken.values())]
    guessed = [(guess(one.label).modality, one) for one in free]
    return {
        modality: [taken[modality]] if modality in taken else [one for name, one in guessed if name == modality]
        for modality in modalities
    }


def _check_one(found: Sequence[Series], modality: str, series: Sequence[Series], explained: str) -> None:
    if not found:
        raise ScanError(
            f"no series is {modality} by its name (found: {_list_series(series)}); "
            f"choose it with --series {modality}=NUMBER (--preview lists all){explained}"
        )
    if len(found) > 1:
        options = " or ".join(f"--series {modality}={series_key(one, series)}" for one in found)
        raise ScanError(f"{len(found)} series could be {modality}: {_list_series(found)}; choose one with {options}")


def preview_rows(series: Sequence[Series], modalities: Sequence[str], override: Mapping[str, str]) -> list[Row]:
    valid = {name: word for name, word in override.items() if name in modalities}
    candidates = find_candidates(series, modalities, valid)
    return [_row(one, series, candidates, override) for one in series]


def _row(
    one: Series, series: Sequence[Series], candidates: Mapping[str, Sequence[Series]], override: Mapping[str, str]
) -> Row:
    found = guess(one.label)
    modality = next((name for name, group in candidates.items() if any(one is other for other in group)), None)
    note = found.reason
    if modality is not None:
        others = [other for other in candidates[modality] if other is not one]
        note = "chosen with --series" if modality in override else found.reason
        if others:
            key = series_key(one, series)
            note += f"; ambiguous with {_list_series(others)}: choose with --series {modality}={key}"
    elif found.modality is not None:
        note = f"{found.modality} by {found.reason}, not needed"
    if one.problem is not None:
        note += f"; cannot be used: {one.problem}"
    spacing = "" if one.affine is None else " x ".join(f"{mm:.3g}" for mm in one.grid.spacing_mm)
    return Row(one.label.number, one.label.description, " x ".join(map(str, one.shape)), spacing, modality, note)


def preview_lines(preview: Preview) -> list[str]:
    """The preview as a plain-text table."""
    cells = [("series", "description", "size", "mm", "used as", "")]
    for row in preview.rows:
        number = "-" if row.number is None else str(row.number)
        cells.append((number, row.description, row.size, row.spacing, row.modality or "-", row.note))
    widths = [max(len(line[column]) for line in cells) for column in range(5)]
    lines = [
        "  ".join([*(text.ljust(width) for text, width in zip(line, widths, strict=False)), line[5]]).rstrip()
        for line in cells
    ]
    return [*lines, f"skipped, not DICOM: {listed(list(preview.skipped))}"] if preview.skipped else lines
