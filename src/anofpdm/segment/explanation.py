"""Explanation of a student's masks: for selected slices, the evidence of the diffusion model is added."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from anofpdm.errors import ConfigError, ScanWarning
from anofpdm.method.decision import Decisions
from anofpdm.report.display import SliceSpace
from anofpdm.report.page_data import axial_index
from anofpdm.scans.findings import Finding

# Slices, counted from 1 at the inferior end, or the central slice of each finding.
Explain = Sequence[int] | Literal["findings"] | None


def normalize_explain(explain: Explain) -> Explain:
    """Slice numbers sorted, without duplicates."""
    if explain is None or (isinstance(explain, str) and explain == "findings"):
        return explain
    if isinstance(explain, str):
        raise ConfigError(f"explain {explain!r}: give 'findings' or a list of slice numbers")
    return tuple(sorted({int(number) for number in explain}))


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


def add_evidence(decisions: Decisions, rows: np.ndarray, explained: Decisions) -> Decisions:
    """A student's decisions with the evidence filled in that the diffusion model decided on in these rows."""
    filled = {name: getattr(decisions, name).copy() for name in ("similarity", "end_step", "end_divergence")}
    for name, values in filled.items():
        values[rows] = getattr(explained, name)
    return replace(decisions, **filled)
