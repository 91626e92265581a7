"""Which predicted mask belongs to which true mask."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from anofpdm.cohorts.layouts import bids
from anofpdm.cohorts.layouts.brats import VISIT
from anofpdm.cohorts.subjects import nifti_files, normalise_name, stem
from anofpdm.cohorts.tables import read_rows
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
class _Key:
    scan: str
    is_mask: bool  # by its name


def find_pairs(predicted: Path, truth: Path, table: Path | None = None) -> Pairing:
    """Two files, or two folders whose files are paired by a table, by name, or by scan."""
    for path in (predicted, truth):
        if not path.exists():
            raise EvaluationError(f"{path}: no such file or folder; check the path")
    if predicted.is_dir() != truth.is_dir():
        raise EvaluationError(f"{predicted} and {truth}: a file and a folder; give two files or two folders")
    if table is not None:
        return _read_table(table, predicted, truth)
    if not predicted.is_dir():
        return Pairing([_make_pair(_scan_key(truth).scan, predicted, truth)])
    return _pair_folders(predicted, truth)


def find_image(images: Path, pair: Pair) -> Path | None:
    """The file itself, or the first image of the scan in a folder."""
    if not images.is_dir():
        return images
    names = (pair.name, pair.patient)
    return next(
        (
            path
            for path in nifti_files(images)
            if not _scan_key(path).is_mask
            and any(stem(path.name) == name or stem(path.name).startswith((f"{name}_", f"{name}-")) for name in names)
        ),
        None,
    )


def _pair_folders(predicted: Path, truth: Path) -> Pairing:
    """Files of equal names first, then files of one scan."""
    pairing = Pairing()
    masks = [_masks_in(folder) for folder in (predicted, truth)]
    for folder, found in zip((predicted, truth), masks, strict=True):
        if not found:
            pairing.failed[str(folder)] = "no NIfTI file (.nii, .nii.gz) in this folder; check the path"
    if pairing.failed:
        return pairing
    named = [_group(found, lambda path: stem(path.name)) for found in masks]
    same = [name for name in named[1] if len(named[1][name]) == len(named[0].get(name, ())) == 1]
    pairing.pairs = [_make_pair(name, named[0][name][0], named[1][name][0]) for name in same]
    rest = [[path for path in found if stem(path.name) not in same] for found in masks]
    scans = [_group(found, lambda path: _scan_key(path).scan) for found in rest]
    for scan in sorted({*scans[0], *scans[1]}):
        ours, theirs = (group.get(scan, []) for group in scans)
        if len(ours) == len(theirs) == 1:
            pairing.pairs.append(_make_pair(scan, ours[0], theirs[0]))
        elif ours and theirs:
            several = ours if len(ours) > 1 else theirs
            pairing.failed[scan] = f"several files: {several[0]} and {several[1]}; {REMEDY}"
        else:
            other = truth if ours else predicted
            pairing.failed |= {
                str(path): f"no mask of this scan in {other}; add it, {REMEDY}" for path in ours + theirs
            }
    pairing.pairs.sort(key=lambda pair: pair.name)
    return pairing


def _group(paths: Iterable[Path], key: Callable[[Path], str]) -> dict[str, list[Path]]:
    groups: dict[str, list[Path]] = {}
    for path in paths:
        groups.setdefault(key(path), []).append(path)
    return groups


def _masks_in(folder: Path) -> list[Path]:
    """If any file is a mask by its name, only such files: others are images or maps."""
    paths = list(nifti_files(folder))
    return [path for path in paths if _scan_key(path).is_mask] or paths


def _scan_key(path: Path) -> _Key:
    """The scan that a file belongs to: BIDS subject and session, a name before _seg or _mask, or a folder's name."""
    whole = normalise_name(stem(path.name))
    match = NAMED_MASK.fullmatch(whole)
    entities, _ = bids.parse(whole)
    if "sub" in entities:
        session = f"_ses-{entities['ses']}" if "ses" in entities else ""
        return _Key(f"sub-{entities['sub']}{session}", match is not None)
    if match is None:
        return _Key(whole, False)
    return _Key(match["scan"] or normalise_name(path.resolve().parent.name), True)


def _make_pair(name: str, predicted: Path, truth: Path) -> Pair:
    scan = _scan_key(truth).scan
    visit, entities = VISIT.fullmatch(scan), bids.parse(f"{scan}_")[0]
    patient = visit["patient"] if visit else f"sub-{entities['sub']}" if "sub" in entities else scan
    return Pair(name, patient, predicted, truth)


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
        pair = _make_pair(row.get("name") or _scan_key(theirs).scan, ours, theirs)
        pairing.pairs.append(Pair(pair.name, row.get("patient") or pair.patient, ours, theirs))
    return pairing
