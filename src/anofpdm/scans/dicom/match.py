"""Assign series to modalities by their names. Ambiguous series are never guessed; the user has to choose."""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from anofpdm.errors import ConfigError, ScanError
from anofpdm.scans.dicom.header import Label
from anofpdm.scans.dicom.series import Series
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


class Guess(NamedTuple):
    modality: str | None
    reason: str


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
    words = {name: word[0] for name, pattern in WEIGHTS.items() if (word := re.search(pattern, text))}
    if len(words) > 1:
        return Guess(None, f"{' and '.join(words)} in its {where}")
    if "PD" in words:
        return Guess(None, f"proton density, by its {where}")
    if "T2" in words and (word := re.search(T2_STAR, text)):
        return Guess(None, f"T2*, by '{word[0]}' in its {where}")
    if "T2" in words:
        return Guess("t2", f"'{words['T2']}' in its {where}")
    return _t1_or_t1ce(words["T1"], text, agent, where) if words else None


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


def _select_series(every: Sequence[Series], modality: str, which: str) -> Series:
    """By number, UID or description, in this order; must be unique."""
    tests = (
        lambda label: which.isdecimal() and label.number == int(which),
        lambda label: label.uid == which,
        lambda label: label.description.casefold() == which.casefold(),
    )
    for test in tests:
        matches = [series for series in every if test(series.label)]
        if len(matches) == 1:
            return matches[0]
        if matches:
            raise ScanError(
                f"--series {modality}={which}: {len(matches)} series match ({_list_series(matches)}); "
                f"choose one by its UID: {' or '.join(series.label.uid for series in matches[:3])}"
            )
    raise ScanError(f"--series {modality}={which}: no such series; choose from {_list_series(every)}")


def _series_key(series: Series, every: Sequence[Series]) -> str:
    """How to choose this series with --series MODALITY=..."""
    number = series.label.number
    alone = number is not None and sum(other.label.number == number for other in every) == 1
    return str(number) if alone else series.label.uid


def _list_series(every: Sequence[Series]) -> str:
    labels = [series.label for series in every[:12]]
    names = ", ".join(f"{'-' if label.number is None else label.number} '{label.description}'" for label in labels)
    return names + (f" and {len(every) - 12} more" if len(every) > 12 else "")


def choose(every: Sequence[Series], modalities: InputModalities, override: Mapping[str, str]) -> dict[str, Series]:
    """One series per modality; no match or several are errors where it is needed. An optional modality is left out
    unless a single series can be used as it."""
    for name, which in override.items():
        if name not in modalities.names:
            raise ScanError(
                f"--series {name}={which}: not a modality of the model; choose from {', '.join(modalities.names)}"
            )
    candidates = find_candidates(every, modalities.names, override)
    for modality in modalities.needed:
        matches = candidates[modality]
        if not matches:
            raise ScanError(
                f"no series is {modality} by its name (found: {_list_series(every)}); choose it with "
                f"--series {modality}=NUMBER (--preview lists all){modalities.explain()}"
            )
        if len(matches) > 1:
            options = " or ".join(f"--series {modality}={_series_key(series, every)}" for series in matches)
            raise ScanError(
                f"{len(matches)} series could be {modality}: {_list_series(matches)}; choose one with {options}"
            )
    for modality in modalities.optional:
        if modality not in override:
            usable = [series for series in candidates[modality] if series.problem is None]
            candidates[modality] = usable if len(usable) == 1 else []
    chosen = {modality: matches[0] for modality, matches in candidates.items() if matches}
    for (modality, series), (other, another) in itertools.combinations(chosen.items(), 2):
        if series is another:
            raise ScanError(f"{series.label} cannot be both {modality} and {other}; choose another with --series")
    return chosen


def find_candidates(
    every: Sequence[Series], modalities: Sequence[str], override: Mapping[str, str]
) -> dict[str, list[Series]]:
    """The candidates for each modality."""
    taken = {modality: [_select_series(every, modality, which)] for modality, which in override.items()}
    free = [series for series in every if [series] not in taken.values()]
    return {
        modality: taken.get(modality) or [series for series in free if guess(series.label).modality == modality]
        for modality in modalities
    }


def explain_ignored(every: Sequence[Series], chosen: Mapping[str, Series], optional: Sequence[str]) -> list[str]:
    """A line for each series that was not chosen."""
    others = [series for series in every if series not in chosen.values()]
    usable_as = [name for name in optional if name not in chosen]
    return [
        f"{series.label} ignored: {note}{_describe_problem(series) if modality else ''}"
        for series, modality, note in _explain_uses(others, usable_as, {})
    ]


def preview_lines(every: Sequence[Series], modalities: Sequence[str], override: Mapping[str, str]) -> list[str]:
    """A plain-text table: each series, how it would be used, and why."""
    valid = {name: word for name, word in override.items() if name in modalities}
    cells = [("series", "description", "size", "mm", "used as", "")]
    for series, modality, note in _explain_uses(every, modalities, valid):
        number, spacing = series.label.number, () if series.affine is None else series.grid.spacing_mm
        cells.append((
            "-" if number is None else str(number),
            series.label.description,
            " x ".join(map(str, series.shape)),
            " x ".join(f"{mm:.3g}" for mm in spacing),
            modality or "-",
            note + _describe_problem(series),
        ))  # fmt: skip
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in cells]


def _explain_uses(
    every: Sequence[Series], modalities: Sequence[str], override: Mapping[str, str]
) -> Iterator[tuple[Series, str | None, str]]:
    """Each series, the modality that it would be used as, and the reason for or against."""
    candidates = find_candidates(every, modalities, override)
    for series in every:
        guessed, note = guess(series.label)
        modality = next((name for name, group in candidates.items() if series in group), None)
        if modality is None and guessed is not None:
            note = f"{guessed} by {note}, not needed"
        if modality in override:
            note = "chosen with --series"
        elif modality is not None and len(candidates[modality]) > 1:
            others = _list_series([other for other in candidates[modality] if other is not series])
            choice = f"--series {modality}={_series_key(series, every)}"
            note += f"; ambiguous with {others}: choose with {choice}"
        yield series, modality, note


def _describe_problem(series: Series) -> str:
    return "" if series.problem is None else f"; cannot be used: {series.problem}"
