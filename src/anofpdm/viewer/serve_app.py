"""`anofpdm serve`: upload a scan, wait in the queue, look at what was found."""

import asyncio
import contextlib
import importlib.util
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, FastAPI, Query, Request, Response
from starlette.requests import ClientDisconnect

from anofpdm import __version__
from anofpdm.viewer.intake import Intake, form_schema
from anofpdm.viewer.jobs import DONE, INPUT, RESULT, Job, JobStore
from anofpdm.viewer.limits import Limits
from anofpdm.viewer.niivue import Niivue
from anofpdm.viewer.pages import ANSWERS, Lifespan, new_app, pages_router, results_router, viewer_told
from anofpdm.viewer.refusals import RefusalError, gone
from anofpdm.viewer.results import SCAN, Result, read_result
from anofpdm.viewer.runner import Runner
from anofpdm.viewer.schemas import JobTold, Problem, ServeStatus

ABOUT = (
    "Lesion masks for brain MRI. Upload a scan (POST /api/jobs), keep its id, ask how it stands (GET /api/jobs/ID), "
    "then fetch what was found (GET /api/results/ID). A research tool, not a medical device."
)
MOST_IDS = 200
REFUSED: dict[int | str, dict[str, object]] = {
    status: {"model": Problem, "description": said}
    for status, said in {
        400: "The form is broken.", 413: "Too large.", 422: "A file cannot be used, and why.",
        503: "Full; come back after Retry-After seconds.",
    }.items()
}  # fmt: skip


def serve_app(store: JobStore, runner: Runner, niivue: Niivue, limits: Limits) -> FastAPI:
    """The runner has been started: it knows the model."""
    modalities = tuple(runner.about["modalities"])
    app = new_app("AnoFPDM: segmenting", ABOUT, _stopping(runner))
    intake = Intake(store, modalities, limits, dicom=importlib.util.find_spec("pydicom") is not None)

    @app.get("/api/status", tags=["server"])
    def status() -> ServeStatus:
        """What this server can do, and how busy it is."""
        return ServeStatus(
            kind="serve",
            version=__version__,
            viewer=viewer_told(niivue),
            model=str(runner.about["name"]),
            modalities=list(modalities),
            dicom=intake.dicom,
            upload_bytes=limits.upload_bytes,
            waiting=len(store.queued()),
            most_waiting=limits.waiting,
        )

    app.include_router(_upload_router(intake, runner))
    app.include_router(_jobs_router(store, runner))
    app.include_router(results_router(lambda key: result_of(store, key)))
    app.include_router(pages_router("home.html", niivue))
    return app


def _stopping(runner: Runner) -> Lifespan:
    @contextlib.asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(runner.stop)

    return lifespan


def _upload_router(intake: Intake, runner: Runner) -> APIRouter:
    router = APIRouter(prefix="/api/jobs", tags=["scans"])

    @router.post("", status_code=202, responses=REFUSED, openapi_extra=form_schema(intake.modalities, intake.dicom))
    async def upload(request: Request) -> JobTold:
        """Accept a scan: a file for each modality, or a zip of DICOM files. It is segmented when its turn comes."""
        try:
            job = await intake.take(request)
        except ClientDisconnect:
            raise RefusalError(400, "The connection ended before the upload did.") from None
        runner.wake()
        return job_told(job, runner)

    return router


def _jobs_router(store: JobStore, runner: Runner) -> APIRouter:
    router = APIRouter(prefix="/api/jobs", tags=["scans"])

    @router.get("")
    def some(ids: Annotated[list[str], Query(alias="id", max_length=MOST_IDS)]) -> list[JobTold]:
        """How several scans stand; those that are gone are left out. There is no list of everyone's scans."""
        return list(_known(store, runner, ids))

    @router.get("/{job_id}", responses=ANSWERS)
    def one(job_id: str) -> JobTold:
        """How a scan stands."""
        return job_told(store.get(job_id), runner)

    @router.post("/{job_id}/cancel", responses={**ANSWERS, 409: {"model": Problem, "description": "It is over."}})
    def cancel(job_id: str) -> JobTold:
        """Stop working on a scan, or take it out of the queue. What was uploaded is deleted."""
        return job_told(runner.cancel(job_id), runner)

    @router.delete("/{job_id}", status_code=204, response_class=Response, responses=ANSWERS)
    def delete(job_id: str) -> None:
        """Remove a scan and all that was made of it; a scan in the middle is cancelled first."""
        runner.delete(job_id)

    return router


def _known(store: JobStore, runner: Runner, ids: list[str]) -> Iterator[JobTold]:
    for job_id in ids:
        with contextlib.suppress(RefusalError):
            yield job_told(store.get(job_id), runner)


def job_told(job: Job, runner: Runner) -> JobTold:
    done, total = runner.progress(job)
    return JobTold(
        id=job.id, name=f"Scan {job.short}", state=job.state, ahead=runner.ahead(job), done=done,
        total=total, accepted=job.accepted, started=job.started, finished=job.finished, error=job.error,
        found=job.found,
    )  # fmt: skip


def result_of(store: JobStore, key: str) -> Result:
    job = store.get(key)
    if job.state != DONE:
        raise RefusalError(409, "This scan has no result yet.")
    place = store.place(job).resolve()
    result = read_result(place, place / RESULT, key=job.id, title=f"Scan {job.short}")
    if result is None:
        raise gone()
    scans = {f"{SCAN}{path.name.partition('.')[0]}": path for path in _scans(place / INPUT)}
    return replace(result, files={**result.files, **scans}, summary={**result.summary, "inputs": {}})


def _scans(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.name.endswith((".nii", ".nii.gz")))
