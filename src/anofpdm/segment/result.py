"""The result of a segmented scan, and how it is written to a folder."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anofpdm.method.decision import Decisions
from anofpdm.raw.study import to_series
from anofpdm.report.display import SegmentedScan
from anofpdm.report.overview import draw_overview
from anofpdm.report.result_page import render_report
from anofpdm.scans import Grid, write_nifti
from anofpdm.scans.findings import Finding
from anofpdm.scans.seg_nrrd import label_table, write_seg_nrrd
from anofpdm.segment import outputs
from anofpdm.segment.outputs import ResultFiles
from anofpdm.util.files import encode_csv, translate_write_errors, write_atomically
from anofpdm.util.text import count_noun

if TYPE_CHECKING:
    from anofpdm.scans.dicom.read import DicomStudy  # needs pydicom, an optional dependency

FINDING_COLUMNS = ("finding", "volume_ml", "x_mm", "y_mm", "z_mm", "peak", "peak_x_mm", "peak_y_mm", "peak_z_mm")
OPTIONAL_FILES = (outputs.OVERVIEW, outputs.REPORT, outputs.SEG_NRRD, outputs.DICOM_SEG, outputs.DICOM_CAPTURE)
MAP_STEPS = 2.0**17  # values of a saved map are multiples of 1 / 131,072


class Segmentation(SegmentedScan):
    """A SegmentedScan that can be saved."""

    def save(
        self,
        folder: str | Path,
        stem: str = "",  # name of the scan, with which BIDS names start
        *,
        picture: bool = True,
        report: bool = True,
        title: str | None = None,  # of picture and report; default: name of the folder
    ) -> None:
        """Write all files into `folder`; the summary last, so that its presence means completeness."""
        files = ResultFiles(Path(folder), stem)
        with translate_write_errors(files.folder):
            files.folder.mkdir(parents=True, exist_ok=True)
        rows = (row.values() for row in self.slices)
        _remove_earlier(files)
        for series, mask, grid in self._on_grids(self.mask):
            write_nifti(files.path(outputs.MASK, series), (mask >= 0.5).astype(np.uint8), grid)
        for series, anomaly_map, grid in self._on_grids(self.anomaly_map):
            write_nifti(files.path(outputs.ANOMALY_MAP, series), round_map(anomaly_map), grid)
        write_atomically(files.path(outputs.FINDINGS), encode_csv(FINDING_COLUMNS, map(_finding_row, self.findings)))
        write_atomically(files.path(outputs.SLICES), encode_csv(self.slices[0], rows))
        title = title or files.folder.resolve().name
        if picture:
            write_atomically(files.path(outputs.OVERVIEW), self.overview(title))
        if report:
            write_atomically(files.path(outputs.REPORT), render_report(self, title))
        write_atomically(files.path(outputs.SUMMARY), self.summary.encode())

    def _on_grids(self, volume: np.ndarray) -> Iterator[tuple[str, np.ndarray, Grid]]:
        """A mask or map on the grid of the scan (""), and on that of each series of a raw study."""
        yield "", volume, self.grid
        for series in self.series:
            yield series.name, to_series(volume, self.series[0], series), series.grid

    def save_seg_nrrd(self, folder: str | Path, stem: str = "") -> None:
        """Write the mask for 3D Slicer, with name and colour; also on the grid of each series of a raw study."""
        files = ResultFiles(Path(folder), stem)
        for series, mask, grid in self._on_grids(self.mask):
            write_seg_nrrd(files.path(outputs.SEG_NRRD, series), mask >= 0.5, grid)

    def save_label_table(self, folder: str | Path, stem: str = "") -> None:
        """Write name and colour of the label in mask.nii.gz, for ITK-SNAP."""
        write_atomically(ResultFiles(Path(folder), stem).path(outputs.LABEL_TABLE), label_table())

    def save_dicom(self, study: "DicomStudy", folder: Path, title: str, stem: str = "") -> None:
        """Write the overview as secondary capture, and the mask as DICOM SEG, also for each series of a raw study. The
        SEG of the scan is the last file, so that its presence means completeness."""
        from anofpdm.scans.dicom.seg import FIRST_NUMBER_ON_SERIES, SERIES_NUMBERS, write_capture, write_seg

        files, missing = ResultFiles(folder, stem), self.summary.missing_modalities
        write_capture(files.path(outputs.DICOM_CAPTURE), self.overview(title), study, missing)
        for number, series in enumerate(self.series[1:], start=FIRST_NUMBER_ON_SERIES):
            mask = to_series(self.mask, self.series[0], series) >= 0.5
            write_seg(files.path(outputs.DICOM_SEG, series.name), mask, study.only(series.name), number, missing)
        write_seg(files.path(outputs.DICOM_SEG), self.mask, study, SERIES_NUMBERS[0], missing)

    def overview(self, title: str, truth: np.ndarray | None = None) -> bytes:
        """PNG with the most affected slices, their maps and masks; with the true lesion, bool [n, H, W], if given."""
        caption = f"{title}: {self.volume_ml:.1f} ml in {count_noun(len(self.findings), 'finding')}"
        return draw_overview(self.display, self.decisions, caption, oriented=self.grid.oriented, truth=truth)


def _remove_earlier(files: ResultFiles) -> None:
    """What an earlier run wrote and this one may not write again: the summary first, also files on grids of series."""
    for file in (outputs.SUMMARY, *OPTIONAL_FILES):
        files.path(file).unlink(missing_ok=True)
    for file in (outputs.MASK, outputs.ANOMALY_MAP, outputs.SEG_NRRD, outputs.DICOM_SEG):
        for path in files.by_series(file).values():
            path.unlink(missing_ok=True)


def slice_table(decisions: Decisions, indices: np.ndarray, pixel_mm: float) -> list[dict[str, Any]]:
    """One row per slice; empty where the engine does not determine a value."""
    areas = decisions.masks.sum(axis=(1, 2)) * pixel_mm**2
    evidence, estimates = decisions.evidence, decisions.estimated_dice
    table = []
    for row, index in enumerate(indices.tolist()):
        entry = None if evidence is None else evidence.index(row)
        cosine = end_step = divergence = quantile = ""
        if evidence is not None and entry is not None:
            cosine, end_step = f"{evidence.similarity[entry]:.6f}", str(evidence.end_step[entry])
            divergence, quantile = f"{evidence.end_divergence[entry]:.6g}", f"{evidence.quantile[entry]:.4f}"
        estimate = math.nan if estimates is None else estimates[row]
        table.append(
            {
                "slice": index,  # from 0, as in labels.csv
                "number": index + 1,  # as pictures and pages count
                "detected": int(decisions.detected[row]),
                "cosine": cosine,
                "log_odds": f"{decisions.log_odds[row]:.4f}",
                "end_step": end_step,
                "divergence": divergence,
                "quantile": quantile,
                "threshold": f"{decisions.threshold[row]:.6g}",
                "area_mm2": f"{areas[row]:.1f}",
                "estimated_dice": "" if math.isnan(estimate) else f"{estimate:.4f}",
            }
        )
    return table


def round_map(anomaly_map: np.ndarray) -> np.ndarray:
    """Within 4e-6 of the map. The last bits of probabilities near 0 are noise, and noise cannot be compressed."""
    rounded: np.ndarray = np.round(anomaly_map * np.float32(MAP_STEPS)) / np.float32(MAP_STEPS)
    return rounded


def _finding_row(finding: Finding) -> list[str]:
    numbers = (finding.volume_ml, *finding.centre_mm, finding.peak, *finding.peak_mm)
    return [str(finding.number), *(f"{number:.4f}" for number in numbers)]
