"""Explanation of a student's masks: for selected slices, the evidence of the diffusion model is added."""

import warnings
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from anofpdm.errors import ScanWarning
from anofpdm.method.decision import Decisions
from anofpdm.report.display import SliceSpace
from anofpdm.report.page_data import axial_index
from anofpdm.scans.findings import Finding
from anofpdm.segment.engines import DiffusionEngine, EngineSlices, decide_where_it_fits
from anofpdm.segment.request import Explain
from anofpdm.util.progress import Progress


def warn_missing_slices(explain: Explain, indices: np.ndarray, where: object) -> None:
    """Warn about requested slices that are not among the analysed ones."""
    missing = [] if explain is None or explain == "findings" else sorted(set(explain) - set((indices + 1).tolist()))
    if missing:
        analysed = f"slices {indices[0] + 1} to {indices[-1] + 1} were analysed (counted from 1)"
        text = f"{where}: no slice {', '.join(map(str, missing))} to explain; {analysed}"
        warnings.warn(text, ScanWarning, stacklevel=2)


def rows_to_explain(
    explain: Explain, findings: Iterable[Finding], indices: np.ndarray, space: SliceSpace
) -> np.ndarray:
    """Rows of the requested slices, `indices` counting from 0; for findings, the rows nearest to their centres."""
    if explain == "findings":
        centres = [axial_index(finding.centre_mm, space) for finding in findings]
        return np.unique([np.abs(indices - number).argmin() for number in centres]).astype(int)
    return np.flatnonzero(np.isin(indices + 1, list(explain or ())))


def explain(
    decisions: Decisions, slices: EngineSlices, rows: np.ndarray, explainer: DiffusionEngine, progress: Progress
) -> Decisions:
    """A student's decisions with the diffusion model's evidence for some rows of the slices."""
    if not len(rows):
        return decisions
    evidence = decide_where_it_fits(explainer, slices.rows(rows), progress).measured
    return replace(decisions, evidence=replace(evidence, rows=rows))
