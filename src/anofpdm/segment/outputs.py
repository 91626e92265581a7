"""File names of the results of a segmented scan. Imports no other module of this package."""

from dataclasses import dataclass
from pathlib import Path

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

BIDS_SUMMARY = f"_desc-anofpdm_{SUMMARY}"
_BIDS_SUFFIXES = {
    MASK: "_label-lesion_desc-anofpdm_mask.nii.gz",
    SEG_NRRD: "_label-lesion_desc-anofpdm_mask.seg.nrrd",
    ANOMALY_MAP: "_desc-anofpdm_anomalymap.nii.gz",
}


@dataclass(frozen=True)
class ResultFiles:
    """Paths of the files of a result. In a BIDS data set, their names start with that of the scan."""

    folder: Path
    stem: str = ""  # sub-01_ses-1; empty: names as above

    @classmethod
    def of_summary(cls, summary: Path) -> "ResultFiles | None":
        """None if the file does not have the name of a summary."""
        if summary.name == SUMMARY:
            return cls(summary.parent)
        stem = summary.name.removesuffix(BIDS_SUMMARY)
        return None if stem == summary.name else cls(summary.parent, stem)

    @property
    def scan(self) -> str:
        return self.stem or self.folder.name

    def path(self, file: str, series: str = "") -> Path:
        """Of a mask, map or DICOM-SEG, also on the grid of one series of a raw study; empty: of the scan."""
        name, dot, extension = file.partition(".")
        name = f"{name}_on_{series}{dot}{extension}" if series else file
        if self.stem:
            name = self.stem + _BIDS_SUFFIXES.get(name, f"_desc-anofpdm_{name}")
        return self.folder / name

    def by_series(self, file: str) -> dict[str, Path]:
        """Those in the folder that are on grids of series."""
        before, after = self.path(file, "\0").name.split("\0")
        names = sorted(path.name for path in self.folder.iterdir())
        names = [name for name in names if name.startswith(before) and name.endswith(after)]
        return {name[len(before) : -len(after)]: self.folder / name for name in names}
