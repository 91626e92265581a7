"""Uploads of DICOM files: series selection, conversion to NIfTI, results as DICOM."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from anofpdm.errors import ScanError

if TYPE_CHECKING:
    from anofpdm.scans.dicom.read import Study

SERIES_SEPARATOR = re.compile(r"\s*[,;]\s*|\s+(?=\w+\s*=)")  # flair=3 t2=Axial T2; descriptions may contain spaces
WEB_WORDING = {"--series ": "Series: ", " (--preview shows all)": ""}  # command-line options have no place on a page


def parse_series_text(text: str) -> dict[str, str]:
    """Modality to series, from text such as flair=3, t2=7."""
    from anofpdm.scans.dicom.match import parse_series

    return parse_series([word for word in SERIES_SEPARATOR.split(text.strip()) if word])


def convert_study(path: Path, modalities: Sequence[str], series: str) -> tuple["Study", dict[str, str | Path]]:
    """The study in a zip, and a NIfTI file for each modality, written into the working directory."""
    from anofpdm.scans.dicom.read import read_study

    try:
        study = read_study(path, modalities, parse_series_text(series))
        return study, {**study.convert(Path())}
    except ScanError as error:
        raise ScanError(adapt_to_web(str(error))) from None


def adapt_to_web(message: str) -> str:
    """Replace mentions of command-line options."""
    for option, replacement in WEB_WORDING.items():
        message = message.replace(option, replacement)
    return message
