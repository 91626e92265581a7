"""Requests and responses of the HTTP API, as its documentation shows them."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

Quantity = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, lt=2**53)]  # JavaScript's largest exact integer


class ErrorResponse(BaseModel):
    """Body of every response that is an error."""

    error: str = Field(description="What is wrong and what to do.")
    field: str | None = Field(description="Form field that the error refers to.")


class ViewerStatus(BaseModel):
    ready: bool = Field(description="Whether the volume viewer niivue is installed; if not, pages show the report.")
    url: str | None = Field(description="Script of the volume viewer.")
    why_not: str = Field(description="Why it is not ready.")


class Status(BaseModel):
    kind: str = Field(description="serve or view")
    version: str
    viewer: ViewerStatus


class ServeStatus(Status):
    model: str
    modalities: list[str] = Field(description="Modalities that the model takes; those needed first.")
    optional: list[str] = Field(description="Those of them that a scan may lack.")
    raw: bool = Field(description="Whether series may be on different grids, or of whole heads.")
    dicom: bool = Field(description="Whether a zip of DICOM files is accepted.")
    upload_bytes: int = Field(description="Largest upload.")
    waiting: int = Field(description="Scans in the queue.")
    most_waiting: int = Field(description="Most scans that the queue holds.")


class JobResponse(BaseModel):
    id: str = Field(description="128 random bits.")
    name: str
    state: str = Field(description="queued, running, done, failed or cancelled")
    ahead: int = Field(description="Number of scans that are processed before this one.")
    done: int | float = Field(description="Progress: steps done.")
    total: int | float = Field(description="Progress: steps in total; 0 if not known yet.")
    accepted: float = Field(description="Time in seconds since 1970, as started and finished.")
    started: float | None
    finished: float | None
    error: str | None = Field(description="Why it failed.")
    found: dict[str, Any] = Field(
        description="When done: volume_ml, findings, slices, slices_detected (classified as unhealthy), "
        "missing_modalities, warnings."
    )


class FileResponseItem(BaseModel):
    role: str = Field(description="mask, map, findings, slices, summary, picture, report, dicom-seg or scan-MODALITY")
    name: str
    url: str


class InputFile(BaseModel):
    file: str = ""
    sha256: str = ""


class Numbers(BaseModel):
    volume_ml: Quantity | None = None
    findings: Count | None = Field(default=None, description="Number of connected lesions.")
    slices: Count | None = Field(default=None, description="Number of analysed slices.")
    slices_detected: Count | None = Field(default=None, description="Number of slices classified as unhealthy.")
    seconds: Quantity | None = Field(default=None, description="Processing time.")


class Summary(Numbers):
    """What pages show of a summary.json, which may come from elsewhere."""

    model_config = ConfigDict(strict=True)

    warnings: list[str] = []
    missing_modalities: list[str] = []
    inputs: dict[str, InputFile] = {}  # by modality


class ResultListItem(Numbers):
    key: str = Field(description="Identifies the result in URLs.")
    title: str
    warnings: int = Field(description="Number of warnings.")
    unreadable: str | None = Field(description="Why the result cannot be read; its numbers are then null.")


class ResultResponse(ResultListItem):
    missing_modalities: list[str] = Field(description="Optional modalities of the model that the scan lacks.")
    notes: list[str] = Field(description="The warnings.")
    lesions: list[dict[str, float]] = Field(description="The findings, largest first: rows of findings.csv.")
    scans: list[FileResponseItem] = Field(description="Scans that the result was made from, if still available.")
    files: list[FileResponseItem]
