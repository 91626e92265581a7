"""Slices that a student drew, explained by the diffusion model: which, and what it says of them."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from anofpdm.errors import ConfigError, ScanWarning
from anofpdm.method.decision import Decisions
from anofpdm.method.evidence import Evidence
from anofpdm.report.findings import Finding
from anofpdm.report.page_data import axial_index
from anofpdm.scans import Grid

Explain = Sequence[int] | Literal["findings"] | None  # slices from the inferior end, or the middle of each finding


def normalize_explain(explain: Explain) -> Explain:
    """In order, each once."""
    if explain is None or (isinstance(explain, str) and explain == "findings"):
        return explain
    if isinstance(explain, str):
        raise ConfigError(f"explain {explain!r}: give 'findings', or numbers of slices")
    return tuple(sorted({int(number) for number in explain}))


def warn_missing_slices(explain: Explain, indices: np.ndarray, where: object) -> None:
    """A word where slices that are asked for are not there."""
    missing = [] if explain is None or explain == "findings" else sorted(set(explain) - set(indices.tolist()))
    if missing:
        warnings.warn(
            f"{where}: no slice {', '.join(map(str, missing))} to explain; slices {indices[0]} to {indices[-1]} were "
            "looked at",
            ScanWarning,
            stacklevel=2,
        )


def rows_to_explain(explain: Explain, findings: Iterable[Finding], indices: np.ndarray, grid: Grid) -> np.ndarray:
    """Rows of the slices that are asked for; of findings, those nearest to their middles."""
    if explain == "findings":
        middles = [axial_index(one.centre_mm, grid) for one in findings]
        return np.unique([np.abs(indices - number).argmin() for number in middles]).astype(int)
    return np.flatnonzero(np.isin(indices, list(explain or ())))


def add_evidence(decisions: Decisions, rows: np.ndarray, evidence: Evidence) -> Decisions:
    """A student's decisions, and beside them what the diffusion model says of these rows."""
    told = {
        "similarity": evidence.similarity,
        "end_step": evidence.end_step,
        "end_divergence": evidence.end_divergence,
    }
    filled = {name: getattr(decisions, name).copy() for name in told}
    for name, values in told.items():
        filled[name][rows] = values[:, 0].cpu().numpy()
    return replace(decisions, **filled)
