"""The application of `anofpdm serve`: upload a scan, follow it through the queue, see its result."""

from dataclasses import asdict
from functools import partial
from typing import Annotated

from fastapi import APIRouter, FastAPI, Query, Request, Response

from anofpdm import __version__
from anofpdm.segment.outputs import ResultFiles
from anofpdm.viewer import pages
from anofpdm.viewer.jobs import INPUT, RESULT, Job, JobState, JobStore
from anofpdm.viewer.limits import Limits, RequestError, scan_not_found
from anofpdm.viewer.niivue import Niivue
from anofpdm.viewer.results import Result, read_result
from anofpdm.viewer.runner import Runner
from anofpdm.viewer.schemas import JobResponse, ServeStatus
from anofpdm.viewer.uploads import UploadHandler, form_schema

DESCRIPTION = (
    "Lesion masks for brain MRI. Upload a scan (POST /api/jobs), keep its id, query its state (GET /api/jobs/ID), "
    "then download the result (GET /api/results/ID). Research tool, not a medical device."
)
JobIds = Annotated[list[str], Query(alias="id", max_length=200, description="Id of a scan; repeatable. Default: all.")]
Limit = Annotated[int, Query(ge=1, le=1000, description="Without ids: most scans in the list.")]
UPLOAD_ERRORS: pages.Responses = {
    400: {"description": "The form is invalid."},
    413: {"description": "The upload is too large."},
    422: {"description": "A file is missing or cannot be used."},
    503: {"description": "The queue is full; try again after Retry-After seconds."},
}
FINISHED: pages.Responses = {409: {"description": "The scan is finished."}}


def create_serve_app(runner: Runner, niivue: Niivue, limits: Limits) -> FastAPI:
    """The runner must have been started, so that the model is known."""
    store, model = runner.store, runner.model
    uploads = UploadHandler(store, model, limits)

    router = APIRouter()

    @router.get("/api/status", tags=["server"])
    def get_status() -> ServeStatus:
        """Version, model, limits and queue of this server."""
        return ServeStatus(
            kind="serve",
            version=__version__,
            viewer=pages.viewer_status(niivue),
            model=runner.config.model.name,
            modalities=list(model.inputs.names),
            optional=list(model.inputs.optional),
            raw=model.raw,
            dicom=model.dicom,
            upload_bytes=limits.upload_bytes,
            waiting=len(store.all(JobState.QUEUED)),
            most_waiting=limits.waiting,
        )

    router.include_router(_create_jobs_router(uploads, runner))
    title, find = "AnoFPDM segmentation server", partial(find_result, store)
    return pages.create_app(title, DESCRIPTION, router, find, home="home", niivue=niivue)


def _create_jobs_router(uploads: UploadHandler, runner: Runner) -> APIRouter:
    router = APIRouter(prefix="/api/jobs", tags=["scans"])
    form = form_schema(runner.model)

    @router.post("", status_code=202, responses=UPLOAD_ERRORS, openapi_extra=form)
    async def upload_scan(request: Request) -> JobResponse:
        """Upload a scan, one file per modality or a zip of DICOM files, and queue it."""
        job = await uploads.handle(request)
        runner.notify()
        return describe_job(job, runner)

    @router.get("")
    def list_jobs(ids: JobIds = [], limit: Limit = 200) -> list[JobResponse]:  # noqa: B006
        """State of the scans with these ids, without unknown ones. Without ids, of all scans, newest first."""
        jobs = list(map(runner.store.find, ids)) if ids else runner.store.all()[: -limit - 1 : -1]
        return [describe_job(job, runner) for job in jobs if job is not None]

    @router.get("/{job_id}", responses=pages.NOT_FOUND)
    def get_job(job_id: str) -> JobResponse:
        """State of a scan."""
        return describe_job(runner.store.get(job_id), runner)

    @router.post("/{job_id}/cancel", responses={**pages.NOT_FOUND, **FINISHED})
    def cancel_job(job_id: str) -> JobResponse:
        """Stop processing a scan, or remove it from the queue. Its uploaded files are deleted."""
        return describe_job(runner.cancel(job_id), runner)

    @router.delete("/{job_id}", status_code=204, response_class=Response, responses=pages.NOT_FOUND)
    def delete_job(job_id: str) -> None:
        """Delete a scan and its results; a running scan is cancelled first."""
        runner.delete(job_id)

    return router


def describe_job(job: Job, runner: Runner) -> JobResponse:
    state = asdict(job) | asdict(runner.progress(job))

    return JobResponse.model_validate({**state, "name": job.title, "ahead": runner.count_ahead(job)})


def find_result(store: JobStore, key: str) -> Result:
    job = store.get(key)
    if job.state != JobState.DONE:
        raise RequestError(409, "This scan has no result yet.")
    folder = store.path(job).resolve()
    result = read_result(folder, ResultFiles(folder / RESULT), key=job.id, title=job.title, scan_folder=folder / INPUT)
    if result is None:
        raise scan_not_found()
    return result
