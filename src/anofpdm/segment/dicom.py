"""Results of a DICOM study: DICOM files beside the NIfTI files, and series named in place of temporary files."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anofpdm.segment.outputs import DICOM_CAPTURE, DICOM_SEG
from anofpdm.segment.result import Segmentation

if TYPE_CHECKING:
    from anofpdm.scans.dicom.read import Study  # needs pydicom, an optional dependency


def write_dicom(
    result: Segmentation, study: "Study", folder: Path, title: str, name: Callable[[str], str] = str
) -> None:
    """The mask as DICOM SEG and the overview as secondary capture."""
    from anofpdm.scans.dicom.seg import write_capture, write_seg

    folder.mkdir(parents=True, exist_ok=True)
    write_seg(folder / name(DICOM_SEG), result.mask, study)
    write_capture(folder / name(DICOM_CAPTURE), result.overview(title), study)


def name_series(summary: dict[str, Any], study: "Study", images: Mapping[str, Path]) -> None:
    """Replace temporary NIfTI files in a summary by the series they were converted from; their hashes stay."""
    for name, series in study.to_dict().items():
        summary["inputs"][name] |= {**series, "file": name_series_in_text(str(images[name]), study, images)}
    summary["warnings"] = [name_series_in_text(text, study, images) for text in summary["warnings"]]


def name_series_in_text(text: str, study: "Study", images: Mapping[str, Path]) -> str:
    for name, series in study.to_dict().items():
        label = f"{study.path.name}, series {series['series']} ({series['description']})"
        text = text.replace(str(images[name]), label)
    return text
