"""A zip of DICOM files, between the server and the room that reads them."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from anofpdm.errors import ScanError
from anofpdm.segment.outputs import DICOM_CAPTURE, DICOM_SEG

if TYPE_CHECKING:
    from anofpdm.scans.dicom.read import Study
    from anofpdm.segment.model import Segmentation

BETWEEN_SERIES = re.compile(r"\s*[,;]\s*|\s+(?=\w+\s*=)")  # flair=3 t2=Axial T2; a description may hold spaces
ON_A_PAGE = {"--series ": "Series: ", " (--preview shows all)": ""}  # what is an option on the command line


def series_given(text: str) -> dict[str, str]:
    """Which series is which modality, as the user wrote it: flair=3, t2=7."""
    from anofpdm.scans.dicom.match import parse_series

    return parse_series([word for word in BETWEEN_SERIES.split(text.strip()) if word])


def converted(path: Path, modalities: Sequence[str], series: str) -> tuple["Study", dict[str, str | Path]]:
    """The study in a zip, and a NIfTI file for each modality, written into the working folder."""
    from anofpdm.scans.dicom.read import read_study

    try:
        study = read_study(path, modalities, series_given(series))
        return study, {**study.convert(Path())}
    except ScanError as problem:
        raise ScanError(on_a_page(str(problem))) from None


def on_a_page(text: str) -> str:
    for option, word in ON_A_PAGE.items():
        text = text.replace(option, word)
    return text


def save_dicom(study: "Study", result: "Segmentation", folder: Path, title: str) -> None:
    from anofpdm.scans.dicom.seg import write_capture, write_seg

    folder.mkdir(parents=True, exist_ok=True)
    write_seg(folder / DICOM_SEG, result.mask, study)
    write_capture(folder / DICOM_CAPTURE, result.picture(title), study)
