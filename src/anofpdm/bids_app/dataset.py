"""Files of a derivative data set that are not about one participant."""

from pathlib import Path
from typing import Any

from anofpdm import __version__
from anofpdm.errors import CohortError
from anofpdm.segment import outputs
from anofpdm.segment.many import BIDS_DERIVATIVE
from anofpdm.util.artifacts import decode, encode
from anofpdm.util.files import read_regular_file, write_atomically

RAW = "raw"  # name of the source data set in BIDS URIs
README = f"""# Lesion masks by AnoFPDM

Made by `anofpdm bids` {__version__} from image-level labels of other patients: no lesion was drawn by hand. A research
tool, not a medical device.

 - `*_label-lesion_desc-anofpdm_mask.nii.gz`: 1 is lesion, on the grid of the first image in `Sources` of its JSON file.
 - `*_desc-anofpdm_anomalymap.nii.gz`: what the mask was thresholded from; its JSON file has the units.
 - `*_desc-anofpdm_report.html`: open it in a browser before using a mask.
 - `*_desc-anofpdm_findings.csv`, `_slices.csv`, `_summary.json`: lesions, slices, settings and warnings.
 - `group_lesions.tsv`, `group_lesions.json`: a row per scan, and what its columns mean (`anofpdm bids ... group`).
"""
# Names that BIDS has no place for.
IGNORED = """*_anomalymap.*
*_report.html
*_overview.png
*_findings.csv
*_slices.csv
*_summary.json
*_on_*
preparation/
group_lesions.*
.lock
"""


def check_source(source: Path) -> dict[str, Any]:
    """Its dataset_description.json, which every BIDS data set has."""
    path = source / outputs.BIDS_DESCRIPTION
    try:
        description: dict[str, Any] = decode(dict, read_regular_file(path))
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise CohortError(f"{path}: {reason}; add it, or use --skip-bids-validation") from None
    if missing := [key for key in ("Name", "BIDSVersion") if not description.get(key)]:
        raise CohortError(f"{path}: no {' and no '.join(missing)}; add it, or use --skip-bids-validation")
    return description


def write_dataset(out: Path, source: Path, description: dict[str, Any]) -> None:
    """`description`: of the source, as far as known."""
    url = source.resolve().as_uri()
    origin = {"URL": url} | ({"DOI": description["DatasetDOI"]} if description.get("DatasetDOI") else {})
    name = description.get("Name")
    content = {**BIDS_DERIVATIVE, "SourceDatasets": [origin], "DatasetLinks": {RAW: url}}
    if name:
        content["Name"] = f"Lesion masks of {name}"
    files = {outputs.BIDS_DESCRIPTION: encode(content), ".bidsignore": IGNORED.encode(), "README.md": README.encode()}
    for name, data in files.items():
        path = out / name
        if not path.is_file() or (name != "README.md" and path.read_bytes() != data):  # jobs of others may be running
            write_atomically(path, data)
