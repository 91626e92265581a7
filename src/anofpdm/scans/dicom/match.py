"""Which series is which modality: by what it is called, and never by a guess. What is unclear, the user has to say."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anofpdm.errors import ConfigError, ScanError
from anofpdm.scans.dicom.header import Label
from anofpdm.scans.dicom.series import Series
from anofpdm.scans.dicom.source import listed

# Words that say what a series is not, looked for in names with _ - . / made spaces. The first that fits counts.
NOT_NEEDED = {
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
NOT_NEEDED_TYPES = {
    "ADC", "ASL", "B0 MAP", "CBF", "CBV", "CSA REPORT", "DIFFUSION", "FA", "LOCALIZER", "MIP", "MNIP", "MOSAIC", "MTT",
    "PERFUSION", "PHASE", "PHASE MAP", "PROJECTION IMAGE", "RELCBF", "RELCBV", "SUBTRACT", "SUBTRACTION", "SWI",
    "T1 MAP", "T2 MAP", "TENSOR", "TRACEW", "TTP", "VELOCITY",
}  # fmt: skip
T1_FLAIR = r"\bt1(?!.*\bt2).{0,20}\b(flair|tirm)|\bflair.{0,3}\bt1"  # by inversion, and T1-weighted all the same
FLAIR = r"flair|dark ?fluid|\bda fl\b|\btirm\b|\bt2f\b"
T2_STAR = r"\bgre\b|\bfl[23]d\b|\bt?ffe\b|gradient|\bmedic\b|\bmerge\b"  # where the name says T2
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
OF_WHAT = r"\w*( (contrast\w*|gad\w*|gd|km|ce|c|enhanced|mdc)\b)?"  # goes with the word before it
SAYS_MORE = {("t1", "t1ce"), ("t2", "flair")}  # a protocol that knows better than the description
NO_AGENT = ("", "no", "none", "n", "0", "no contrast", "without")


@dataclass(frozen=True)
class Guess:
    modality: str | None
    why: str


@dataclass(frozen=True)
class Row:
    """A line of the preview."""

    number: int | None
    description: str
    size: str  # columns x rows x slices
    spacing: str  # millimetres
    modality: str | None  # what it would be used as
    note: str  # why, why not, or what stands against it


@dataclass(frozen=True)
class Preview:
    rows: list[Row]  # one a series, in order of number
    skipped: tuple[str, ...]  # files that are no DICOM


def guess(label: Label) -> Guess:
    """By the description; where that says nothing, by the protocol's name."""
    if label.kind != "MR":
        return Guess(None, f"{label.kind or 'of no known kind'}, not MR")
    types = sorted(NOT_NEEDED_TYPES.intersection(label.image_type))
    if types:
        return Guess(None, f"of type {types[0]}")
    by_description = _by_words(_plain(label.description), label.agent, "description")
    by_protocol = _by_words(_plain(label.protocol), label.agent, "protocol name")
    if by_description is None or by_protocol is None:
        return by_description or by_protocol or Guess(None, "its name says nothing of its contrast")
    if (by_description.modality, by_protocol.modality) in SAYS_MORE:
        said = f"{by_description.modality} by its description, {by_protocol.modality} by its protocol name"
        return Guess(None, f"{said}; which it is, only --series can say")
    return by_description


def _plain(text: str) -> str:
    return " ".join(re.sub(r"[_\-./\\^,;:()\[\]=<>#&|]", " ", text.lower()).split())


def _by_words(text: str, agent: str, where: str) -> Guess | None:
    for what, words in NOT_NEEDED.items():
        if re.search(words, text):
            return Guess(None, f"{what}, by its {where}")
    t1_flair = re.search(T1_FLAIR, text)
    if not t1_flair and (word := re.search(FLAIR, text)):
        return Guess("flair", f"'{word[0]}' in its {where}")
    found = {name: word[0] for name, words in WEIGHTS.items() if (word := re.search(words, text))}
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
    after = re.search(AFTER, re.sub(f"({BEFORE}){OF_WHAT}", " ", text))
    given = agent.lower() not in NO_AGENT
    if before and after:
        return Guess(None, f"both before and after contrast ('{before[0]}', '{after[0]}') in its {where}")
    if before and given:
        return Guess(None, f"before contrast by its {where}, after it by the contrast agent that its header names")
    if after:
        return Guess("t1ce", f"'{word}' and '{after[0].strip()}' in its {where}")
    if given:
        return Guess("t1ce", f"'{word}' in its {where}, and its header names a contrast agent")
    return Guess("t1", f"'{word}' in its {where}")


# ---- the user's word -------------------------------------------------------------------------------------------------


def parse_series(words: Sequence[str]) -> dict[str, str]:
    """flair=3 t2=7 -> which series is which modality."""
    named: dict[str, str] = {}
    for word in words:
        modality, mark, which = (part.strip() for part in word.partition("="))
        if not (modality and mark and which):
            raise ConfigError(f"--series {word}: write it as MODALITY=SERIES, such as flair=3")
        if modality.lower() in named:
            raise ConfigError(f"--series {word}: {modality} is named twice; name each modality once")
        named[modality.lower()] = which
    return named


