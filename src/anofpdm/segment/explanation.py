"""Explanation of a student's masks: for selected slices, the evidence of the diffusion model is added."""

import warnings
from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from anofpdm.errors import ScanWarning
from anofpdm.method.decision import Decisions
from anofpdm.report.display import SliceSpace
from anofpdm.scans.findings import Finding
from anofpdm.segment.engines import DiffusionEngine, EngineSlices, decide_where_it_fits
from anofpdm.segment.request import Explain
from anofpdm.util.progress import Progress


def rows_to_explain(
    wanted: Explain, findings: Iterable[Finding], indices: np.ndarray, space: SliceSpace, where: object
) -> np.ndarray:
    """Rows of the requested slices, `indices` counting from 0; for findings, the rows nearest to their centres. Warns
    about requested slices that are not among the analysed ones."""
    if wanted == "findings":
        return np.unique(space.central_rows(findings, indices)).astype(int)
    numbers, requested = indices + 1, list(wanted or ())
    if missing := sorted(set(requested) - set(numbers.tolist())):
        analysed = f"slices {numbers[0]} to {numbers[-1]} were analysed (counted from 1)"
        text = f"{where}: no slice {', '.join(map(str, missing))} to explain; {analysed}"
        warnings.warn(text, ScanWarning, stacklevel=2)
    return np.flatnonzero(np.isin(numbers, requested))


def explain(
    decisions: Decisions, slices: EngineSlices, rows: np.ndarray, explainer: DiffusionEngine, progress: Progress
) -> Decisions:
    """A student's decisions with the diffusion model's evidence for some rows of the slices."""
    if not len(rows):
        return decisions
    evidence = decide_where_it_fits(explainer, slices.rows(rows), progress).measured
    return replace(decisions, evidence=replace(evidence, rows=rows))
