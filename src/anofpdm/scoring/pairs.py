"""Which predicted mask belongs to which true mask."""

import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from anofpdm.cohorts.csv_tables import read_rows
from anofpdm.cohorts.layouts import bids
from anofpdm.cohorts.layouts.brats import VISIT
from anofpdm.cohorts.subjects import nifti_files, normalise_name, stem
from anofpdm.errors import EvaluationError

MASK_NAMES = "seg|segmentation|mask|msk|lesion|roi|label|labels|pred|prediction|predicted|truth|gt"
NAMED_MASK = re.compile(rf"(?:(?P<scan>.+)[-_])?(?:{MASK_NAMES})", re.IGNORECASE | re.DOTALL)
REMEDY = "rename it, or list the pairs in a CSV file (--pairs)"


@dataclass(frozen=True)
class Pair:
    name: str
    patient: str
    predicted: Path
    truth: Path


@dataclass
class Pairing:
    pairs: list[Pair] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # file or scan to reason


@dataclass(frozen=True)
class _File:
    path: Path
    name: str  # without the extension; where that names no scan (mask.nii.gz), its path in the folder
    scan: str
    is_mask: bool  # by its name

    @property
    def patient(self) -> str:
        visit, entities = VISIT.fullmatch(self.scan), bids.parse(f"{self.scan}_")[0]
        return visit["patient"] if visit else f"sub-{entities['sub']}" if "sub" in entities else self.scan


def find_pairs(predicted: Path, truth: Path, table: Path | None = None) -> Pairing:
    """Two files, or two folders whose files are paired by a table, by name, or by scan."""
    for path in (predicted, truth):
        if not path.exists():
            raise EvaluationError(f"{path}: no such file or folder; check the path")
    if predicted.is_dir() != truth.is_dir():
        raise EvaluationError(f"{predicted} and {truth}: a file and a folder; give two files or two folders")
    if predicted.is_dir():
        return _pair_folders(predicted, truth) if table is None else _read_table(table, predicted, truth)
    if table is not None:
        raise EvaluationError(f"--pairs {table}: for two folders; omit it")
    file = _describe(truth, truth.parent)
    return Pairing([Pair(file.scan, file.patient, predicted, truth)])


def find_image(images: Path, pair: Pair) -> Path | None:
    """The file itself, or the first image of the scan in a folder."""
    if not images.is_dir():
        return images
    scan = _describe(pair.truth, pair.truth.parent).scan
    files = (_describe(path, images) for path in nifti_files(images))
    of_scan = (file.path for file in files if not file.is_mask and f"{file.scan}_".startswith((f"{scan}_", f"{scan}-")))
    return next(of_scan, None)


def _pair_folders(predicted: Path, truth: Path) -> Pairing:
    """Files of equal names first, then files of one scan."""
    pairing, left = Pairing(), [_masks_in(folder) for folder in (predicted, truth)]
    for folder, files in zip((predicted, truth), left, strict=True):
        if not files:
            pairing.failed[str(folder)] = "no NIfTI file (.nii, .nii.gz) in this folder; check the path"
    if pairing.failed:
        return pairing
    for key in (operator.attrgetter("name"), operator.attrgetter("scan")):
        groups = _group(left, key)
        paired = {name: group for name, group in groups.items() if len(group[0]) == len(group[1]) == 1}
        for name, ((ours,), (theirs,)) in paired.items():
            pairing.pairs.append(Pair(name, theirs.patient, ours.path, theirs.path))
        left = [[file for file in files if key(file) not in paired] for files in left]
    for scan, sides in _group(left, operator.attrgetter("scan")).items():
        if all(sides):
            several = max(sides, key=len)
            pairing.failed[scan] = f"several files: {several[0].path} and {several[1].path}; {REMEDY}"
        else:
            reason = f"no mask of this scan in {truth if sides[0] else predicted}; add it, {REMEDY}"
            pairing.failed |= {str(file.path): reason for file in sides[0] + sides[1]}
    pairing.pairs.sort(key=lambda pair: pair.name)
    pairing.failed = dict(sorted(pairing.failed.items()))
    return pairing


def _group(sides: Sequence[Sequence[_File]], key: Callable[[_File], str]) -> dict[str, tuple[list[_File], list[_File]]]:
    """Predicted and true files."""
    groups: dict[str, tuple[list[_File], list[_File]]] = {}
    for number, files in enumerate(sides):
        for file in files:
            groups.setdefault(key(file), ([], []))[number].append(file)
    return groups


def _masks_in(folder: Path) -> list[_File]:
    """If any file is a mask by its name, only such files: others are images or maps. What is named like a file and is
    none, such as a pipe, fails when it is read."""
    files = [_describe(path, folder) for path in nifti_files(folder)]
    return [file for file in files if file.is_mask] or files


def _describe(path: Path, folder: Path) -> _File:
    """A scan is a BIDS subject and session, a name before _seg or _mask, or a folder's name."""
    whole = normalise_name(stem(path.name))
    match = NAMED_MASK.fullmatch(whole)
    entities, _ = bids.parse(whole)
    if "sub" in entities:
        session = f"_ses-{entities['ses']}" if "ses" in entities else ""
        return _File(path, whole, f"sub-{entities['sub']}{session}", match is not None)
    if match is None or match["scan"]:
        return _File(path, whole, match["scan"] if match else whole, match is not None)
    return _File(path, stem(str(path.relative_to(folder))), normalise_name(path.resolve().parent.name), True)


def _read_table(table: Path, predicted: Path, truth: Path) -> Pairing:
    """Columns predicted and truth: paths in the two folders; optionally name and patient."""
    pairing = Pairing()
    for line, row in read_rows(table, ("predicted", "truth")):
        if not row["predicted"] or not row["truth"]:
            raise EvaluationError(f"{table}, line {line}: one of the two files is missing; correct the row")
        ours, theirs = predicted / row["predicted"], truth / row["truth"]
        missing = [path for path in (ours, theirs) if not path.is_file()]
        if missing:
            pairing.failed[str(missing[0])] = f"no such file ({table}, line {line}); correct the row"
            continue
        file = _describe(theirs, truth)
        pairing.pairs.append(Pair(row.get("name") or file.scan, row.get("patient") or file.patient, ours, theirs))
    return pairing
