"""What the API says, as its documentation shows it."""

from typing import Any

from pydantic import BaseModel, Field


class Problem(BaseModel):
    """Every answer that is a no."""

    error: str = Field(description="What is wrong and what to do, for a person.")
    field: str | None = Field(description="The part of the form that it is about.")


class ViewerTold(BaseModel):
    ready: bool = Field(description="Whether niivue is there; if not, pages show the slice browser.")
    url: str | None
    why_not: str


class Status(BaseModel):
    kind: str = Field(description="serve or view")
    version: str
    viewer: ViewerTold


class ServeStatus(Status):
    model: str
    modalities: list[str]
    dicom: bool = Field(description="Whether a zip of DICOM files is taken.")
    upload_bytes: int
    waiting: int
    most_waiting: int


class JobTold(BaseModel):
    id: str = Field(description="128 random bits: who knows it, has the scan. Keep it.")
    name: str
    state: str = Field(description="queued, running, done, failed or cancelled")
    ahead: int = Field(description="Scans that come before it.")
    done: int
    total: int
    accepted: float
    started: float | None
    finished: float | None
    error: str | None
    found: dict[str, Any]


class FileTold(BaseModel):
    role: str
    name: str
    url: str


class ResultLine(BaseModel):
    key: str
    title: str
    volume_ml: float | None
    findings: int | None
    slices: int | None
    slices_detected: int | None
    seconds: float | None
    warnings: int


class ResultTold(ResultLine):
    notes: list[str]
    lesions: list[dict[str, float]]
    scans: list[FileTold]
    files: list[FileTold]
