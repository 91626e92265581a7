"""File names of the results of a segmented scan. Imports nothing, so that any program can use it."""

MASK = "mask.nii.gz"
ANOMALY_MAP = "anomaly_map.nii.gz"
FINDINGS = "findings.csv"
SLICES = "slices.csv"
SUMMARY = "summary.json"  # written last: where it exists, the other files are complete
OVERVIEW = "overview.png"
REPORT = "report.html"
SEG_NRRD = "mask.seg.nrrd"  # for 3D Slicer
LABEL_TABLE = "mask_labels.txt"  # for ITK-SNAP
DICOM_SEG = "mask_seg.dcm"
DICOM_CAPTURE = "report_capture.dcm"
BIDS_DESCRIPTION = "dataset_description.json"

PREPARATION = "preparation"  # folder: brain masks, transforms and registered series of a raw study

_BIDS_SUFFIXES = {
    MASK: "_label-lesion_desc-anofpdm_mask.nii.gz",
    SEG_NRRD: "_label-lesion_desc-anofpdm_mask.seg.nrrd",
    ANOMALY_MAP: "_desc-anofpdm_anomalymap.nii.gz",
}


def on_series(file: str, series: str) -> str:
    """Name of a mask, map or DICOM-SEG on the grid of one series of a raw study; empty: of the scan."""
    stem, dot, extension = file.partition(".")
    return f"{stem}_on_{series}{dot}{extension}" if series else file


def bids_suffix(file: str) -> str:
    """What follows the subject in the BIDS name of a result file."""
    return _BIDS_SUFFIXES.get(file, f"_desc-anofpdm_{file}")