def _by_name(series: Sequence[Series], modality: str, which: str) -> Series:
    """By number, UID or description, in this order; one and only one."""
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
                f"--series {modality}={which}: {len(found)} series are called so ({_all_of(found)}); "
                f"name one by its UID: {' or '.join(one.label.uid for one in found[:3])}"
            )
    raise ScanError(f"--series {modality}={which}: no such series; there are {_all_of(series)}")


def handle(one: Series, series: Sequence[Series]) -> str:
    """What to write after --series MODALITY= to mean this series."""
    number = one.label.number
    alone = number is not None and sum(other.label.number == number for other in series) == 1
    return str(number) if alone else one.label.uid


def _all_of(series: Sequence[Series]) -> str:
    said = [f"{'-' if one.label.number is None else one.label.number} '{one.label.description}'" for one in series[:12]]
    return ", ".join(said) + (f" and {len(series) - 12} more" if len(series) > 12 else "")


# ---- choosing --------------------------------------------------------------------------------------------------------


def choose(series: Sequence[Series], modalities: Sequence[str], override: Mapping[str, str]) -> dict[str, Series]:
    """One series for each modality. Two that match, or none, is for the user to settle."""
    unknown = [name for name in override if name not in modalities]
    if unknown:
        raise ScanError(
            f"--series {unknown[0]}={override[unknown[0]]}: the model knows {', '.join(modalities)}; name one of these"
        )
    candidates = matches(series, modalities, override)
    for modality in modalities:
        _check_one(candidates[modality], modality, series)
    chosen = {modality: candidates[modality][0] for modality in modalities}
    for modality, one in chosen.items():
        for other in modalities:
            if other != modality and chosen[other] is one:
                raise ScanError(f"{one.label} cannot be both {modality} and {other}; name another with --series")
    return chosen


def matches(
    series: Sequence[Series], modalities: Sequence[str], override: Mapping[str, str]
) -> dict[str, list[Series]]:
    """Every series that each modality could be."""
    taken = {modality: _by_name(series, modality, which) for modality, which in override.items()}
    free = [one for one in series if not any(one is other for other in taken.values())]
    guessed = [(guess(one.label).modality, one) for one in free]
    return {
        modality: [taken[modality]] if modality in taken else [one for name, one in guessed if name == modality]
        for modality in modalities
    }


def _check_one(found: Sequence[Series], modality: str, series: Sequence[Series]) -> None:
    if not found:
        raise ScanError(
            f"no series is {modality} by its name, there are {_all_of(series)}; "
            f"say which it is with --series {modality}=NUMBER (--preview shows all)"
        )
    if len(found) > 1:
        ways = " or ".join(f"--series {modality}={handle(one, series)}" for one in found)
        raise ScanError(f"{len(found)} series could be {modality}: {_all_of(found)}; say which with {ways}")


# ---- preview ---------------------------------------------------------------------------------------------------------


def preview_rows(series: Sequence[Series], modalities: Sequence[str], override: Mapping[str, str]) -> list[Row]:
    candidates = matches(series, modalities, {name: word for name, word in override.items() if name in modalities})
    return [_row(one, series, candidates, override) for one in series]


def _row(
    one: Series, series: Sequence[Series], candidates: Mapping[str, Sequence[Series]], override: Mapping[str, str]
) -> Row:
    found = guess(one.label)
    modality = next((name for name, group in candidates.items() if any(one is other for other in group)), None)
    note = found.why
    if modality is not None:
        others = [other for other in candidates[modality] if other is not one]
        note = "named with --series" if modality in override else found.why
        if others:
            note += f"; unclear, so is {_all_of(others)}: say which with --series {modality}={handle(one, series)}"
    elif found.modality is not None:
        note = f"{found.modality} by {found.why}, not needed"
    if one.problem is not None:
        note += f"; cannot be used: {one.problem}"
    spacing = "" if one.affine is None else " x ".join(f"{mm:.3g}" for mm in one.grid.spacing_mm)
    return Row(one.label.number, one.label.description, " x ".join(map(str, one.shape)), spacing, modality, note)


def preview_lines(preview: Preview) -> list[str]:
    """The preview as a table of plain text."""
    cells = [("series", "description", "size", "mm", "used as", "")]
    for row in preview.rows:
        number = "-" if row.number is None else str(row.number)
        cells.append((number, row.description, row.size, row.spacing, row.modality or "-", row.note))
    widths = [max(len(line[column]) for line in cells) for column in range(5)]
    lines = [
        "  ".join([*(text.ljust(width) for text, width in zip(line, widths, strict=False)), line[5]]).rstrip()
        for line in cells
    ]
    return [*lines, f"passed over, no DICOM: {listed(list(preview.skipped))}"] if preview.skipped else lines
