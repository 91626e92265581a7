"""Any folder of NIfTI files, with image-level labels in a CSV file and optional masks.

patient7_flair.nii.gz and patient7_t2.nii.gz, or patient7/flair.nii.gz, or, with one modality, just patient7.nii.gz;
a mask is called patient7_seg, _mask, _lesion or _roi. Results of `anofpdm segment` in the folder are skipped.
"""

from pathlib import Path

from anofpdm.cohorts.subjects import MASK, Source, SourceFile, Subject, group_files, nifti_files, stem

NAMES = {name: name for name in ("flair", "t1", "t2", "t1ce", "pd", "dwi", "adc", "swi", "ct")}
NAMES |= {"t2f": "flair", "t2flair": "flair", "t1w": "t1", "t1n": "t1", "t2w": "t2", "t1c": "t1ce", "t1gd": "t1ce"}
NAMES |= dict.fromkeys(("seg", "mask", "lesion", "roi"), MASK)
UNNAMED = "image"
OUR_MASK, OUR_MAP = "mask.nii.gz", "anomaly_map.nii.gz"  # together in a folder: results of ours, not the truth


def find_subjects(source: Source, modalities: tuple[str, ...] = ()) -> list[Subject]:
    """`modalities` adds further names that files may end in."""
    files = (path for path in nifti_files(source) if not _is_our_result(path))
    parsed = ((path, *parse_name(path, modalities)) for path in files)
    return group_files(SourceFile(subject, subject, role, path) for path, subject, role in parsed)


def _is_our_result(path: Path) -> bool:
    return path.name in (OUR_MASK, OUR_MAP) and all((path.parent / name).exists() for name in (OUR_MASK, OUR_MAP))


def parse_name(path: Path, modalities: tuple[str, ...] = ()) -> tuple[str, str]:
    """Subject and role."""
    names, whole = NAMES | {name.lower(): name for name in modalities}, stem(path.name)
    if whole.lower() in names:
        folder = path.parent if path.parent.name not in ("", "..") else path.parent.resolve()
        return folder.name or "scan", names[whole.lower()]
    for separator in "_-":
        subject, _, modality = whole.rpartition(separator)
        if subject and modality.lower() in names:
            return subject, names[modality.lower()]
    return whole, UNNAMED
