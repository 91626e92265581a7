"""Requests and responses of the HTTP API, as its documentation shows them."""

from typing import Any

from pydantic import BaseModel, ConfigDict


class Described(BaseModel):
    """The text below a field describes it in the documentation."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class ViewerStatus(Described):
    url: str | None
    """Script of the volume viewer niivue; without it, pages show the report."""
    why_not: str
    """Why there is none."""


class Status(Described):
    kind: str
    """serve or view"""
    version: str
    viewer: ViewerStatus


class ServeStatus(Status):
    model: str
    modalities: list[str]
    """Modalities that the model takes; those needed first."""
    optional: list[str]
    """Those of them that a scan may lack."""
    raw: bool
    """Whether series may be on different grids, or of whole heads."""
    dicom: bool
    """Whether a zip of DICOM files is accepted."""
    upload_bytes: int
    """Largest upload."""
    waiting: int
    """Scans in the queue."""
    most_waiting: int
    """Most scans that the queue holds."""


class JobResponse(Described):
    id: str
    """128 random bits."""
    name: str
    state: str
    """queued, running, done, failed or cancelled"""
    ahead: int
    """Number of scans that are processed before this one."""
    done: int | float
    """Progress: steps done."""
    total: int | float
    """Progress: steps in total; 0 if not known yet."""
    accepted: float
    """Time in seconds since 1970, as started and finished."""
    started: float | None
    finished: float | None
    error: str | None
    """Why it failed."""
    result: dict[str, Any]
    """When done: volume_ml, findings, slices, slices_detected, missing_modalities, warnings."""


class FileResponseItem(Described):
    role: str
    """mask, map, findings, slices, summary, picture, report, dicom-seg or scan-MODALITY"""
    name: str
    url: str


class Numbers(Described):
    volume_ml: float | None = None
    findings: int | None = None
    """Number of connected lesions."""
    slices: int | None = None
    """Number of analysed slices."""
    slices_detected: int | None = None
    """Number of slices classified as unhealthy."""
    seconds: float | None = None
    """Processing time."""


class ResultListItem(Numbers):
    key: str
    """Identifies the result in URLs."""
    title: str
    warnings: int
    """Number of warnings."""
    unreadable: str | None
    """Why the result cannot be read; its numbers are then null."""


class ResultResponse(ResultListItem):
    missing_modalities: list[str]
    """Optional modalities of the model that the scan lacks."""
    notes: list[str]
    """The warnings."""
    lesions: list[dict[str, float]]
    """The findings, largest first: rows of findings.csv."""
    scans: list[FileResponseItem]
    """Scans that the result was made from, if still available."""
    files: list[FileResponseItem]
